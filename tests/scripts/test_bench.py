"""The benchmark's arithmetic and its tables; how fast anything is, no test says."""

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops import library
from scripts.bench import __main__ as script
from scripts.bench import ctranslate2, decoding, kernels, operators, timing, training
from scripts.bench.operators import OURS, Measured, Shape
from scripts.common.errors import UserError
from scripts.fairseq_io.models import load_plugin, translation
from tests.ops.conftest import needs_bf16_units
from tests.tolerances import assert_close

CPU = torch.device("cpu")


def records(rows: Iterable[timing.Row]) -> list[dict[str, Any]]:
    return [{key: value for _, key, _, value in row} for row in rows]


def measured(operator: str, *shapes: Shape) -> Measured:
    return Measured([operator], list(shapes), torch.float32, CPU)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("time", "width"), [(1, 1), (2, 7), (7, 7), (9, 4)])
def test_taps_are_those_inside_the_sentence(time, width, causal):
    shape = Shape(time, 3, 4, 2, width, causal)
    inside = sum(0 <= i + j - shape.padding_l < time for i in range(time) for j in range(width))
    assert shape.taps == inside * 3 * 4
    x, weights = time * 3 * 4, time * 3 * 2 * width  # backward also reads a gradient and writes two
    assert shape.bytes_moved(True, 4, backward=True) == 4 * ((2 * x + weights) + (3 * x + 2 * weights))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("operator", ["light", "dynamic"])
def test_the_peers_compute_the_same(operator, causal):
    """With the same kernels fairseq's modes give what ours gives, so that like is timed with like."""
    torch.manual_seed(1)
    shape = Shape(11, 2, 12, 3, 5, causal)
    built = measured(operator, shape).cases(operator, shape)
    for case in built.values():
        assert case.run().shape == case.inputs[0].shape
        if case.inputs[1].numel() == built[OURS].inputs[1].numel():
            case.inputs[1].data.copy_(built[OURS].inputs[1].detach().view_as(case.inputs[1]))
    expected = built[OURS].run()
    for name in ("fairseq band", "fairseq unfold"):
        assert_close(built[name].run(), expected)


def test_every_case_is_timed_and_the_median_of_its_turns_counts(monkeypatch):
    now = 0.0

    def case(seconds: float) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            now += seconds

        return run

    with monkeypatch.context() as patch:
        patch.setattr(timing, "timer", lambda: now)
        patch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now))
        turns = timing.take_turns({"slow": case(0.02), "fast": case(0.002)}, 0.5)
    assert turns["slow"] == pytest.approx([0.02] * len(turns["slow"]))
    assert turns["fast"] == pytest.approx([0.002] * len(turns["fast"]))
    assert len(turns["slow"]) == len(turns["fast"]) > timing.MIN_TURNS
    monkeypatch.setattr(timing, "take_turns", lambda cases, seconds: {"a": [1.0, 2.0, 9.0]})
    assert timing.median_times({}, 1.0) == {"a": 2.0}
    assert timing.spread([5.0, 1.0, 2.0, 3.0, 4.0]) == pytest.approx((4 - 2) / 2 / 3)


SHAPE = Shape(4, 2, 8, 2, 3)


