"""The precision of trainings and searches on any device; nothing is timed."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightconv_plugin import ops
from scripts.common.errors import UserError
from scripts.fairseq_io import precision
from scripts.fairseq_io.commands import evaluate_command, generate_command, shell, train_command
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.precision import (
    Products,
    Taken,
    bf16_unsupported_reason,
    check_precision,
    measured_ratio,
    of_search,
    of_training,
    take_precision,
    take_search_precision,
    take_training_precision,
)
from scripts.pipeline.config import Config, load_config

CPU, GPU, OLD_GPU = Devices(gpu=False, count=1), Devices(gpu=True, count=1, bf16=True), Devices(gpu=True, count=1)
PRODUCTS = Products(4096, 512, backward=True)


def take(asked: str, devices: Devices) -> Taken:
    return take_precision(asked, devices, PRODUCTS, auto_on_gpu="fp16")


@pytest.fixture(autouse=True)
def _units(monkeypatch):
    """A processor that has the units, and products that are 3 times as fast with them."""
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", precision.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(precision, "measured_ratio", lambda products: 3.0)
    monkeypatch.setattr(precision, "bf16_unsupported_reason", lambda: None)


@pytest.mark.parametrize("devices", [GPU, OLD_GPU])
def test_on_a_gpu_the_paper_s_fp16_stays_fp16(devices):
    assert take("fp16", devices) == Taken("fp16")
    assert take("fp32", devices) == Taken("fp32")
    assert take("auto", devices).precision == "fp16"


def test_precisions_that_the_devices_do_not_have():
    assert take("bf16", GPU) == Taken("bf16")
    with pytest.raises(UserError, match="bf16, which these GPUs do not compute in; take fp16 or fp32"):
        take("bf16", OLD_GPU)
    with pytest.raises(UserError, match="bf16, which these GPUs do not compute in; take fp16 or fp32"):
        take_precision("auto", OLD_GPU, PRODUCTS, auto_on_gpu="bf16")
    assert take_search_precision("auto", GPU, {}, {}) == Taken("fp32", "auto is fp32 on a GPU")
    assert take("fp16", CPU) == Taken("fp32", "fp16 is for GPUs, and torch sees none: trained in fp32")
    check_precision("fp16", gpu=True)
    check_precision("bf16", gpu=False)
    with pytest.raises(UserError, match="--precision is fp16, which is for GPUs"):
        check_precision("fp16", gpu=False)
    with pytest.raises(UserError, match="on a GPU fairseq generates in fp32 or fp16"):
        take_search_precision("bf16", GPU, {}, {})


def test_a_processor_without_the_units_computes_in_float32(monkeypatch):
    monkeypatch.setattr(precision, "bf16_unsupported_reason", lambda: "its library could not be compiled")
    monkeypatch.setattr(precision, "measured_ratio", lambda products: "its library could not be compiled")
    for asked in ("bf16", "auto"):
        assert take(asked, CPU) == Taken("fp32", f"{asked} takes fp32: its library could not be compiled")


def test_auto_on_a_cpu_is_what_a_measurement_says_is_faster(monkeypatch):
    assert take("bf16", CPU) == Taken("bf16")
    taken = take("auto", CPU)
    assert taken.precision == "bf16"
    assert "4,096 x 512 products are 3.00 times as fast in bf16 as in fp32" in str(taken.reason)
    assert take("auto", Devices(gpu=False, count=1, nodes=2, rendezvous="a:1")).precision == "fp32"
    monkeypatch.setattr(precision, "measured_ratio", lambda products: 1.05)
    assert take("auto", CPU).precision == "fp32"


def test_fairseq_s_own_models_stay_in_float32_on_a_cpu():
    theirs = {"arch": "transformer_iwslt_de_en"}
    for asked in ("bf16", "auto"):
        taken = take_search_precision(asked, CPU, theirs, {})
        assert taken == Taken("fp32", f"{asked} takes fp32: on a CPU fairseq's own models compute in nothing else")
        assert take_search_precision(asked, CPU, {"arch": "pla_dynamicconv_small"}, {}).precision == "bf16"


def test_both_precisions_are_measured(monkeypatch):
    at_once = precision._MEASURE.replace("time.perf_counter() + 1", "time.perf_counter()")
    at_once = at_once.replace("if reason := lacking():", "if False:")  # on any processor
    monkeypatch.setattr(precision, "_MEASURE", at_once)
    for backward in (False, True):
        assert float(measured_ratio(Products(8, 16, backward))) > 0


@pytest.mark.parametrize("backward", [False, True])
def test_the_products_that_are_measured_keep_their_size(backward, monkeypatch):
    """However many turns there are. A search's weights are packed, where there are units for them."""
    taken: dict[str, list[tuple[int, bool]]] = {"fp32": [], "bf16": []}
    now = ["fp32"]
    monkeypatch.setattr(ops, "set_precision", lambda chosen: now.append(chosen))
    monkeypatch.setattr(ops, "pack_weight", lambda weight: weight)
    monkeypatch.setattr("lightconv_plugin.ops.auxiliary.linear.lacking", lambda: None)

    def linear(x, weight, packed=None):
        taken[now[-1]].append((len(x), packed is not None))
        return x @ weight.T

    monkeypatch.setattr(ops, "linear", linear)
    monkeypatch.setattr(sys, "argv", ["-c", "40", "8", str(int(backward))])
    before = torch.is_grad_enabled()
    exec(precision._MEASURE.replace("while turn < 5", "while turn < 50"), {})
    torch.set_grad_enabled(before)
    for chosen, calls in taken.items():
        assert {packed for _, packed in calls} == {chosen == "bf16" and not backward}
        assert {rows for rows, _ in calls} == {*range(25, 41)}


