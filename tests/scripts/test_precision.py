"""The precision of trainings and searches on any device."""

import sys
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from lightconv_plugin.ops.fused import linear
from scripts.config import Config, load_config
from scripts.fairseq_io import precision
from scripts.fairseq_io.commands import evaluate_command, generate_command, shell, train_command
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.precision import (
    PrecisionChoice,
    processor_reasons,
    take_precision,
    take_search_precision,
    take_training_precision,
)

CPU, GPU = Devices(gpu=False, count=1), Devices(gpu=True, count=1)
NO_LIBRARY, SLOW = "its library could not be compiled", "its units are slow"
FAST = "auto is bf16: this processor has fast units for it"
OURS, THEIRS = {"arch": "pla_dynamicconv_small"}, {"arch": "transformer_iwslt_de_en"}
NOT_OURS = "falls back to fp32: on a CPU fairseq's own models compute in nothing else"


@pytest.mark.parametrize(
    ("asked", "devices", "train", "lacking", "slower", "expected"),
    [
        ("fp16", GPU, OURS, None, None, ("fp16",)),  # the paper's fp16 stays fp16
        ("bf16", GPU, OURS, None, None, ("bf16",)),
        ("auto", GPU, OURS, None, None, ("fp16", "auto is fp16 on a GPU")),
        ("fp16", CPU, OURS, None, None, ("fp32", "fp16 falls back to fp32: it needs a GPU, and torch sees none")),
        ("bf16", CPU, OURS, None, SLOW, ("bf16",)),
        ("auto", CPU, OURS, None, None, ("bf16", FAST)),
        ("auto", CPU, {}, None, None, ("bf16", FAST)),  # the flags of a published model are not known
        ("auto", CPU, OURS, None, SLOW, ("fp32", f"auto falls back to fp32: {SLOW}")),
        ("bf16", CPU, OURS, NO_LIBRARY, NO_LIBRARY, ("fp32", f"bf16 falls back to fp32: {NO_LIBRARY}")),
        ("bf16", CPU, THEIRS, None, None, ("fp32", f"bf16 {NOT_OURS}")),
        ("auto", CPU, THEIRS, None, None, ("fp32", f"auto {NOT_OURS}")),
    ],
)
def test_the_precision_of_a_training(monkeypatch, asked, devices, train, lacking, slower, expected):
    monkeypatch.setattr(precision, "processor_reasons", lambda: {"bf16": lacking, "slower": slower})
    assert take_precision(asked, train, gpu=devices.gpu, auto_on_gpu="fp16") == PrecisionChoice(*expected)


@pytest.mark.parametrize(
    ("asked", "train", "gpu", "lacking", "expected"),
    [
        ("auto", OURS, True, None, ("fp32", "auto is fp32 on a GPU")),
        ("fp16", OURS, True, None, ("fp16",)),
        ("int8", OURS, False, None, ("int8",)),
        ("int8", {}, False, None, ("int8",)),
    ],
)
def test_the_precision_of_a_search(monkeypatch, asked, train, gpu, lacking, expected):
    monkeypatch.setattr(precision, "processor_reasons", lambda: {"int8": lacking})
    assert take_search_precision(asked, train, gpu=gpu) == PrecisionChoice(*expected)


@pytest.mark.parametrize(
    ("asked", "train", "gpu", "lacking", "message"),
    [
        ("bf16", OURS, True, None, "on a GPU fairseq generates in fp32 or fp16"),
        ("int8", OURS, True, None, "int8, which is for CPUs; on a GPU take fp32 or fp16"),
        ("int8", THEIRS, False, None, "fairseq's own models compute in nothing but fp32"),
        ("int8", OURS, False, NO_LIBRARY, f"cannot be int8, since {NO_LIBRARY}; take fp32"),
    ],
)
def test_a_precision_that_a_search_cannot_have_is_refused(monkeypatch, asked, train, gpu, lacking, message):
    """int8 is never replaced by another precision."""
    monkeypatch.setattr(precision, "processor_reasons", lambda: {"int8": lacking})
    with pytest.raises(UserError, match=message):
        take_search_precision(asked, train, gpu=gpu)


@pytest.mark.parametrize(
    ("units", "vendor", "reason"),
    [
        ("AMX", "GenuineIntel", None),
        ("AVX512-BF16", "AuthenticAMD", None),
        ("AVX512-BF16", "GenuineIntel", "faster in float32 than in its AVX512-BF16 units"),
        ("none", "AuthenticAMD", "no units for bf16 that may be used"),
    ],
)
def test_processors_whose_bf16_is_slower_than_float32(units, vendor, reason, monkeypatch):
    monkeypatch.setattr(linear, "bf16_units", lambda: units)
    monkeypatch.setattr(linear.Path, "read_text", lambda path, **_: f"vendor_id\t: {vendor}\n")
    result = linear.slower()
    assert result is None if reason is None else reason in str(result)


def test_the_plugin_states_why_a_processor_has_no_bf16_or_int8(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    reasons = processor_reasons.__wrapped__()
    for name in ("bf16", "int8"):
        assert f"no units for {name} that may be used" in str(reasons[name])
    assert reasons["slower"] == reasons["bf16"]


def test_auto_on_a_gpu_is_the_published_precision(tmp_path):
    path = tmp_path / "model.yaml"
    text = "dataset: toy\nseeds: [1]\ntrain: {arch: a, max-update: 4}\n"
    for written, expected in (("", "fp32"), ("precision: fp16", "fp16"), ("precision: auto", "fp16")):
        path.write_text(text + written + "\n")
        config = load_config(path, precision="auto")
        assert config.precision == "auto"
        assert take_training_precision(config, GPU).precision == expected


def test_commands_state_their_precision(monkeypatch):
    """On a GPU, a flag makes fairseq convert the model; on a CPU, the plugin's variable sets the precision."""
    monkeypatch.delenv(precision.VARIABLE, raising=False)
    monkeypatch.setattr(precision, "processor_reasons", lambda: {"bf16": None, "int8": None, "slower": None})
    config = Config(Path("model.yaml"), "model", "toy", [1], {"max-update": 4}, precision="bf16")
    on_cpu = train_command(config, 1, Path("data"), Path("out"), CPU)
    assert on_cpu[:2] == ["env", "LIGHTCONV_MATMUL=bf16"]
    assert "--bf16" not in on_cpu
    assert shell(on_cpu).startswith("LIGHTCONV_MATMUL=bf16 fairseq-train ")
    on_gpu = train_command(config, 1, Path("data"), Path("out"), GPU)
    assert on_gpu[0] == sys.executable
    assert "--bf16" in on_gpu

    def search(gpu: bool, **settings: str) -> list[str]:
        return generate_command(config, settings, Path("data"), Path("model.pt"), "test", gpu=gpu)

    assert "--fp16" in search(True, precision="fp16")
    assert "--bf16" not in search(True)  # the training's precision does not apply to the search
    for name in ("bf16", "int8"):
        command = search(False, precision=name)
        assert command[:2] == ["env", f"LIGHTCONV_MATMUL={name}"]
        assert not [word for word in command if word.startswith("--precision")], "fairseq has no such flag"
    assert search(False)[0] == sys.executable
    # set in the shell: unless the command overrides it, its record of fp32 would be wrong
    monkeypatch.setenv(precision.VARIABLE, "int8")
    for command in (
        search(False),
        evaluate_command(config, Path("data"), Path("model.pt"), "test", gpu=False),
    ):
        assert command[:2] == ["env", "LIGHTCONV_MATMUL=fp32"]