def test_ratios_are_to_fairseqs_best_mode_to_a_copy_and_to_the_first_length(monkeypatch):
    peers = {"fairseq band": 4.0, "fairseq unfold": 3.0, "conv1d": 2.0, "sdpa": 0.5}

    def times(self: Measured, cases: dict, backward: bool) -> dict:
        return {name: (3.0 if backward else 1.0) * peers.get(name, 1.0) for name in cases}

    monkeypatch.setattr(Measured, "times", times)
    monkeypatch.setattr(operators, "peak_flops", lambda device: SHAPE.taps * 16.0)
    for module in (operators, kernels):
        monkeypatch.setattr(module, "peak_bytes", lambda device: 2e9)
    forward, both = records(measured("light", SHAPE).beside_peers())
    assert (forward["pass"], forward["ours_ms"], both["pass"], both["ours_ms"]) == ("fwd", 1e3, "fwd+bwd", 3e3)
    assert (forward["ratio"], forward["fairseq_mode"]) == (3.0, "unfold")
    assert (forward["conv1d_ratio"], forward["sdpa_ratio"]) == (2.0, 0.5)
    assert forward["of_peak_flops"] == pytest.approx(2 / 16)
    shapes = (SHAPE, Shape(2, 2, 8, 2, 3))
    alone = [(row["pass"], row["ms"], row["to_first"]) for row in records(measured("light", *shapes).alone())]
    assert alone == [("fwd", 1e3, 1), ("fwd", 1e3, 2), ("fwd+bwd", 3e3, 1), ("fwd+bwd", 3e3, 2)]
    taken = {"ours": 2, "fairseq band": 8, "fairseq unfold": 6, "sdpa": 1}
    monkeypatch.setattr(Measured, "peak", lambda self, operator, shape, name: taken.get(name))
    (memory,) = records(measured("light", SHAPE).memory())
    assert (memory["ratio"], memory["fairseq_mode"]) == (3.0, "unfold")
    (table,) = kernels.tables(script.parse(["kernels", "--tokens", "128", "--channels", "64"]), CPU)
    kernel = records([next(table)])[0]
    assert kernel["ratio"] == pytest.approx(kernel["us"] / 1e12 * 2e9 / kernel["mbytes"])


@pytest.fixture
def small_models(monkeypatch):
    """Have searches in models of one layer a side."""
    sides = ("encoder", "decoder")

    def small(arch: str, vocab_size: int, flags: list[str], **task: str) -> Any:
        flags = [*flags, *(f"--{side}-layers=1" for side in sides)]
        if "conv" in arch:
            flags += [f"--{side}-kernel-size-list=[31]" for side in sides]
        return translation(arch, vocab_size, flags, **task)

    monkeypatch.setattr(decoding, "translation", small)


@pytest.mark.parametrize("width", [1, 7, 40])
def test_the_fft_computes_the_same_convolution(width):
    """From one seed both cases draw the same numbers."""
    args = script.parse(f"kernels --tokens 40 --channels 128 --length 20 --kernels {width}".split())
    results = []
    for name in ("light_conv", "light_conv by FFT"):
        torch.manual_seed(0)
        found = kernels.cases(args, kernels.sizes_of(args)[0], torch.float32, CPU)
        results.append(found[f"{name}, K = {width}, forward"][1]().forward())
    assert_close(results[1], results[0], torch.float32)


def test_what_kernels_are_compiled_to_without_a_gpu(tmp_path, capsys):
    """In the first size of several, and in the user's."""
    if not list(library.installed_nvrtc()):
        pytest.skip("NVRTC is not installed")
    given = "kernels --device sm_90 --tokens 64 --channels 64 --length 32,8 --kernels 3,70 --only float16"
    script.main([*given.split(), "--out", str(tmp_path / "records.json")])
    found = json.loads((tmp_path / "records.json").read_text())["records"]
    assert "kernels for sm_90" in capsys.readouterr().out
    assert {(each["length"], each["batch"]) for each in found} == {(32, 2), (8, 8)}
    assert {each["spilled"] for each in found if "K = 3," in each["kernel"]} == {"0"}
    assert all(8 <= int(each["registers"]) <= 128 and 0 < int(each["warps"]) <= 64 for each in found)
    assert all(each["instructions"] > 50 and "us" not in each for each in found)
    wide = [each for each in found if each["kernel"] == "dynamic_conv, K = 70, gradient of x"]
    assert [each["launched"] for each in wide] == ["grad_x", "row_sums"] * 4  # two types, and two sizes
    with pytest.raises(UserError, match="--device sm_91 is unknown, expected sm_ and one of 75, 80"):
        script.main(["kernels", "--device", "sm_91"])
    with pytest.raises(SystemExit):
        script.parse(["ops", "--device", "sm_90"])