def test_the_plugin_is_asked(monkeypatch):
    monkeypatch.undo()
    bf16_unsupported_reason.cache_clear()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert "no units for it that may be used" in str(bf16_unsupported_reason())
    assert "ONEDNN_MAX_CPU_ISA is AVX2" in str(bf16_unsupported_reason())
    assert measured_ratio(Products(1, 2, backward=False)) == bf16_unsupported_reason()
    bf16_unsupported_reason.cache_clear()


def test_what_is_measured_has_the_size_of_the_batch():
    wide = Config(Path("a.yaml"), "a", "toy", [1], {"encoder-embed-dim": 256, "max-tokens": 900})
    assert of_training(wide, CPU) == Products(900, 256, backward=True)
    shared = Config(Path("a.yaml"), "a", "toy", [1], batch={"tokens": 8000, "max-tokens": 4000})
    assert of_training(shared, Devices(gpu=False, count=4)) == Products(2000, 512, backward=True)
    theirs = Config(Path("a.yaml"), "a", "toy", [1], {"arch": "transformer_iwslt_de_en"})
    assert not of_training(theirs, CPU).ours
    assert of_training(Config(Path("a.yaml"), "a", "toy", [1], {"arch": "pla_dynamicconv_small"}), CPU).ours
    assert of_search(wide.train, {"beam": 4, "batch-size": 10}) == Products(40, 256, backward=False)


def test_auto_on_a_gpu_is_the_published_precision(tmp_path):
    path = tmp_path / "model.yaml"
    text = "dataset: toy\nseeds: [1]\ntrain: {arch: a, max-update: 4}\n"
    for written, expected in (("", "fp32"), ("precision: fp16", "fp16"), ("precision: auto", "fp16")):
        path.write_text(text + written + "\n")
        config = load_config(path, precision="auto")
        assert config.precision == "auto"
        assert take_training_precision(config, GPU).precision == expected
    assert take_search_precision("auto", GPU, {}, {}).precision == "fp32"


def test_commands_say_their_precision(monkeypatch):
    """fairseq converts the model on a GPU alone; on a CPU the plugin is told by its variable."""
    config = Config(Path("model.yaml"), "model", "toy", [1], {"max-update": 4}, precision="bf16")
    given = train_command(config, 1, Path("data"), Path("out"), CPU)
    assert given[:2] == ["env", "LIGHTCONV_MATMUL=bf16"]
    assert "--bf16" not in given
    assert shell(given).startswith("LIGHTCONV_MATMUL=bf16 fairseq-train ")
    converted = train_command(config, 1, Path("data"), Path("out"), GPU)
    assert converted[0] == sys.executable
    assert "--bf16" in converted

    searched: Any = (config, {}, Path("data"), Path("model.pt"), "test")
    assert generate_command(*searched, gpu=False, precision="bf16")[:2] == ["env", "LIGHTCONV_MATMUL=bf16"]
    assert generate_command(*searched, gpu=False)[0] == sys.executable
    monkeypatch.setenv(precision.VARIABLE, "bf16")  # of the shell, against which a record of fp32 would be wrong
    for command in (
        generate_command(*searched, gpu=False),
        evaluate_command(config, Path("data"), Path("model.pt"), "test", gpu=False),
    ):
        assert command[:2] == ["env", "LIGHTCONV_MATMUL=fp32"]
