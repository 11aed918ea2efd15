"""The precision of trainings and searches on any device."""

import sys
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from lightconv_plugin.ops.fused import linear
from scripts.config import Config, load_config
from scripts.fairseq_io import precision
from scripts.fairseq_io.commands import evaluate_command, generate_command, shell, train_command
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.precision import (
    PrecisionChoice,
    bf16_reasons,
    take_precision,
    take_search_precision,
    take_training_precision,
)

CPU, GPU = Devices(gpu=False, count=1), Devices(gpu=True, count=1)
NO_LIBRARY, SLOW = "its library could not be compiled", "its units are slow"
FAST = "auto takes bf16: this processor has fast units for it"
OURS, THEIRS = {"arch": "pla_dynamicconv_small"}, {"arch": "transformer_iwslt_de_en"}
NOT_OURS = "takes fp32: on a CPU fairseq's own models compute in nothing else"


@pytest.mark.parametrize(
    ("asked", "devices", "train", "lacking", "slower", "taken"),
    [
        ("fp16", GPU, OURS, None, None, ("fp16",)),  # the paper's fp16 stays fp16
        ("bf16", GPU, OURS, None, None, ("bf16",)),
        ("auto", GPU, OURS, None, None, ("fp16", "auto is fp16 on a GPU")),
        ("fp16", CPU, OURS, None, None, ("fp32", "fp16 is for GPUs, and torch sees none: it is fp32")),
        ("bf16", CPU, OURS, None, SLOW, ("bf16",)),
        ("auto", CPU, OURS, None, None, ("bf16", FAST)),
        ("auto", CPU, {}, None, None, ("bf16", FAST)),  # of a published model no flags are known
        ("auto", CPU, OURS, None, SLOW, ("fp32", f"auto takes fp32: {SLOW}")),
        ("bf16", CPU, OURS, NO_LIBRARY, NO_LIBRARY, ("fp32", f"bf16 takes fp32: {NO_LIBRARY}")),
        ("bf16", CPU, THEIRS, None, None, ("fp32", f"bf16 {NOT_OURS}")),
        ("auto", CPU, THEIRS, None, None, ("fp32", f"auto {NOT_OURS}")),
    ],
)
def test_what_is_taken_of_what_is_asked_for(monkeypatch, asked, devices, train, lacking, slower, taken):
    monkeypatch.setattr(precision, "bf16_reasons", lambda: {"unsupported": lacking, "slower": slower})
    assert take_precision(asked, devices, train, auto_on_gpu="fp16") == PrecisionChoice(*taken)


def test_a_search_is_in_float32_on_a_gpu_unless_it_is_asked_for():
    assert take_search_precision("auto", GPU, {}) == PrecisionChoice("fp32", "auto is fp32 on a GPU")
    with pytest.raises(UserError, match="on a GPU fairseq generates in fp32 or fp16"):
        take_search_precision("bf16", GPU, {})


@pytest.mark.parametrize(
    ("units", "vendor", "found"),
    [
        ("AMX", "GenuineIntel", None),
        ("AVX512-BF16", "AuthenticAMD", None),
        ("AVX512-BF16", "GenuineIntel", "faster in float32 than in its AVX512-BF16 units"),
        ("none", "AuthenticAMD", "no units for it that may be used"),
    ],
)
def test_the_units_that_are_faster_than_float32(units, vendor, found, monkeypatch):
    monkeypatch.setattr(linear, "bf16_units", lambda: units)
    monkeypatch.setattr(linear.Path, "read_text", lambda path, **_: f"vendor_id\t: {vendor}\n")
    said = linear.slower()
    assert said is None if found is None else found in str(said)


def test_the_plugin_is_asked(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    found = bf16_reasons.__wrapped__()
    assert "no units for it that may be used" in str(found["unsupported"])
    assert found["slower"] == found["unsupported"]


def test_auto_on_a_gpu_is_the_published_precision(tmp_path):
    path = tmp_path / "model.yaml"
    text = "dataset: toy\nseeds: [1]\ntrain: {arch: a, max-update: 4}\n"
    for written, expected in (("", "fp32"), ("precision: fp16", "fp16"), ("precision: auto", "fp16")):
        path.write_text(text + written + "\n")
        config = load_config(path, precision="auto")
        assert config.precision == "auto"
        assert take_training_precision(config, GPU).precision == expected


def test_commands_say_their_precision(monkeypatch):
    """fairseq converts the model on a GPU alone; on a CPU the plugin is told by its variable."""
    monkeypatch.delenv(precision.VARIABLE, raising=False)
    monkeypatch.setattr(precision, "bf16_reasons", lambda: {"unsupported": None, "slower": None})
    config = Config(Path("model.yaml"), "model", "toy", [1], {"max-update": 4}, precision="bf16")
    given = train_command(config, 1, Path("data"), Path("out"), CPU)
    assert given[:2] == ["env", "LIGHTCONV_MATMUL=bf16"]
    assert "--bf16" not in given
    assert shell(given).startswith("LIGHTCONV_MATMUL=bf16 fairseq-train ")
    converted = train_command(config, 1, Path("data"), Path("out"), GPU)
    assert converted[0] == sys.executable
    assert "--bf16" in converted

    searched: Any = (config, {}, Path("data"), Path("model.pt"), "test")
    assert "--fp16" in generate_command(*searched, gpu=True, precision="fp16")
    assert "--bf16" not in generate_command(*searched, gpu=True)  # the training's is not the search's
    assert generate_command(*searched, gpu=False, precision="bf16")[:2] == ["env", "LIGHTCONV_MATMUL=bf16"]
    assert generate_command(*searched, gpu=False)[0] == sys.executable
    monkeypatch.setenv(precision.VARIABLE, "bf16")  # of the shell, against which a record of fp32 would be wrong
    for command in (
        generate_command(*searched, gpu=False),
        evaluate_command(config, Path("data"), Path("model.pt"), "test", gpu=False),
    ):
        assert command[:2] == ["env", "LIGHTCONV_MATMUL=fp32"]