@pytest.mark.parametrize("options", ["", "--length 8,16", "--kernels 3"])
def test_sizes_of_kernels(options):
    """The whole table on a GPU by default; a CPU has one small size."""
    args = script.parse(f"kernels --device cuda {options}".split())
    sizes = {(size.channels, size.length) for size in kernels.sizes_of(args)}
    if "--length" in options:
        assert sizes == {(1024, 8), (1024, 16)}
    else:
        assert sizes == {(1024, 512), (1024, 32), (1024, 8), (512, 32)}
    assert kernels.kernels_of(args) == ([3] if "--kernels" in options else [3, 7, 15, 31, 63, 255])
    assert kernels.sizes_of(script.parse(["kernels"])) == [(4096, 1024, 16, 128)]


SMALL = "--lengths 3,20 --tokens 20 --channels 8 --heads 2 --kernel 5"


@pytest.mark.parametrize(
    ("arguments", "count", "tables", "heading"),
    [
        (f"ops {SMALL}", 3 * 2 * 2, 1, "causal-conv1d"),
        (f"ops --no-peers {SMALL}", 3 * 2 * 2, 1, "to the first T"),
        (f"ops --layouts --operators light,dynamic {SMALL}", 2 * 2 * 2, 1, "with a state"),
        ("memory --lengths 64 --tokens 64 --channels 64 --heads 2 --kernel 5", 2, 1, "ours, bytes a token"),
        (
            "decode --vocab-size 40 --sentences 2 --length 3 --rows 8,16 --channels 64,128 --precisions fp32",
            8 + 6,
            2,
            "to fairseq's transformer",
        ),
    ],
)
@pytest.mark.usefixtures("small_models")
def test_commands_print_a_table_and_write_records(tmp_path, capsys, arguments, count, tables, heading):
    out, what = tmp_path / "records.json", arguments.split()[0]
    script.main([*arguments.split(), "--seconds", "0.01", "--out", str(out)])
    said, written = capsys.readouterr().out, json.loads(out.read_text())
    assert written["what"] == what
    assert len(written["records"]) == count
    assert f"{what} on " in said
    assert heading in said
    lines = said[said.index("operator  ") :].splitlines()
    rows = [line for line in lines if line.strip() and not line.startswith("measured ")]  # how far it is, now and then
    assert len(rows) == 2 * tables + count
    searched = [row for row in written["records"] if "task" in row]
    speeds = {(row["model"], row["task"], row["precision"]): row["sentences_a_second"] for row in searched}
    positive = ("ms", "ratio", "to_first", "batch_first", "state", "packed", "packed_uneven", "packed_states")
    for record in written["records"]:
        assert [record[key] for key in positive if not record.get(key, 1) > 0] == []
        if "fairseq_ms" in record:
            assert record["ratio"] == pytest.approx(record["fairseq_ms"] / record["ours_ms"])
        if "token_ms" in record:  # two sentences of three words and an end
            speed = record["sentences_a_second"]
            assert record["token_ms"] == pytest.approx(1e3 * 2 / speed / 4)
            assert record["to_transformer"] == pytest.approx(speed / speeds[decoding.BASELINE])
            assert record["kernels"] is None  # a CPU has none


@pytest.mark.usefixtures("small_models")
def test_searches_on_a_gpu(monkeypatch):
    """Ours with graphs and without in place of our models in fairseq's search; computed on a CPU here."""
    load_plugin()
    made: list[decoding.Search] = []

    class OnCPU(decoding.Search):
        def __init__(self, built: Any, length: int, _: torch.device, precision: str) -> None:
            super().__init__(built, length, CPU, precision)

        def run(self, source: torch.Tensor) -> Callable[[], None]:
            made.append(self)
            return super().run(source)

    monkeypatch.setattr(decoding, "Search", OnCPU)
    monkeypatch.setattr(decoding, "kernels_of", lambda case, device: (8, 8e-3))
    args = script.parse(["decode", "--vocab-size", "40", "--sentences", "2", "--length", "3", "--seconds", "0.01"])
    found = records(decoding.measure_search(args, torch.device("cuda"), ["fp32"], []))
    tasks = ["translation"] * 2 + ["pla_translation"] * 2 + [decoding.NO_GRAPH] * 2
    assert [record["task"] for record in found] == tasks
    assert [getattr(each.generator, "captures", None) for each in made] == [None, None, True, True, False, False]
    # a token, of three words and an end
    assert {(record["kernels"], record["kernels_ms"]) for record in found} == {(2.0, 2.0)}


