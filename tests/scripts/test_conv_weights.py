"""The kernels that are shown are those that the model convolves with, of any operator, and stand under their tokens."""

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from scripts.common.errors import UserError
from scripts.conv_weights import Kernels, Reader, choose, draw, main
from tests.models.common import SMALL
from tests.tolerances import assert_close

LINES = {"en": ["one two three two", "four"], "de": ["eins zwei drei zwei", "vier fünf"]}
TWO_BLOCKS = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_kernel_size_list": [3, 7],
    "decoder_kernel_size_list": [2, 5],
    "max_source_positions": 8,
    "max_target_positions": 8,
    "share_all_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "dynamic": {"arch": "pla_dynamicconv_small"},
    "dynamic, gated": {"arch": "pla_dynamicconv_small", "encoder_glu": True, "decoder_glu": True},
    "dynamic, tanh": {"arch": "pla_dynamicconv_small", "weight_normalization": "tanh"},
    "query apart": {"arch": "pla_dynamicconv_small", "encoder_query_dim": 8, "encoder_query_heads": 2},
    "light": {"arch": "pla_lightconv_small"},
    "mixed": {"arch": "pla_lightconv_small", "decoder_conv_type": "dynamic"},
    "language model": {
        "arch": "pla_dynamicconv_lm_small",
        "task": "language_modeling",
        "adaptive_input_cutoff": [4, 6],
        "adaptive_softmax_cutoff": [4, 6],
    },
}


def write_data(folder: Path, languages: list[str], prefix: str, dictionary_name: str) -> dict[str, Dictionary]:
    """Binarised test sets, as fairseq-preprocess writes them."""
    folder.mkdir()
    dictionaries = {}
    for language in languages:
        words = dictionaries[language] = Dictionary()
        for line in LINES[language]:
            words.encode_line(line)
        words.save(str(folder / dictionary_name.format(language)))
        name = str(folder / prefix.format(language))
        builder = make_builder(f"{name}.bin", impl="mmap", vocab_size=len(words))
        for line in LINES[language]:
            builder.add_item(words.encode_line(line, add_if_not_exist=False))
        builder.finalize(f"{name}.idx")
    return dictionaries


def save_model(path: Path, data: Path, **options: Any) -> Path:
    """A checkpoint of a model with random weights, and its data in the folder ``data``."""
    options = {"task": "translation", **SMALL, **TWO_BLOCKS, **options}
    if options["task"] == "translation":
        source, target = write_data(data, ["en", "de"], "test.en-de.{}", "dict.{}.txt").values()
        options |= {"source_lang": "en", "target_lang": "de"}
    else:
        source = target = write_data(data, ["en"], "test", "dict.txt")["en"]
        options |= {"tokens_per_sample": 8}
    args = Namespace(**options, criterion="cross_entropy", data="where it was trained")
    ARCH_CONFIG_REGISTRY[args.arch](args)
    task = Namespace(source_dictionary=source, target_dictionary=target, dictionary=source, output_dictionary=target)
    torch.manual_seed(1)
    model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # kernels as LightConv's begin are all but the same
    history = [{"criterion_name": "c", "optimizer_name": "o", "lr_scheduler_state": {}, "num_updates": 1}]
    torch.save({"args": args, "model": model.state_dict(), "optimizer_history": history, "extra_state": {}}, path)
    return path


def reader(tmp_path: Path, **options: Any) -> Reader:
    return Reader(save_model(tmp_path / "model.pt", tmp_path / "data", **options), tmp_path / "data")


def convolve(x: torch.Tensor, kernels: Kernels) -> torch.Tensor:
    """Section 3 word for word: each channel is the sum of its neighbours in time, weighted by its head's kernel."""
    time, channels = x.shape
    heads = kernels.weights.shape[-2]
    out = torch.zeros(time, channels, dtype=torch.float64)
    for i in range(time):
        weights = kernels.weights[i] if kernels.predicted else kernels.weights
        for j, offset in enumerate(kernels.offsets):
            if 0 <= i + offset < time:
                for c in range(channels):
                    out[i, c] += weights[c * heads // channels, j] * x[i + offset, c]
    return out


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS.keys())
def test_convolving_with_the_drawn_kernels_gives_what_the_model_computes(options, tmp_path):
    shown = reader(tmp_path, **options)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    convolutions = [module for module in shown.model.modules() if hasattr(module, "padding_l")]
    for module in convolutions:
        module.register_forward_hook(lambda _m, inputs, out: seen.append((inputs[0][:, 0], out[:, 0])))
    kernels = shown.kernels(shown.line(1, "test"))
    sides = ["decoder"] * 2 if "lm" in options["arch"] else ["encoder", "encoder", "decoder", "decoder"]
    assert [(k.side, k.layer) for k in kernels] == [(side, n % 2 + 1) for n, side in enumerate(sides)]
    assert len(seen) == len(kernels)
    for (x, out), kernel in zip(seen, kernels, strict=True):
        assert len(x) == 5
        assert_close(out, convolve(x, kernel), torch.float32)


