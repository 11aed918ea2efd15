"""The kernels that are shown are those that the model convolves with, of any operator, and stand under their tokens."""

import re
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from scripts.common.errors import UserError
from scripts.conv_weights import Kernels, kernels_of, main, read_line, read_model
from tests.compat.conftest import write_corpus
from tests.convert.common import save
from tests.models.common import SMALL
from tests.tolerances import assert_close

SIZES = {"encoder_layers": 2, "decoder_layers": 2, "max_source_positions": 16, "max_target_positions": 16}
KERNELS = {"encoder_kernel_size_list": [3, 7], "decoder_kernel_size_list": [2, 5], "share_all_embeddings": False}
ATTENTION = dict.fromkeys(("encoder_conv_type", "decoder_conv_type"), "attention")
CUTOFFS = {"adaptive_input_cutoff": [4, 6], "adaptive_softmax_cutoff": [4, 6]}
MODELS: dict[str, dict[str, Any]] = {
    "dynamic, tanh": {"arch": "pla_dynamicconv_small", "weight_normalization": "tanh"},
    "query apart": {"arch": "pla_dynamicconv_small", "encoder_query_dim": 8, "encoder_query_heads": 2},
    "attention": {"arch": "pla_lightconv_small", **ATTENTION},
    "mixed": {"arch": "pla_lightconv_small", "decoder_conv_type": "dynamic"},
    "language model": {"arch": "pla_dynamicconv_lm_small", "task": "language_modeling", **CUTOFFS},
}


def save_model(path: Path, data: Path, **options: Any) -> Path:
    """A checkpoint of a model with random weights, and its data in the folder ``data``."""
    options = {"task": "translation", "source_lang": "en", "target_lang": "de", **SMALL, **SIZES, **KERNELS, **options}
    data.mkdir()
    write_corpus(data)
    if options["task"] == "language_modeling":
        del options["source_lang"], options["target_lang"]
        options["tokens_per_sample"] = 16
        shutil.copy(data / "dict.en.txt", data / "dict.txt")
        for end in ("bin", "idx"):
            shutil.copy(data / f"valid.en-de.en.{end}", data / f"valid.{end}")
    args = Namespace(**options, criterion="cross_entropy", data="where it was trained")
    ARCH_CONFIG_REGISTRY[args.arch](args)
    words = Dictionary.load(str(data / "dict.en.txt"))
    task = Namespace(source_dictionary=words, target_dictionary=words, dictionary=words, output_dictionary=words)
    torch.manual_seed(1)
    model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # kernels as LightConv's begin are all but the same
    return save(path, model, args)


def convolve(x: torch.Tensor, kernels: Kernels) -> torch.Tensor:
    """Section 3 word for word: each channel is the sum of its neighbours in time, weighted by its head's kernel."""
    time, channels = x.shape
    heads = kernels.weights.shape[-2]
    out = torch.zeros(time, channels, dtype=torch.float64)
    for i in range(time):
        weights = kernels.weights[i] if kernels.weights.ndim == 3 else kernels.weights
        for j, offset in enumerate(kernels.offsets):
            if 0 <= i + offset < time:
                for c in range(channels):
                    out[i, c] += weights[c * heads // channels, j] * x[i + offset, c]
    return out


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS.keys())
def test_convolving_with_the_drawn_kernels_gives_what_the_model_computes(options, tmp_path):
    """Attention's output is its values convolved so, times its last map."""
    model, task = read_model(save_model(tmp_path / "model.pt", tmp_path / "data", **options), tmp_path / "data")
    seen: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
    for module in model.modules():
        if hasattr(module, "kernels"):
            module.register_forward_hook(lambda m, inputs, out: seen.append((m, inputs[0], out)))
    kernels = kernels_of(model, read_line(task, tmp_path / "data", "valid", 1))
    sides = ["decoder"] * 2 if "lm" in options["arch"] else ["encoder", "encoder", "decoder", "decoder"]
    assert [(k.side, k.layer) for k in kernels] == [(side, n % 2 + 1) for n, side in enumerate(sides)]
    for (module, x, out), each in zip(seen, kernels, strict=True):
        attends = hasattr(module, "v_proj")
        mixed = convolve((module.v_proj(x) if attends else x)[:, 0], each)
        assert_close(out[:, 0], module.out_proj(mixed.float()) if attends else mixed, torch.float32)


def test_the_picture_and_what_cannot_be_shown(tmp_path, monkeypatch, capsys):
    model, data, out = tmp_path / "model.pt", tmp_path / "data", tmp_path / "kernels.png"
    save_model(model, data, **MODELS["mixed"])

    def run(*more: str) -> str:
        options = ["--model", model, "--data", data, "--out", out, "--subset", "valid", *more]
        main([*map(str, options)])
        return capsys.readouterr().out

    said = run("--line", "1")
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert re.search(r"^decoder 2: [-+]\d \(0\.\d\d\)(, [-+]\d \(0\.\d\d\)){3}$", said, re.MULTILINE)
    for options, sentence in (
        (["--line", "21"], "line 21 of valid.en-de.en: it has the lines 1 to 20"),
        (["--line", "1", "--subset", "test"], "no subset `test`"),
    ):
        with pytest.raises(UserError, match=sentence):
            run(*options)
    (data / "dict.en.txt").write_text("one 1\n")
    with pytest.raises(UserError, match="size mismatch"):
        run("--line", "1")
    plain = save_model(tmp_path / "plain.pt", tmp_path / "plain", arch="transformer")
    read, task = read_model(plain, tmp_path / "plain")
    with pytest.raises(UserError, match="no kernels to show"):
        kernels_of(read, read_line(task, tmp_path / "plain", "valid", 1))
