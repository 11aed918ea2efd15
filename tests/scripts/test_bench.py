"""The benchmark's arithmetic and its tables. No test asserts a speed."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data_prep.common.errors import UserError
from lightconv_plugin.ops import backend
from scripts.bench import __main__ as script
from scripts.bench import ctranslate2, decoding, kernels, operators, text, timing, training
from scripts.bench.operators import OURS, Shape, cases
from scripts.fairseq_io.models import load_plugin, translation
from tests.tolerances import assert_close

CPU = torch.device("cpu")


def records(rows: Iterable[timing.Row]) -> list[dict[str, Any]]:
    return [{heading: value for heading, _, value in row} for row in rows]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("operator", ["light", "dynamic"])
def test_the_compared_operators_compute_the_same(operator, causal):
    """With the same kernels, fairseq's modes and ours have equal results, so their times can be compared."""
    torch.manual_seed(1)
    built = cases(operator, Shape(11, 2, 12, 3, 5, causal), torch.float32, CPU)
    for case in built.values():
        assert case.run().shape == case.inputs[0].shape
        if case.inputs[1].numel() == built[OURS].inputs[1].numel():
            case.inputs[1].data.copy_(built[OURS].inputs[1].detach().view_as(case.inputs[1]))
    expected = built[OURS].run()
    for name in ("fairseq band", "fairseq unfold"):
        assert_close(built[name].run(), expected)


@pytest.mark.parametrize("operator", ["light", "dynamic"])
def test_one_kernel_per_channel_is_compared_with_naive_pytorch_and_a_copy(operator, monkeypatch):
    built = operators.cases_by_channel(operator, Shape(11, 2, 12, 12, 4, causal=True), torch.float32, CPU)
    assert_close(built["naive"].run(), built[OURS].run())
    gradient = torch.randn(2, 11, 12)
    pairs = (torch.autograd.grad(built[name].run(), built[name].inputs, gradient) for name in ("naive", OURS))
    for got, expected in zip(*pairs, strict=True):
        assert_close(got, expected)
    copied = [
        sum(tensor.numel() for tensor in operators.copy_of(built[OURS], backward)()) for backward in (False, True)
    ]
    x, kernels = (tensor.numel() for tensor in built[OURS].inputs)
    assert copied == [2 * x + kernels, 5 * x + 3 * kernels]
    monkeypatch.setattr(operators, "BY_CHANNEL", [(5, 2, 8, 4)])
    monkeypatch.setattr(operators, "median_times", lambda cases, _: {OURS: 2e-3, "naive": 8e-3, "copy": 1e-3})
    rows = records(operators.measure_by_channel(script.parse(["ops"]), CPU))
    assert [row["pass"] for row in rows] == ["fwd", "fwd+bwd"] * 2
    assert {(row["ours ms"], row["naive"], row["time / the copy's"]) for row in rows} == {(2.0, 4.0, 2.0)}


def test_every_case_is_timed_and_the_median_of_its_turns_counts(monkeypatch):
    now = 0.0

    def case(seconds: float) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            now += seconds

        return run

    with monkeypatch.context() as patch:
        patch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now))
        turns = timing.take_turns({"slow": case(0.02), "fast": case(0.002)}, 0.5, clock=lambda: now)
    assert turns["slow"] == pytest.approx([0.02] * len(turns["slow"]))
    assert turns["fast"] == pytest.approx([0.002] * len(turns["fast"]))
    assert len(turns["slow"]) == len(turns["fast"]) > timing.MIN_TURNS
    monkeypatch.setattr(timing, "take_turns", lambda cases, seconds: {"a": [1.0, 2.0, 9.0]})
    assert timing.median_times({}, 1.0) == {"a": 2.0}
    assert timing.spread([5.0, 1.0, 2.0, 3.0, 4.0]) == pytest.approx((4 - 2) / 2 / 3)