def test_both_precisions_take_turns(monkeypatch):
    """Every update in its own precision, on batches of several lengths; fairseq's convolutions in fp32 alone."""
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
    monkeypatch.setattr(training, "_batch", lambda *given: batches.setdefault(len(batches), make(*given)))
    args = script.parse(["train", "--vocab-size", "40", "--tokens", "64", "--seconds", "0.01", "--shapes", "2"])
    found = records(training.measure(args, CPU, chosen, 16))
    rows = {(row["model"], row["precision"]): row for row in found}
    speeds = {key: row["words_a_second"] for key, row in rows.items()}
    twice = {(name, precision) for name in (ours, training.TRANSFORMER) for precision in ("fp32", "bf16")}
    assert set(rows) == {(peer, "fp32"), *twice}
    for name, precision in twice:
        compared = speeds[name, precision] / speeds[training.TRANSFORMER, precision]
        assert rows[name, precision]["to_transformer"] == pytest.approx(compared)
    assert rows[ours, "fp32"]["to_peer"] == pytest.approx(speeds[ours, "fp32"] / speeds[peer, "fp32"])
    assert rows[ours, "bf16"]["to_fp32"] == pytest.approx(speeds[ours, "bf16"] / speeds[ours, "fp32"])
    assert rows[ours, "bf16"]["to_peer"] is rows[ours, "fp32"]["to_fp32"] is None
    words = sum(int(batch["target"].ne(1).sum()) for batch in batches.values()) / len(batches)  # 1: padding
    assert speeds[ours, "fp32"] * rows[ours, "fp32"]["update_ms"] / 1e3 == pytest.approx(words)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_products_in_a_precision_are_ours_or_pytorchs(precision):
    if precision == "bf16":
        needs_bf16_units()
    weight, before = torch.randn(20, 30), timing.MATMUL.fp32_precision
    with timing.products_in(precision, "pla_lightconv_small"):
        assert (ops.pack_weight(weight) is not None) == (precision == "bf16")
        assert timing.MATMUL.fp32_precision == before
    with timing.products_in(precision, "transformer"):
        assert timing.MATMUL.fp32_precision == {"fp32": "ieee", "bf16": "bf16"}[precision]
    assert timing.MATMUL.fp32_precision == before
    assert ops.pack_weight(weight) is None


def test_models_of_other_depths():
    deep = training.models(64, [3, 2])
    assert "31,31,31" in deep[-1].label
    load_plugin()
    for entry, layers in ((deep[0], (2, 2)), (deep[4], (3, 2)), (deep[-1], (3, 2))):
        built = translation(entry.arch, 40, list(entry.flags)).model
        assert (len(built.encoder.layers), len(built.decoder.layers)) == layers


