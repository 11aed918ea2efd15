"""The kernels that are shown are those that the model convolves with, of any operator, and stand under their tokens."""

import re
import shutil
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from scripts import conv_weights
from scripts.common.errors import UserError
from scripts.conv_weights import Kernels, kernels_of, main
from tests.compat.conftest import write_corpus
from tests.convert.common import save
from tests.models.common import SMALL, task, tokens
from tests.tolerances import assert_close

SIZES = {"encoder_layers": 2, "decoder_layers": 2, "max_source_positions": 16, "max_target_positions": 16}
KERNELS = {"encoder_kernel_size_list": [3, 7], "decoder_kernel_size_list": [2, 5], "share_all_embeddings": False}
MIXED = {"arch": "pla_lightconv_small", "decoder_conv_type": "dynamic"}
MODELS: dict[str, dict[str, Any]] = {
    "dynamic, tanh": {"arch": "pla_dynamicconv_small", "weight_normalization": "tanh"},
    "query apart": {"arch": "pla_dynamicconv_small", "encoder_query_dim": 8, "encoder_query_heads": 2},
    "attention": {"arch": "pla_lightconv_small", "encoder_conv_type": "attention", "decoder_conv_type": "attention"},
    "mixed": MIXED,
    "language model": {
        "arch": "pla_dynamicconv_lm_small",
        "adaptive_input_cutoff": [4],
        "adaptive_softmax_cutoff": [4],
    },
}


def make(**options: Any) -> tuple[Any, Namespace]:
    """A model with random weights, and its settings."""
    args = Namespace(**{**SMALL, **SIZES, **KERNELS, **options})
    ARCH_CONFIG_REGISTRY[args.arch](args)
    torch.manual_seed(1)
    model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task(44))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # kernels as LightConv's begin are all but the same
    return model.eval(), args


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
def test_convolving_with_the_drawn_kernels_gives_what_the_model_computes(options):
    """Attention's output is its values convolved so, times its last map."""
    model, sides = make(**options)[0], ["decoder"] if "lm" in options["arch"] else ["encoder", "decoder"]
    seen: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
    for module in model.modules():
        if hasattr(module, "kernels"):
            module.register_forward_hook(lambda m, inputs, out: seen.append((m, inputs[0], out)))
    kernels = kernels_of(model, {side: tokens(1, 9)[0] for side in sides})
    assert [(k.side, k.layer) for k in kernels] == [(side, layer) for side in sides for layer in (1, 2)]
    for (module, x, out), each in zip(seen, kernels, strict=True):
        attends = hasattr(module, "v_proj")
        mixed = convolve((module.v_proj(x) if attends else x)[:, 0], each)
        assert_close(out[:, 0], module.out_proj(mixed.float()) if attends else mixed, torch.float32)


def test_the_picture_and_what_cannot_be_shown(tmp_path, capsys, monkeypatch):
    write_corpus(tmp_path)
    shutil.copy(tmp_path / "dict.en.txt", tmp_path / "dict.txt")  # of the language model
    for end in ("bin", "idx"):
        shutil.copy(tmp_path / f"valid.en-de.en.{end}", tmp_path / f"valid.{end}")
    out, of = tmp_path / "kernels.png", {"data": "x", "criterion": "cross_entropy", "use_plasma_view": False}
    pair = of | {"task": "translation", "source_lang": "en", "target_lang": "de"}
    save(tmp_path / "model.pt", *make(**pair, **MIXED))
    save(tmp_path / "lm.pt", *make(**of, task="language_modeling", tokens_per_sample=16, **MODELS["language model"]))

    def run(model: str = "model.pt", line: int = 1, subset: str = "valid") -> str:
        given = ["--model", tmp_path / model, "--data", tmp_path, "--out", out, "--line", line, "--subset", subset]
        main([*map(str, given)])
        return capsys.readouterr().out

    assert re.search(r"^decoder 2: [-+]\d \(0\.\d\d\)(, [-+]\d \(0\.\d\d\)){3}$", run(), re.MULTILINE)
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    monkeypatch.setattr(conv_weights, "draw", lambda *_: None)  # one picture is enough
    assert "2 layers in" in run("lm.pt")
    with pytest.raises(UserError, match="line 21 of valid: it has the lines 1 to 20"):
        run(line=21)
    with pytest.raises(FileNotFoundError, match="Dataset not found: test"):
        run(subset="test")
    (tmp_path / "dict.en.txt").write_text("one 1\n")
    with pytest.raises(UserError, match="size mismatch"):
        run()
    plain, ids = make(**pair, arch="transformer")[0], tokens(1, 9)[0]
    with pytest.raises(UserError, match="no kernels to show"):
        kernels_of(plain, {"encoder": ids, "decoder": ids})
