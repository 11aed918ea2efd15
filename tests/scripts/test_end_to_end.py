"""A tiny task through all stages from training on, with fairseq's real commands."""

import io
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.common.files import read_lines, write_json, write_lines
from data_prep.common.pipeline import STAMP, Stamp, read_stamp, sizes
from data_prep.common.process import python_module
from data_prep.dataset import load_dataset
from data_prep.text import bpe
from lightconv_plugin import LightConvModel
from lightconv_plugin.ops.fused.linear import lacking
from scripts import generate, score, translate, tune
from scripts.bench import __main__ as bench
from scripts.bench import ctranslate2
from scripts.bench import text as text_bench
from scripts.config import load_config
from scripts.fairseq_io import translator
from scripts.fairseq_io.commands import generate_command
from scripts.fairseq_io.precision import VARIABLE
from scripts.fairseq_io.trainlog import read_log
from scripts.fairseq_io.translator import Translator
from scripts.reproduce import __main__ as reproduce
from scripts.scoring.detokenise import detokeniser, unit_joiner
from scripts.scoring.metrics import metric
from scripts.translate import find_trained
from tests.ops.conftest import products_in

pytestmark = pytest.mark.usefixtures("forks")

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
CONFIG = """
dataset: debian_en_de
seeds: [1]
train:
  task: translation
  arch: pla_dynamicconv_small
  encoder-embed-dim: 32
  encoder-conv-dim: 32
  encoder-ffn-embed-dim: 32
  decoder-embed-dim: 32
  decoder-conv-dim: 32
  decoder-ffn-embed-dim: 32
  encoder-layers: 1
  decoder-layers: 1
  encoder-kernel-size-list: [3]
  decoder-kernel-size-list: [3]
  dropout: 0
  optimizer: adam
  lr: 0.01
  clip-norm: 1.0
  criterion: label_smoothed_cross_entropy
  max-tokens: 300
  max-source-positions: 40
  max-update: 150
  save-interval-updates: 25
  validate-interval: 1000
  keep-interval-updates: 3
  no-epoch-checkpoints: true
  num-workers: 0
  update-epoch-batch-itr: "True"
average: {by: update, last: 3}
generate: {beam: 2, max-len-b: 20, post-process: subword_nmt, max-tokens: 3000}
score: {metric: bleu}
"""


def write_corpus(folder: Path) -> None:
    """Write sentences of number words, translated word by word; in the raw text the full stop is attached."""
    rng = random.Random(5)
    (folder / "raw").mkdir(parents=True)
    # so few merges that some words have two subwords: there is something to split and to join
    counts = [(word, 9) for pair in WORDS.items() for word in pair]
    (folder / "codes").write_text(bpe.learn_from_counts(counts, merges=28), encoding="utf-8")
    cut = bpe.encoder(codes=str(folder / "codes"))
    for part, count in (("train", 300), ("valid", 20), ("test", 30)):
        lines = [rng.choices(list(WORDS), k=rng.randint(4, 6)) for _ in range(count)]
        for language, texts in (("en", lines), ("de", [[WORDS[word] for word in line] for line in lines])):
            write_lines(folder / f"{part}.{language}", (cut(" ".join([*text, "."])) for text in texts))
            write_lines(folder / "raw" / f"{part}.{language}", (f"{' '.join(text)}." for text in texts))


def run(main: Callable[[list[str]], None], *words: object) -> str:
    """Run a command in this process, and return its output; it starts fairseq's commands as processes."""
    out = io.StringIO()
    with redirect_stdout(out):
        main([*map(str, words)])
    return out.getvalue()