@pytest.mark.parametrize("logged_first", [False, True])
def test_the_time_of_fairseq_interactive_is_read_from_either_of_its_outputs(logged_first, monkeypatch):
    """fairseq's first import decides where it logs."""
    hypotheses, total = (
        "H-0\t-0.5\ta b\n",
        "INFO:fairseq_cli.interactive:Total time: 2.5 seconds\n",
    )
    outputs = (hypotheses, total) if logged_first else (hypotheses + total, "")
    monkeypatch.setattr(text, "ask_python", lambda *arguments, **options: outputs)
    trained: Any = SimpleNamespace(dataset="debian_en_de", dictionaries=Path(), model=Path(), generate={})
    assert text.interactive(trained, ["x"], 4) == (2.5, 2)
    monkeypatch.setattr(text, "ask_python", lambda *arguments, **options: (hypotheses, "the last words"))
    with pytest.raises(UserError, match=r"printed no `Total time.*its last line: the last words"):
        text.interactive(trained, ["x"], 4)


def test_ratios_are_to_fairseqs_best_mode(monkeypatch):
    peers = {"fairseq band": 4.0, "fairseq unfold": 3.0, "conv1d": 2.0, "sdpa": 0.5}
    monkeypatch.setattr(operators, "median_times", lambda cases, _: {name: peers.get(name, 1.0) for name in cases})
    args = script.parse(["ops", "--lengths=4", "--tokens=8", "--channels=8", "--heads=2", "--kernel=3"])
    light, *_ = records(operators.measure(args, CPU))
    assert [light[name] for name in ("ours ms", "ratio", "its mode", "conv1d", "sdpa")] == [
        1e3,
        3.0,
        "unfold",
        2.0,
        0.5,
    ]


def test_kernels_are_compared_with_a_copy(monkeypatch):
    monkeypatch.setattr(kernels, "BEYOND_CACHE", 2**12)
    times = iter([2**13 / 1e9])  # the copy's time: 1 GB/s

    def median_time(calls: list[kernels.Call], device: torch.device) -> float:
        calls[0]()
        return next(times, 1e-3)

    monkeypatch.setattr(kernels, "median_time", median_time)
    (table,) = kernels.tables(script.parse(["kernels", "--tokens=128", "--channels=64", "--kernels=3"]), CPU)
    rows = records(table)
    assert len({row["kernels"] for row in rows}) == 2 * 4
    assert "dynamic_conv, K = 3, gradient of x and weight" in {row["kernels"] for row in rows}
    for row in rows:
        assert row["time / a copy's"] == pytest.approx(row["us"] * 1e-6 * 1e9 / (row["MB"] * 1e6))


@pytest.mark.parametrize(
    ("int8_reason", "options", "searches_in_all"),
    [(None, [], 11), ("it is too old", [], 9), (None, ["--reference"], 17)],
)
def test_steps_and_searches_are_compared_with_fairseqs(int8_reason, options, searches_in_all, monkeypatch, capsys):
    sizes = ("layers=1", "embed-dim=32", "ffn-embed-dim=32")

    def small(arch: str, vocab_size: int, flags: list[str], **task: str) -> Any:
        more = [*sizes, *(["kernel-size-list=[31]"] if "conv" in arch else [])]
        flags = [*flags, *(f"--{side}-{size}" for side in ("encoder", "decoder") for size in more)]
        return translation(arch, vocab_size, flags, **task)

    monkeypatch.setattr(timing, "MIN_TURNS", 2)
    monkeypatch.setattr(decoding, "translation", small)
    monkeypatch.setattr(decoding, "CHANNELS", (64,))
    monkeypatch.setattr(timing, "processor_reasons", lambda: {"bf16": None, "int8": int8_reason})
    monkeypatch.setattr(ctranslate2, "compute_types", lambda device: [])
    args = script.parse(["decode", "--vocab-size=40", "--sentences=2", "--length=3", "--seconds=0.01", *options])
    load_plugin()
    steps, searches = map(records, decoding.tables(args, CPU))
    assert (len(steps), len(searches)) == (4, searches_in_all)
    assert ("not measured in int8: it is too old" in capsys.readouterr().out) == (int8_reason is not None)
    speeds = {(row["model"], row["task"], row["products"]): row["sentences/s"] for row in searches}
    assert {(row["task"], row["made by"]) for row in searches} == {
        ("translation", "fairseq"),
        ("pla_translation", "operator"),
        *([(decoding.BY_REFERENCE, "kernels")] if options else []),
    }
    for row in searches:  # two sentences of three words and an end symbol
        assert row["ms a token"] == pytest.approx(1e3 * 2 / row["sentences/s"] / 4)
        assert row["to fairseq's transformer"] == pytest.approx(row["sentences/s"] / speeds[decoding.BASELINE])


