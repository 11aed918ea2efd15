"""Lines through a tiny trained model, as a user asks it: by the command, on raw text, good and bad."""

import argparse
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from subword_nmt.learn_bpe import get_vocabulary

from data_prep.dataset import Dataset, Step, load_dataset
from data_prep.lines import line_steps
from data_prep.text import bpe, sentencepiece
from lightconv_plugin.export import __main__ as export
from lightconv_plugin.models import LightConvModel
from scripts import translate
from scripts.common.errors import UserError
from scripts.common.process import python_module
from scripts.fairseq_io import translator
from scripts.fairseq_io.commands import generate_command
from scripts.fairseq_io.generation import run_generation
from scripts.fairseq_io.precision import VARIABLE
from scripts.fairseq_io.translator import Translator
from scripts.pipeline.config import Config
from scripts.pretrained import codes_file
from scripts.scoring.detokenise import detokeniser, unit_joiner
from scripts.translate import Trained, find_trained

pytestmark = pytest.mark.usefixtures("forks")

CHECKOUT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
LATIN = ENVIRONMENT | {"PYTHONIOENCODING": "latin-1"}
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
POSITIONS = 40
SIZES = [
    f"--{side}-{what}=32" for side in ("encoder", "decoder") for what in ("embed-dim", "conv-dim", "ffn-embed-dim")
]
TRAIN = [
    *("--arch=pla_dynamicconv_small", *SIZES, "--encoder-layers=1", "--decoder-layers=1", "--dropout=0"),
    *("--encoder-kernel-size-list=[3]", "--decoder-kernel-size-list=[3]", "--optimizer=adam", "--lr=0.01"),
    *("--criterion=label_smoothed_cross_entropy", "--max-tokens=300", "--max-update=150", "--num-workers=0", "--cpu"),
    *(f"--max-source-positions={POSITIONS}", "--disable-validation", "--no-epoch-checkpoints", "--seed=1"),
    *("--clip-norm=1", "--log-format=none", f"--user-dir={CHECKOUT / 'lightconv_plugin'}"),
]
TRANSLATE = python_module("scripts.translate")


def sentences(count: int) -> list[list[str]]:
    rng = random.Random(5)
    return [rng.choices(list(WORDS), k=rng.randint(4, 6)) for _ in range(count)]


def translated(lines: list[list[str]]) -> list[list[str]]:
    return [[WORDS[word] for word in line] for line in lines]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Callable[[str], Path]:
    """A run's folder by what parts its words, trained when it is first asked for."""
    return cache(lambda parted: trained_run(tmp_path_factory.mktemp("work") / "debian_en_de", parted))


@pytest.fixture
def work(runs) -> Path:
    return runs("subword_nmt")


def trained_run(root: Path, parted: str) -> Path:
    """A run's folder as reproduce.py leaves it: binarised and prepared beside it, the checkpoint, the record."""
    prepared, run = root / "prepared", root / "toy"
    prepared.mkdir(parents=True)
    lines = sentences(300)
    stop = "." if parted == "sentencepiece" else " ."
    english, german = ([" ".join(words) + stop for words in side] for side in (lines, translated(lines)))
    if parted == "sentencepiece":
        (prepared / "sentencepiece.model").write_bytes(sentencepiece.learn(iter(english + german), units=30))
        cut = sentencepiece.encoder(codes=str(prepared / "sentencepiece.model"))
    else:  # of two pieces or one: BPE has something to do and to undo
        codes = bpe.learn_from_counts(get_vocabulary(english + german).items(), merges=24)
        (prepared / "codes").write_text(codes, encoding="utf-8")
        cut = bpe.encoder(codes=str(prepared / "codes"))
    for language, side in (("en", english), ("de", german)):
        for split, count in (("train", 300), ("test", 20)):
            text = "".join(f"{cut(line)}\n" for line in side[:count])
            (prepared / f"{split}.{language}").write_text(text, encoding="utf-8")
    preprocess = [*python_module("fairseq_cli.preprocess"), "-s", "en", "-t", "de", "--joined-dictionary"]
    where = [f"--{split}pref={prepared / split}" for split in ("train", "test")]
    subprocess.run([*preprocess, *where, f"--destdir={root / 'binarised'}"], check=True, capture_output=True)
    checkpoints = run / "seed3" / "checkpoints"
    train = [*python_module("fairseq_cli.train"), str(root / "binarised"), f"--save-dir={checkpoints}", *TRAIN]
    subprocess.run(train, check=True, capture_output=True, env=ENVIRONMENT)
    (checkpoints / "checkpoint_last.pt").rename(checkpoints / "checkpoint_best.pt")
    generate = {"beam": 3, "max-len-b": 20, "gen-subset": "test", "post-process": parted}
    (run / "record.json").write_text(json.dumps({"best_seed": 3, "config": {"generate": generate}}))
    return run