def run_stages(config: Path, work: Path, *more: str) -> str:
    return run(reproduce.main, config, "--work", work, "--from", "train", *more)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The folder of the prepared and binarised dataset, in a folder ``work``."""
    data = tmp_path_factory.mktemp("end") / "work" / "debian_en_de"
    write_corpus(data / "prepared")
    prefixes = [f"--{part}pref={data / 'prepared' / part}" for part in ("train", "valid", "test")]
    preprocess = [*python_module("fairseq_cli.preprocess"), "-s", "en", "-t", "de", "--joined-dictionary", *prefixes]
    subprocess.run([*preprocess, f"--destdir={data / 'binarised'}"], check=True, capture_output=True)
    files = sizes(data / "binarised")
    write_json(data / "binarised" / STAMP, asdict(Stamp("by hand", None, 0.0, "now", None, files)))
    return data


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def finished(data) -> tuple[Path, str]:
    """A configuration that has been run up to its row of the table, and the output."""
    config = data.parent.parent / "toy.yaml"
    config.write_text(CONFIG)
    return config, run_stages(config, data.parent)


@pytest.mark.slow
def test_from_binarised_data_to_a_row(data, finished):
    config, out = finished
    assert "all stages are done" in out
    model = data / "toy"
    record = read(model / "record.json")
    test, generation = record["seeds"]["1"]["test"], record["seeds"]["1"]["generation"]
    assert test["bleu"] == pytest.approx(generation["fairseq_bleu"], abs=0.01)
    assert record["summary"]["test"]["sacrebleu"]["best"] == test["sacrebleu"]
    assert f"{test['bleu']:.2f}" in out
    assert record["backend"]["dynamic_conv"] == "native"
    assert set(record["backend"].values()) == {"native"}
    assert record["parameters"] > 10_000
    seed = model / "seed1"
    training, losses = (
        record["seeds"]["1"]["training"],
        read_log(read_lines(seed / "checkpoints" / "train.log")).valid_loss,
    )
    assert (training["updates"], training["valid_loss"]) == (150, losses[150])
    for name, language in (("source", "en"), ("reference", "de")):
        raw = (data / "prepared" / "raw" / f"test.{language}").read_text()
        assert (seed / "hypotheses" / f"{name}.tok").read_text() == raw.replace(".", " .")
    assert "averaged:3 by update" in test["signature"]
    assert "Warning" not in (seed / "checkpoints" / "train.log").read_text()  # hydra and torch warn of fairseq's calls

    stamps = {name: read_stamp(seed / name) for name in ("checkpoints", "averaged", "hypotheses", "scores")}
    assert "all stages are done" in run_stages(config, data.parent)
    assert stamps == {name: read_stamp(seed / name) for name in stamps}


@pytest.mark.slow
def test_tuning_by_reordering_gives_what_fairseq_generates_with_each_length_penalty(data, finished):
    """For every penalty, reordering one search's hypotheses gives the same as a new search."""
    seed = data / "toy" / "seed1"
    config = data.parent.parent / "tuned.yaml"
    penalties = [0.0, 0.5, 1.0, 2.0]
    text = CONFIG.replace("beam: 2", "beam: 4").replace("last: 3", "last: 2")
    config.write_text(f"{text}tune: {{last: [1, 2], lenpen: {penalties}}}\n")
    where = ["--checkpoints", str(seed / "checkpoints"), "--data", str(data / "binarised")]
    out = data.parent.parent / "tuned"
    words = [config, *where, "--out", out]
    assert run(tune.main, *words).count("generating valid") == 2
    names = ["model.pt", "tune.csv", "tune.json", "tune.log", "valid"]
    assert sorted(path.name for path in out.glob("[!.]*")) == names
    sweep = read(out / "tune.json")
    assert [(trial["last"], trial["lenpen"]) for trial in sweep["candidates"]] == list(
        itertools.product([1, 2], penalties)
    )
    assert sweep["score"] == max(trial["score"] for trial in sweep["candidates"])
    assert len((out / "tune.csv").read_text().splitlines()) == 9
    chosen = {**sweep["chosen"]}
    for lenpen in {2.0, chosen["lenpen"]}:
        again = out / f"lenpen{lenpen}"
        (out / "again.json").write_text(json.dumps({"chosen": chosen | {"lenpen": lenpen}}))
        model = ["--model", str(out / "model.pt"), "--tuned", str(out / "again.json"), "--subset", "valid"]
        run(generate.main, config, *where[2:], *model, "--out", again)
        scores = {trial["lenpen"]: trial["score"] for trial in sweep["candidates"] if trial["last"] == chosen["last"]}
        lines = [(again / name).read_text().splitlines() for name in ("hypotheses.tok", "reference.tok")]
        assert metric(load_config(config))(*lines) == scores[lenpen]
        if lenpen == chosen["lenpen"]:
            assert (again / "hypotheses.tok").read_bytes() == (out / "valid" / "hypotheses.tok").read_bytes()