def test_the_library_is_passed_over_for_the_named_operators_only():
    x = torch.randn(1, 4, 64)
    with torch.no_grad(), decoding.by_reference(decoding.SEARCH_OPERATORS):
        assert not backend.takes("attend", x)
        assert backend.takes("conv_step", x)
    with torch.no_grad():
        assert all(backend.takes(operator, x) for operator in decoding.SEARCH_OPERATORS)


def test_both_precisions_take_turns(monkeypatch):
    """Each update runs in its own precision, on batches of several lengths; fairseq's convolutions in fp32 only."""
    monkeypatch.setattr(timing, "MIN_TURNS", 2)
    load_plugin()
    entries = training.in_precisions(training.models(16, [2, 1]), ["fp32", "bf16"])
    assert [entry.label for entry in entries if entry.precision == "bf16"] == [
        "fairseq transformer",
        *(f"ours {name} {kernels}" for kernels in ("3,15", "31,31") for name in ("lightconv", "dynamicconv")),
    ]
    ours, peer = "ours dynamicconv 3,15", "fairseq dynamicconv 3,15"
    chosen = [entry for entry in entries if entry.label in (ours, peer, training.TRANSFORMER)]
    batches: dict[int, dict[str, Any]] = {}
    make = training._batch
    monkeypatch.setattr(training, "_batch", lambda *arguments: batches.setdefault(len(batches), make(*arguments)))
    args = script.parse(["train", "--vocab-size", "40", "--tokens", "64", "--seconds", "0.01", "--shapes", "2"])
    measured = records(training.measure(args, CPU, chosen, 16))
    rows = {(row["model"], row["products"]): row for row in measured}
    speeds = {key: row["words/s"] for key, row in rows.items()}
    in_both = {(name, precision) for name in (ours, training.TRANSFORMER) for precision in ("fp32", "bf16")}
    assert set(rows) == {(peer, "fp32"), *in_both}
    for name, precision in in_both:
        compared = speeds[name, precision] / speeds[training.TRANSFORMER, precision]
        assert rows[name, precision]["to its transformer"] == pytest.approx(compared)
    assert rows[ours, "fp32"]["to fairseq's"] == pytest.approx(speeds[ours, "fp32"] / speeds[peer, "fp32"])
    assert rows[ours, "bf16"]["to fp32"] == pytest.approx(speeds[ours, "bf16"] / speeds[ours, "fp32"])
    words = sum(int(batch["target"].ne(1).sum()) for batch in batches.values()) / len(batches)  # 1: padding
    assert speeds[ours, "fp32"] * rows[ours, "fp32"]["ms an update"] / 1e3 == pytest.approx(words)


def test_models_of_other_depths_and_flags_of_fairseq_train():
    deep = training.models(64, [3, 2])
    assert "31,31,31" in deep[-1].label
    load_plugin()
    for entry, layers in ((deep[0], (2, 2)), (deep[4], (3, 2)), (deep[-1], (3, 2))):
        built = translation(entry.arch, 40, list(entry.flags)).model
        assert (len(built.encoder.layers), len(built.decoder.layers)) == layers
    flags = "--flags=--optimizer sgd --criterion=cross_entropy"
    args = script.parse(["train", "--vocab-size=40", "--tokens=64", "--seconds=0.01", flags])
    row, _ = records(training.measure(args, CPU, training.models(64, [3, 2], graphs=True)[:2], 64))
    assert (row["words/s"] > 0, row["made by"]) == (True, "kernels")
    for flag, error in (("--flags=--nonsense", "unrecognized arguments: --nonsense"), ("--models=heavy", "names none")):
        with pytest.raises(UserError, match=error):
            [list(rows) for rows in training.tables(script.parse(["train", flag]), CPU)]


def test_the_command_prints_tables_of_the_gpu_that_is_named(monkeypatch, capsys):
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(timing, "machine", str)
    row = [("model", "{}", "a"), ("ratio", "{:.1f}x", 2), ("to its", "{}", None)]
    monkeypatch.setattr(training, "tables", lambda args, device: iter([[row]]))
    script.main(["train", "--device", "cuda:1"])
    assert chosen == [1]
    head, names, _, cells, *_ = capsys.readouterr().out.splitlines()
    assert (head, names.split(), cells.split()) == (
        "train on cuda:1",
        ["model", "ratio", "to", "its"],
        ["a", "2.0x", "-"],
    )