@pytest.fixture
def ask(monkeypatch, capsys) -> Callable[..., list[str]]:
    """The answers of the command, in this process."""

    def answers(path: Path, text: bytes, *more: str) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        capsys.readouterr()
        translate.main([str(path), *more])
        return capsys.readouterr().out.splitlines()

    return answers


@pytest.mark.slow
def test_every_line_is_answered_at_once_and_what_was_wrong_with_it_is_said(work, ask):
    good = [" ".join(words) + "." for words in sentences(20)]
    long = " ".join(["one"] * 3 * POSITIONS)
    bad = [b"", b"one two\xff three four.", b"\x00\x07 \x85".decode("latin-1").encode(), long.encode(), b" one\ttwo\r"]
    lines = [line.encode() for line in good] + bad
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*TRANSLATE, work], cwd="/", env=ENVIRONMENT, **pipes) as process:
        assert process.stdin
        assert process.stdout
        first = []
        for line in lines[:2]:  # answered before the next one is there
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            first.append(process.stdout.readline())
        out, err = process.communicate(b"\n".join(lines[2:]))  # the last line without its end
    assert process.returncode == 0, err.decode()
    answers = (b"".join(first) + out).decode().split("\n")
    assert answers.pop() == ""
    assert len(answers) == len(lines)
    right = [" ".join(words) + "." for words in translated(sentences(20))]
    assert sum(map(str.__eq__, answers, right)) >= 10, list(zip(answers, right, strict=False))
    assert answers[20] == answers[22] == ""
    assert answers[21] != ""
    assert answers[23].count("eins") > 3
    said = err.decode().splitlines()  # and no library's noise
    parts = ["21: empty", "22: not UTF-8 in 1 places", "23: control char", "23: empty"]
    parts.append(f"24: {3 * POSITIONS} tokens, and the model takes {POSITIONS - 1}: the rest was left out")
    assert [line[: len(part) + 5] for line, part in zip(said, parts, strict=True)] == [f"line {part}" for part in parts]
    checkpoint = work / "seed3" / "checkpoints" / "checkpoint_best.pt"
    assert ask(checkpoint, "\n".join(good[:9]).encode(), "--batch-size", "7") == answers[:9]


@pytest.mark.slow
def test_the_plugin_is_told_the_precision_as_it_is_loaded(work, monkeypatch):
    monkeypatch.setenv(VARIABLE, "of the shell")
    told = []
    monkeypatch.setattr(translator, "load_plugin", lambda: told.append(os.environ[VARIABLE]))
    for precision in ("bf16", "fp32"):
        Translator(*model_of(work), precision=precision)
    assert told == ["bf16", "fp32"]


@pytest.mark.slow
def test_a_model_that_is_no_number_is_named(work, tmp_path):
    checkpoint, *others = model_of(work)
    state = torch.load(checkpoint, weights_only=False)
    for key, weights in state["model"].items():
        if key.startswith("decoder.") and weights.is_floating_point():
            weights.fill_(float("nan"))
    torch.save(state, tmp_path / "diverged.pt")
    with pytest.raises(UserError, match=r"diverged\.pt has no answer: .*take another checkpoint"):
        Translator(tmp_path / "diverged.pt", *others).translate(["one two"])


def model_of(work):
    trained = find_trained(work)
    return trained.model, trained.dictionaries, ("en", "de"), trained.generate


def test_what_belongs_to_a_model_is_found_where_it_lies(tmp_path):
    """One model has one way to be asked, by whichever name."""
    data = tmp_path / "iwslt14_de_en"
    best, first = data / "m/seed2/tuned/model.pt", data / "m/seed1/averaged/model.pt"
    for path in (data / "binarised/dict.de.txt", data / "prepared/codes", first, best):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "best.pt").symlink_to(best)

    def write(name: str, content: object) -> None:
        (data / "m" / name).parent.mkdir(exist_ok=True)
        (data / "m" / name).write_text(json.dumps(content))

    def found(*names: str) -> list[dict[str, object]]:
        return [find_trained(data / name).generate for name in names]

    of_the_config = {"beam": 4, "lenpen": 1}
    write("record.json", {"best_seed": 2, "config": {"generate": of_the_config}})
    for name, model in (("m", best), ("m/seed2", best), ("m/seed1", first)):
        trained = find_trained(data / name)
        assert (trained.model, trained.dictionaries, trained.dataset) == (model, data / "binarised", "iwslt14_de_en")
        assert codes_file("de", *trained.codes_folders) == data / "prepared/codes"
        assert trained.generate == of_the_config
    settings = {"beam": 4, "lenpen": 0.4}
    write("seed2/hypotheses/generation.json", {"settings": {"seed": 2, "subset": "test", "averaged": "no", **settings}})
    write("seed2/checkpoints/checkpoint_best.pt", "")
    places = ["", "/tuned", "/tuned/model.pt", "/checkpoints", "/checkpoints/checkpoint_best.pt"]
    assert found("m", "../best.pt", *(f"m/seed2{place}" for place in places)) == [settings] * 7
    # what was tuned counts before the test set is translated, and where there is no record yet
    names = "m/seed1", "m/seed1/averaged/model.pt"
    assert found(*names) == [of_the_config] * 2
    write("seed1/tuned/tune.json", {"chosen": {"last": 3, "lenpen": 0.6, "max-len-b": None}})
    assert found(*names) == [of_the_config | {"lenpen": 0.6}] * 2
    (data / "m/record.json").unlink()
    assert found(*names) == [{"lenpen": 0.6}] * 2
    with pytest.raises(UserError, match=r"m has neither a record\.json that says its best seed .* seed1, seed2"):
        find_trained(data / "m")