@pytest.fixture
def model(data, finished) -> Path:
    return data / "toy" / "seed1" / "averaged" / "model.pt"


def written(data: Path, language: str) -> list[str]:
    """Read the raw test set."""
    return read_lines(data / "prepared" / "raw" / f"test.{language}")


@pytest.fixture
def hypotheses(data, finished) -> list[str]:
    """The run's translations of the test set, as text."""
    lines = read_lines(data / "toy" / "seed1" / "hypotheses" / "hypotheses.tok")
    return list(map(detokeniser("de", load_dataset("debian_en_de")), lines))


@pytest.fixture
def ask(monkeypatch, capsys) -> Callable[..., list[str]]:
    """Return a function that runs scripts.translate in this process and returns the translations."""

    def answers(path: Path, text: bytes, *more: str) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        capsys.readouterr()
        translate.main([str(path), *more])
        return capsys.readouterr().out.splitlines()

    return answers


@pytest.mark.slow
def test_every_line_is_answered_at_once_and_faulty_lines_are_reported(data, model, ask, hypotheses):
    good, long = written(data, "en"), " ".join(["one"] * 120)
    bad = [b"", b"one two\xff three four.", b"\x00\x07 \x85".decode("latin-1").encode(), long.encode(), b" one\ttwo\r"]
    lines = [line.encode() for line in good] + bad
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*python_module("scripts.translate"), data / "toy"], cwd="/", **pipes) as process:
        assert process.stdin
        assert process.stdout
        first = []
        for line in lines[:2]:  # answered before the next line is sent
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            first.append(process.stdout.readline())
        out, err = process.communicate(b"\n".join(lines[2:]))  # the last line has no line end
    assert process.returncode == 0, err.decode()
    answers = (b"".join(first) + out).decode().split("\n")
    assert answers.pop() == ""
    assert len(answers) == len(lines)
    assert answers[:30] == hypotheses  # the translations of the run's test set, in order
    assert answers[30] == answers[32] == ""
    first_part = " ".join(long.split()[:39]).encode()
    assert answers[31:] == ask(model, b"\n".join([b"one two\xef\xbf\xbd three four.", b"", first_part, b"one two"]))
    warned = err.decode().splitlines()  # nothing is printed by libraries
    notes = ["32: not UTF-8", "34: 120 tokens, and the model takes 39: the rest was left out"]
    assert [line[: len(note) + 5] for line, note in zip(warned, notes, strict=True)] == [f"line {n}" for n in notes]
    assert ask(model, "\n".join(good[:9]).encode(), "--batch-size", "7") == answers[:9]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_search_is_in_the_precision_asked_for(precision, model, monkeypatch, caplog):
    """The variable of the shell is overridden."""
    if reason := lacking(precision):
        pytest.skip(reason)
    monkeypatch.setenv(VARIABLE, "of the shell")
    monkeypatch.setattr(translator, "load_plugin", lambda: None)  # loading it would silence the log
    trained = find_trained(model)
    with products_in("fp32"), caplog.at_level("INFO"):
        languages, settings = ("en", "de"), trained.generate
        search = Translator(trained.model, trained.dictionaries, languages, settings, precision=precision)
        assert search.translate(["one two ."])[0].endswith(".")
    assert f"weights packed for the search in {precision}: " in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(lacking("int8") is not None, reason="no units for int8")