@pytest.mark.parametrize("kind", ["attention", "local_attention"])
def test_convolving_the_values_with_the_drawn_weights_gives_what_attention_computes(kind, tmp_path):
    shown = reader(tmp_path, arch="pla_lightconv_small", encoder_conv_type=kind, decoder_conv_type=kind)
    seen: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
    for module in shown.model.modules():
        if hasattr(module, "kernels"):
            module.register_forward_hook(lambda m, inputs, out: seen.append((m, inputs[0], out)))
    kernels = shown.kernels(shown.line(1, "test"))
    assert [len(layer.offsets) for layer in kernels] == ([9, 9, 5, 5] if kind == "attention" else [3, 7, 2, 5])
    assert {layer.kind for layer in kernels} == {"SelfAttention"}
    for (module, x, out), layer in zip(seen, kernels, strict=True):
        mixed = convolve(module.v_proj(x)[:, 0], layer).float()
        assert_close(out[:, 0], module.out_proj(mixed), torch.float32)
        numpy.testing.assert_allclose(layer.weights.sum(-1), 1.0, rtol=1e-5)


def test_the_decoder_reads_the_reference_a_target_or_the_models_own_translation(tmp_path):
    shown = reader(tmp_path, **MODELS["dynamic"])
    line = shown.words(shown.line(2, "test"))
    assert line == {"encoder": ["four", "</s>"], "decoder": ["</s>", "vier", "fünf"]}
    given = shown.words(shown.sentence("one unheard", "eins"))
    assert given == {"encoder": ["one", "<unk>", "</s>"], "decoder": ["</s>", "eins"]}
    own = shown.words(shown.sentence("one two"))["decoder"]
    assert own[0] == "</s>"
    assert "</s>" not in own[1:]


def test_what_cannot_be_shown_is_refused(tmp_path):
    shown = reader(tmp_path, **MODELS["dynamic"])
    kernels = shown.kernels(shown.line(1, "test"))
    assert [(k.side, k.layer) for k in choose(kernels, "decoder", [2])] == [("decoder", 2)]
    (tmp_path / "cut.pt").write_bytes((tmp_path / "model.pt").read_bytes()[:1000])
    with open(tmp_path / "data" / "dict.en.txt", "a") as f:
        f.write("more 1\n")
    (tmp_path / "plain").mkdir()
    plain = reader(tmp_path / "plain", arch="transformer")
    refused: list[tuple[str, Callable[[], object]]] = [
        ("lines 1 to 2", lambda: shown.line(3, "test")),
        ("no subset `valid`", lambda: shown.line(1, "valid")),
        ("source has 9 tokens, the model reads at most 8", lambda: shown.sentence("one " * 8, "eins")),
        ("its table of contents, at the end, is missing", lambda: Reader(tmp_path / "cut.pt", tmp_path / "data")),
        ("size mismatch", lambda: Reader(tmp_path / "model.pt", tmp_path / "data")),
        ("leave no layer; the model has encoder 1, encoder 2, decoder 1", lambda: choose(kernels, None, [3])),
        ("no kernels to show", lambda: plain.kernels(plain.line(1, "test"))),
    ]
    for said, call in refused:
        with pytest.raises(UserError, match=said):
            call()


def test_the_picture_and_the_numbers(tmp_path, monkeypatch, capsys):
    model = save_model(tmp_path / "model.pt", tmp_path / "data", **MODELS["mixed"])
    out = tmp_path / "kernels.png"
    options = ["--model", model, "--data", tmp_path / "data", "--line", 1, "--out", out]
    monkeypatch.setattr("sys.argv", ["conv_weights.py", *map(str, options)])
    main()
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    said = capsys.readouterr().out
    assert "decoder: </s> eins zwei drei zwei" in said
    assert re.search(r"^decoder 2: [-+]\d \(0\.\d\d\)(, [-+]\d \(0\.\d\d\)){3}$", said, re.MULTILINE)
    numbers = numpy.load(tmp_path / "kernels.npz")  # refuses pickled objects
    assert numbers["encoder.tokens"].tolist() == ["one", "two", "three", "two", "</s>"]
    learnt, predicted = {"encoder.1": (4, 3), "encoder.2": (4, 7)}, {"decoder.1": (5, 4, 2), "decoder.2": (5, 4, 5)}
    tokens = {"encoder.tokens": (5,), "decoder.tokens": (5,)}
    shapes = {name: numbers[name].shape for name in numbers if not name.endswith(".offsets")}
    assert shapes == learnt | predicted | tokens
    assert numbers["encoder.2.offsets"].tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert numbers["decoder.2.offsets"].tolist() == [-4, -3, -2, -1, 0]
    numpy.testing.assert_allclose(numbers["decoder.2"].sum(-1), 1.0, rtol=1e-5)


def test_tokens_that_look_like_formulas_or_are_long_and_weights_below_zero_are_drawn(tmp_path):
    weights = numpy.linspace(-1, 1, 4 * 20 * 3, dtype="float32").reshape(4, 20, 3)
    predicted = Kernels("encoder", 1, weights, range(-1, 2), "tanh")
    learnt = Kernels("decoder", 1, weights[0], range(-2, 1), "none")
    words = {"encoder": ["$x^2$", "$\\frac", "a" * 100, "<unk>"], "decoder": ["</s>"]}
    draw([predicted, learnt], words, tmp_path / "x.png")  # 20 heads, eight in a row
    assert (tmp_path / "x.png").stat().st_size > 10_000
    with pytest.raises(UserError, match="choose less to be drawn"):
        draw([predicted, learnt] * 100, words, tmp_path / "x.png")