@pytest.mark.slow
@pytest.mark.parametrize("parted", ["subword_nmt", "sentencepiece"])
def test_every_door_gives_one_text(parted, runs, ask, tmp_path):
    """The run and its checkpoint to translate, generate, fairseq-interactive with generate's flags, ONNX, the hub."""
    run = runs(parted)
    root, checkpoint = run.parent, run / "seed3" / "checkpoints" / "checkpoint_best.pt"
    steps = {"subword_nmt": "[tokenise, bpe: {merges: 24}]", "sentencepiece": "[sentencepiece: {units: 30}]"}[parted]
    (tmp_path / "d.yaml").write_text(f"kind: text\nsource: en\ntarget: de\nsteps: {steps}\n")
    dataset = load_dataset(str(tmp_path / "d.yaml"))
    back, joined = detokeniser("de", dataset), unit_joiner(parted)
    assert joined
    units = (root / "prepared" / "test.en").read_text(encoding="utf-8")

    config = Config(run, "toy", str(dataset.file), [3])
    settings = find_trained(run, dataset="d").generate | {"batch-size": 1}
    command = generate_command(config, settings, root / "binarised", checkpoint, "test", gpu=False)
    output = run_generation(command, "test", tmp_path / "log").in_corpus_order()["hypotheses.tok"]
    assert len(set(output)) > 10
    place = command.index("fairseq_cli.generate")
    interactive = [*command[:place], "fairseq_cli.interactive", *command[place + 1 :]]
    printed = subprocess.run(interactive, input=units.encode(), capture_output=True, check=True).stdout.decode()
    assert [line.split("\t")[2] for line in printed.split("\n") if line.startswith("H-")] == output

    text = [joined(line) for line in units.splitlines()]  # what the model's own codes cut
    export.main([str(checkpoint), str(tmp_path / "onnx")])
    for lines, options in ((text, []), (units.splitlines(), ["--units"])):
        command = [sys.executable, str(tmp_path / "onnx" / "decode.py"), "--beam", "3", "--max-len-b", "20", *options]
        done = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, check=True, env=LATIN)
        printed = done.stdout.decode().split("\n")[:-1]
        assert (list(map(joined, printed)) if options else printed) == output
    data: dict[str, Any] = {"data_name_or_path": str(root / "binarised"), "source_lang": "en", "target_lang": "de"}
    for lines, more in ((text, {}), (units.splitlines(), {"bpe": None})):
        hub = LightConvModel.from_pretrained(str(checkpoint.parent), checkpoint.name, **{**data, **more})
        found = hub.translate(lines, beam=3, max_len_b=20)
        assert (list(map(joined, found)) if more else found) == output

    raw = "".join(" ".join(words) + ".\n" for words in sentences(20)).encode()
    for path in (run, checkpoint):
        assert ask(path, raw, "--dataset", str(dataset.file)) == [back(line) for line in output]


@pytest.mark.parametrize(
    ("kind", "steps", "written", "joined"),
    [
        ("text", ["tokenise", "bpe"], "a ¶ b", "subword_nmt"),
        ("cnn_dm", ["bpe"], "a b", "subword_nmt"),
        ("text", ["sentencepiece"], "a ¶ b", "sentencepiece"),
        ("text", ["tokenise"], "a ¶ b", None),
        ("text", ["apply_bpe"], "a ¶ b", "subword_nmt"),
    ],
)
def test_the_mark_between_sentences_goes_where_the_dataset_put_it(kind, steps, written, joined, monkeypatch, tmp_path):
    """And units are joined as the dataset parted them, where no record says how."""
    asked = {}

    class Model:
        longest = 9

        def __init__(self, *given, precision):
            asked.update(given[3])

        def translate(self, lines):
            return ["a ¶ b" for _ in lines]

    named = tuple(Step(name=name) for name in steps)
    dataset = Dataset(name="d", file=tmp_path, kind=kind, source="en_article", target="en_summary", steps=named)
    monkeypatch.setattr(translate, "load_dataset", lambda name: dataset)
    monkeypatch.setattr(translate, "line_steps", lambda *given: str)
    monkeypatch.setattr(translate, "Translator", Model)
    if joined and steps != ["apply_bpe"]:  # whole words need no codes, and that step names its own
        (tmp_path / "codes").touch()
    trained = Trained(tmp_path / "model.pt", tmp_path, "d", (tmp_path,), {}, {})
    out = io.BytesIO()
    arguments = argparse.Namespace(codes=None, beam=None, lenpen=None, precision="fp32", batch_size=1)
    translate.run([b"x\n"], out, trained, arguments)
    assert out.getvalue().decode() == written + "\n"
    assert asked == {"post-process": joined}