@pytest.mark.parametrize(
    "flags", ["--memory-efficient-bf16", "--optimizer sgd --encoder-layerdrop 0.1", "--criterion=cross_entropy"]
)
def test_updates_are_timed_with_flags_of_fairseq_train(flags, monkeypatch):
    """On a GPU their kernels are counted, too."""
    load_plugin()
    args = script.parse(["train", *["--vocab-size", "40", "--tokens", "64", "--seconds", "0.01"], f"--flags={flags}"])
    entries = training.models(128, [2, 2])
    found = records(training.measure(args, CPU, [entries[0], entries[2]], 128))
    assert [record["words_a_second"] > 0 for record in found] == [True, True]
    assert "kernels" not in found[0]
    monkeypatch.setattr(training, "kernels_of", lambda update, device: (899, 5.8e-3))
    found = records(training.measure(args, CPU, [entries[2]], 128))
    assert [found[0][name] for name in ("kernels", "kernels_ms")] == [899, 5.8]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("ops --kernel 4", "--kernel 4 is even, so it has no middle; choose an odd width, or add --causal"),
        ("memory --heads 3", "--heads 3 does not divide --channels 512; choose a divisor"),
        ("train --tokens 31", "--tokens 31 has no room for a sentence of 32 words; give at least 32"),
        ("train --flags=--nonsense", "fairseq-train refuses its flags: unrecognized arguments: --nonsense"),
        ("train --flags=--fp16", "with --flags='--fp16': --fp16 needs a GPU"),
        ("train --flags=--tpu", "with --flags='--tpu': 'NoneType' object has no attribute 'xla_device'"),
        ("train --tokens 63 --shapes 2", "--tokens 63 has no room for a sentence of 64 words; give at least 64"),
        ("train --models heavy", "--models heavy names none of fairseq transformer, fairseq lightconv 3,15, ours"),
        ("train --layers 3", "--layers has 1 numbers; give those of encoder and decoder, as in 7,6"),
        ("train --precisions bf16", "--precisions is bf16, expected fp32 or fp32,bf16"),
        (
            "train --device cuda --precisions fp32,bf16",
            "bf16: it is for products on a CPU; for a GPU take --flags=--bf16",
        ),
        ("ops --operators heavy", "no operator heavy; choose from light, dynamic"),
        (
            "train --flags='--encoder-layers 3'",
            "--encoder-layers 3: fairseq-train cannot take its flags together: encoder_kernel_size_list doesn't match",
        ),
    ],
)
def test_arguments_that_cannot_run_are_refused_in_a_sentence(arguments, sentence):
    load_plugin()
    args = script.parse(shlex.split(arguments))
    module = importlib.import_module(f"scripts.bench.{script.MODULES[args.what]}")
    with pytest.raises(UserError, match=re.escape(sentence)) as refused:
        [list(rows) for rows in module.tables(args, torch.device(args.device))]
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "arguments", ["ops --heads 0", "ops --lengths 3,", "ops --device tpu", "decode --length -1", "decode --rows 6"]
)
def test_arguments_that_are_none_are_refused_with_the_usage(capsys, arguments):
    with pytest.raises(SystemExit):
        script.parse(arguments.split())
    assert ", expected " in capsys.readouterr().err.splitlines()[-1]


def test_a_gpu_by_its_number_is_the_one_that_is_measured(monkeypatch):
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(timing, "machine", str)
    monkeypatch.setattr(training, "tables", lambda args, device: iter(()))
    script.main(["train", "--device", "cuda:1"])
    assert chosen == [1]
    with pytest.raises(UserError, match=r"cuda:2: torch .* sees no CUDA device of that number, 2 in all"):
        script.main(["train", "--device", "cuda:2"])


class Here:
    """Stands for the process of a peer."""

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, function: Callable, *arguments: object) -> SimpleNamespace:
        found = function(*arguments)
        return SimpleNamespace(result=lambda: found)


def test_ctranslate2_works_on_the_same_gpu(monkeypatch):
    asked: list[object] = []

    def supported(*place: object) -> set[str]:
        asked.append(place)
        return {"int8"}

    peer = SimpleNamespace(
        get_supported_compute_types=supported,
        Translator=lambda folder, **options: asked.append((options["device"], options["device_index"])),
    )
    monkeypatch.setitem(sys.modules, "ctranslate2", peer)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: peer)
    monkeypatch.setattr(ctranslate2, "_process", Here)
    monkeypatch.setattr(ctranslate2, "_convert", lambda folder: None)
    words = SimpleNamespace(save=lambda path: None)
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    built: Any = SimpleNamespace(args=None, model=SimpleNamespace(state_dict=dict), task=task)
    assert ctranslate2.compute_types(torch.device("cuda:1")) == ["int8"]
    ctranslate2.Translator(built, torch.device("cuda:1"), "int8")
    assert asked == [("cuda", 1)] * 2


@pytest.mark.parametrize(
    ("sizes", "expected"), [((), 2**26), (("48K", "40960K"), 2 * 40960 * 2**10), (("600000K",), 2**30)]
)
def test_bytes_that_no_cache_holds(tmp_path, monkeypatch, sizes, expected):
    for number, size in enumerate(sizes):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    monkeypatch.setattr(timing, "CPU_CACHES", tmp_path)
    assert timing.beyond_cache(CPU) == expected