def test_int8_of_a_configuration_and_its_record(data, finished, model, tmp_path, ask):
    """The log, generation.json and the scores' signature state int8; scripts.translate has it as an option."""
    config = tmp_path / "int8.yaml"
    config.write_text(CONFIG.replace("generate: {", "generate: {precision: int8, "))
    where = ["--data", data / "binarised", "--model", model, "--prepared", data / "prepared", "--out"]
    run(generate.main, config, *where, tmp_path / "by_config")
    run(generate.main, finished[0], *where, tmp_path / "by_flag", "--precision", "int8")
    for name in ("by_config", "by_flag"):
        assert read(tmp_path / name / "generation.json")["settings"]["precision"] == "int8"
        assert "packed for the search in int8" in (tmp_path / name / "generate.log").read_text()
    hypotheses = read_lines(tmp_path / "by_config" / "hypotheses.tok")
    assert hypotheses == read_lines(tmp_path / "by_flag" / "hypotheses.tok")
    scored = ["--hypotheses", tmp_path / "by_config", "--prepared", data / "prepared", "--out", tmp_path / "scores"]
    run(score.main, config, *scored)
    assert "|precision:int8" in read(tmp_path / "scores" / "scores.json")["signature"]
    assert "precision" not in read(data / "toy" / "seed1" / "scores" / "test" / "scores.json")["signature"]
    file, back = tmp_path / "my.en", detokeniser("de", load_dataset("debian_en_de"))
    write_lines(file, written(data, "en"))
    with products_in("fp32"):
        assert ask(model, b"", "--precision", "int8", str(file)) == list(map(back, hypotheses))


def test_a_file_is_timed_in_each_program(data, finished, tmp_path, monkeypatch):
    """fairseq-interactive and our search translate the same lines with the same model into as many subwords."""
    monkeypatch.setattr(ctranslate2, "compute_types", lambda device: [])
    monkeypatch.setattr(text_bench, "precisions", lambda args: ["fp32"])
    file, run_folder = tmp_path / "my.en", str(data / "toy")
    write_lines(file, [*written(data, "en"), ""])
    with products_in("fp32"):
        out = run(bench.main, "text", run_folder, run_folder, file, "--beam", 2)
    rows = [line.split() for line in out.splitlines() if line.startswith("toy")]
    assert [row[1:3] for row in rows] == [["fairseq-interactive", "fp32"], ["scripts.translate", "fp32"]]
    assert {row[3] for row in rows} == {str(len(written(data, "en")))}
    assert rows[0][5] == rows[1][5]
    with pytest.raises(UserError, match="there is no file"):
        bench.main(["text", run_folder, run_folder, str(tmp_path / "none")])


@pytest.mark.slow
def test_every_interface_gives_the_same_translations(data, finished, model, ask, hypotheses):
    """fairseq-generate, -interactive, the hub, and scripts.translate of a run and a checkpoint. ONNX: tests/export."""
    output = read_lines(data / "toy" / "seed1" / "hypotheses" / "hypotheses.tok")
    assert len(set(output)) > 10  # 30 of 30 in each of nine runs: three seeds, with AVX-512, AVX2 and without
    settings = find_trained(data / "toy").generate | {"batch-size": 1}
    command = generate_command(load_config(finished[0]), settings, data / "binarised", model, "test", gpu=False)
    position, units = command.index("fairseq_cli.generate"), read_lines(data / "prepared" / "test.en")
    command[position] = "fairseq_cli.interactive"
    printed = subprocess.run(command, input="\n".join(units).encode(), capture_output=True, check=True).stdout.decode()
    assert [line.split("\t")[2] for line in printed.split("\n") if line.startswith("H-")] == output

    joined = unit_joiner("subword_nmt")
    assert joined
    text = list(map(joined, units))  # joined: the model's own codes segment it again
    options: dict[str, Any] = {"data_name_or_path": str(data / "binarised"), "source_lang": "en", "target_lang": "de"}
    for lines, more in ((text, {}), (units, {"bpe": None})):
        hub = LightConvModel.from_pretrained(str(model.parent), model.name, **{**options, **more})
        translations = hub.translate(lines, beam=2, max_len_b=20)
        assert (list(map(joined, translations)) if more else translations) == output

    raw = "\n".join(written(data, "en")).encode()
    for path in (data / "toy", model):
        assert ask(path, raw) == hypotheses