MARKS = "a@@ b|@@|a @@ b|\u2581|a\u2581b|<unk>|<s> a|a </s> b|<pad>|&#124;|&amp;|\u00b6|a \u00b6 b|x@|<<unk>>|a@-@b"
UNITS = {"tokenise": {}, "bpe": {"merges": 9}, "sentencepiece": {"units": 40}, "normalise_space": {}}


@pytest.mark.parametrize("names", ["tokenise bpe", "tokenise", "sentencepiece", "normalise_space bpe"])
def test_characters_that_mean_something_to_us_come_back(names, tmp_path, capsys):
    """From text as written to numbers and back; Moses sets some of them apart with blanks."""
    marks = [*MARKS.split("|"), "|", "a|b"]
    steps = tuple(Step(name=name, parameters=UNITS[name]) for name in names.split())
    dataset = Dataset(name="d", file=tmp_path, kind="text", source="en", target="de", steps=steps)
    joined, codes = dataset.units, tmp_path / "codes"
    if joined == "sentencepiece":
        text = ["the cat sat on a mat", "hello a b c world", *marks] * 5
        codes.write_bytes(sentencepiece.learn(iter(text), units=40))
    else:
        codes.write_text(bpe.learn_from_counts([("hello", 3), ("world", 3), ("&lt;unk&gt;", 2)], merges=9))
    there, back = line_steps(dataset, "en", codes), detokeniser("en", dataset)
    units = [there(translate.read_text(mark.encode(), 1)) for mark in marks]
    words = Dictionary()
    numbers = [words.encode_line(line) for line in units]
    found = [back(words.string(line, joined)) for line in numbers]
    lost = "\u2581" if joined == "sentencepiece" else ""  # its blank, which is said
    expected = ["".join(mark.replace(lost, "").split()) for mark in marks]
    assert ["".join(line.split()) for line in found] == expected
    capsys.readouterr()
    for mark, cut in zip(marks, units, strict=True):
        translate.note_signs(7, mark, cut, joined)
    assert capsys.readouterr().err.count("line 7: \u2581 became a space") == (2 if lost else 0)
    translate.note_signs(7, "a", "a </s> b", joined)
    assert "line 7: </s>: a sign of fairseq's" in capsys.readouterr().err
    assert translate.read_text("\ufeffone\u200btwo\tthree\0\r\n".encode(), 7) == "one two three"
    assert capsys.readouterr().err == "line 7: control characters became spaces\n"


def test_what_is_missing_is_said_with_the_option_that_gives_it(tmp_path):
    """A published model says its dataset by its name."""
    with pytest.raises(UserError, match=r"there is no .*nothing"):
        find_trained(tmp_path / "nothing")
    for name, lacking in (
        ("model.pt", "nor any of model.pt"),
        ("dict.en.txt", "--dictionaries"),
        ("code", "--dataset"),
    ):
        with pytest.raises(UserError, match=lacking):
            find_trained(tmp_path)
        (tmp_path / name).touch()
    found = find_trained(tmp_path, dataset="wmt16_en_de")
    with pytest.raises(UserError, match=r"there is no .*dict\.de\.txt"):
        Translator(found.model, found.dictionaries, ("en", "de"), {})
    (tmp_path / "manifest.json").write_text('{"name": "dynamicconv.glu.wmt16.en-de"}')
    found = find_trained(tmp_path)
    assert (found.model, found.dictionaries, found.dataset) == (tmp_path / "model.pt", tmp_path, "wmt16_en_de")
    assert codes_file("en", *found.codes_folders) == tmp_path / "code"
    assert found.generate == {"beam": 5, "lenpen": 0.5, "batch-size": 128}  # of its authors' page
    (tmp_path / "code").unlink()
    arguments = argparse.Namespace(codes=None, beam=None, lenpen=None, precision="fp32", batch_size=1)
    with pytest.raises(UserError, match=r"of en in .*put the file there as codes\.en, or give it with --codes$"):
        translate.run([], io.BytesIO(), found, arguments)
