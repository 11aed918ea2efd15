"""The files of a model, and text before and after the search, with a stand-in for it; test_end_to_end.py trains one."""

import argparse
import io
import json
import os
import pty
import signal
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fairseq.data import Dictionary

from data_prep.common.errors import UserError
from data_prep.dataset import Dataset, Step
from data_prep.lines import line_steps
from data_prep.text import bpe, sentencepiece
from scripts import translate
from scripts.fairseq_io import bulk, precision
from scripts.fairseq_io.translator import Answer, Translator
from scripts.pretrained import codes_file
from scripts.scoring.detokenise import detokeniser
from scripts.translate import Trained, find_trained


def arguments(**options: object) -> argparse.Namespace:
    """Return the command's default arguments, changed by ``options``."""
    defaults = {"beam": None, "lenpen": None, "precision": None, "batch_size": 1, "nbest": None}
    return argparse.Namespace(**{**defaults, "file": None, "out": None, "max_tokens": 12, **options})


class Upper:
    """Stand-in for ``Translator``: returns a line in capitals; its further hypotheses are numbered."""

    longest = 9
    batches: ClassVar[list[list[str]]] = []
    settings: ClassVar[dict[str, object]] = {}

    def __init__(self, *arguments: Any, precision: str) -> None:
        self.settings.clear()
        self.settings.update(arguments[3])

    def search(self, lines: Sequence[str], count: int) -> list[list[Answer]]:
        self.batches.append(list(lines))
        return [[Answer(f"{line.upper()} {n or ''}", -n / 2) for n in range(count)] for line in lines]


@pytest.fixture
def trained(monkeypatch, tmp_path) -> Trained:
    """A model in whose place ``Upper`` translates; lines pass the dataset's steps unchanged."""
    dataset = Dataset(name="d", file=tmp_path, kind="text", source="en", target="de", steps=(Step(name="tokenise"),))
    monkeypatch.setattr(translate, "load_dataset", lambda name: dataset)
    monkeypatch.setattr(translate, "line_steps", lambda *_: str)
    monkeypatch.setattr(translate, "detokeniser", lambda *_: str)
    monkeypatch.setattr(translate, "Translator", Upper)
    monkeypatch.setattr(Upper, "batches", [])
    (tmp_path / "model.pt").write_text("weights")
    return Trained(tmp_path / "model.pt", tmp_path, "d", (tmp_path,), {}, {})


def test_a_model_s_files_and_settings_are_found_from_its_path(tmp_path):
    """All paths of a model lead to the same settings."""
    data = tmp_path / "iwslt14_de_en"
    best, first = data / "m/seed2/tuned/model.pt", data / "m/seed1/averaged/model.pt"
    for path in (data / "binarised/dict.de.txt", data / "prepared/codes", first, best):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "best.pt").symlink_to(best)

    def write(name: str, content: object) -> None:
        (data / "m" / name).parent.mkdir(exist_ok=True)
        (data / "m" / name).write_text(json.dumps(content))

    def settings_of(*names: str) -> list[dict[str, object]]:
        return [find_trained(data / name).generate for name in names]

    configured = {"beam": 4, "lenpen": 1}
    write("record.json", {"best_seed": 2, "config": {"generate": configured}})
    for name, model in (("m", best), ("m/seed2", best), ("m/seed1", first)):
        trained = find_trained(data / name)
        assert (trained.model, trained.dictionaries, trained.dataset) == (model, data / "binarised", "iwslt14_de_en")
        assert codes_file("de", *trained.codes_folders) == data / "prepared/codes"
        assert trained.generate == configured
    write("seed2/tuned/tune.json", {"chosen": {"last": 3, "lenpen": 0.6, "max-len-b": None}})
    write("seed2/checkpoints/checkpoint_best.pt", "")
    tuned = configured | {"lenpen": 0.6}
    places = ["", "/tuned", "/tuned/model.pt", "/checkpoints", "/checkpoints/checkpoint_best.pt"]
    assert settings_of("m", "../best.pt", *(f"m/seed2{place}" for place in places)) == [tuned] * 7
    assert settings_of("m/seed1", "m/seed1/averaged/model.pt") == [configured] * 2
    (data / "m/record.json").unlink()
    with pytest.raises(UserError, match=r"m has neither a record\.json with its best seed .* seed1, seed2"):
        find_trained(data / "m")


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
def test_the_mark_of_sentences_is_removed_if_the_dataset_added_it(kind, steps, written, joined, monkeypatch, tmp_path):
    """Without a record, the dataset's steps also decide how subwords are joined."""
    named = tuple(Step(name=name) for name in steps)
    dataset = Dataset(name="d", file=tmp_path, kind=kind, source="en_article", target="en_summary", steps=named)
    monkeypatch.setattr(translate, "load_dataset", lambda name: dataset)
    monkeypatch.setattr(translate, "line_steps", lambda *_: str)
    monkeypatch.setattr(translate, "Translator", Upper)
    monkeypatch.setattr(Upper, "search", lambda self, lines, count: [[Answer("a ¶ b", -1.0)] for _ in lines])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    if joined and steps != ["apply_bpe"]:  # whole words need no codes, and apply_bpe names its own
        (tmp_path / "codes").touch()
    trained = Trained(tmp_path / "model.pt", tmp_path, "d", (tmp_path,), {}, {})
    out = io.BytesIO()
    translate.run(out, trained, arguments())
    assert out.getvalue().decode() == written + "\n"
    assert Upper.settings == {"post-process": joined, "precision": "fp32"}


MARKS = "a@@ b|@@|a @@ b|<unk>|<s> a|a </s> b|<pad>|&#124;|&amp;|\u00b6|a \u00b6 b|x@|<<unk>>|a@-@b"
UNITS = {"tokenise": {}, "bpe": {"merges": 9}, "sentencepiece": {"units": 40}, "normalise_space": {}}


@pytest.mark.parametrize("names", ["tokenise bpe", "tokenise", "sentencepiece", "normalise_space bpe"])
def test_special_characters_are_restored(names, tmp_path):
    """From text to token ids and back. Spaces are not compared: Moses puts some around characters."""
    marks = [*MARKS.split("|"), "|", "a|b"]
    steps = tuple(Step(name=name, parameters=UNITS[name]) for name in names.split())
    dataset = Dataset(name="d", file=tmp_path, kind="text", source="en", target="de", steps=steps)
    joined, codes = dataset.units, tmp_path / "codes"
    if joined == "sentencepiece":
        text = ["the cat sat on a mat", "hello a b c world", *marks] * 5
        codes.write_bytes(sentencepiece.learn(iter(text), units=40))
    else:
        codes.write_text(bpe.learn_from_counts([("hello", 3), ("world", 3), ("&lt;unk&gt;", 2)], merges=9))
    apply, detokenise = line_steps(dataset, "en", codes), detokeniser("en", dataset)
    units = [apply(translate.read_text(mark.encode(), 1)) for mark in marks]
    words = Dictionary()
    numbers = [words.encode_line(line) for line in units]
    restored = [detokenise(words.string(line, joined)) for line in numbers]
    assert ["".join(line.split()) for line in restored] == ["".join(mark.split()) for mark in marks]


def test_the_error_for_a_missing_file_names_the_option_that_supplies_it(tmp_path):
    """The dataset of a published model follows from its name."""
    with pytest.raises(UserError, match=r"there is no .*nothing"):
        find_trained(tmp_path / "nothing")
    for name, message in (
        ("model.pt", "nor any of model.pt"),
        ("dict.en.txt", "--dataset"),
    ):
        with pytest.raises(UserError, match=message):
            find_trained(tmp_path)
        (tmp_path / name).touch()
    (tmp_path / "code").touch()
    trained = find_trained(tmp_path, dataset="wmt16_en_de")
    with pytest.raises(UserError, match=r"there is no .*dict\.de\.txt"):
        Translator(trained.model, trained.dictionaries, ("en", "de"), {})
    (tmp_path / "manifest.json").write_text('{"name": "dynamicconv.glu.wmt16.en-de"}')
    trained = find_trained(tmp_path)
    assert (trained.model, trained.dictionaries, trained.dataset) == (tmp_path / "model.pt", tmp_path, "wmt16_en_de")
    assert codes_file("en", *trained.codes_folders) == tmp_path / "code"
    assert trained.generate == {"beam": 5, "lenpen": 0.5, "batch-size": 128}  # the settings on its authors' page
    (tmp_path / "code").unlink()
    with pytest.raises(UserError, match=r"of en in .*put the file there as codes\.en$"):
        translate.run(io.BytesIO(), trained, arguments())


LINES = ["a b c", "", "d", "e f g h i", "j k", "l m n", "o", "p q"]
TEXT = "".join(f"{line}\n" for line in LINES)
CAPITALS = TEXT.upper()


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "my.en"
    path.write_text(TEXT)
    return path


def test_lines_of_like_length_are_translated_together(trained, file, monkeypatch, capsys):
    """The translations are in the order of the lines, within a window and across windows."""
    out = io.BytesIO()
    translate.run(out, trained, arguments(file=file))
    assert out.getvalue().decode() == CAPITALS
    assert Upper.batches == [["e f g h i", "a b c"], ["l m n", "j k", "p q", "d"], ["o"]]
    assert capsys.readouterr().err.startswith("8 lines in 0:00, ")
    monkeypatch.setattr(bulk, "WINDOW", 3)
    translate.run(out := io.BytesIO(), trained, arguments(file=file))
    assert out.getvalue().decode() == CAPITALS
    windows = [["a b c", "d"]], [["e f g h i", "l m n"], ["j k"]], [["p q", "o"]]
    assert Upper.batches[3:] == [batch for window in windows for batch in window]


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("torn", [0, 7])
def test_translations_of_a_killed_run_are_kept(batches, torn, trained, file, tmp_path, monkeypatch, capfd):
    """A last line that was half-written costs its batch. A finished run leaves no temporary files."""
    out = tmp_path / "my.de"
    search = Upper.search

    def killed(self: Upper, lines: Sequence[str], count: int) -> list[list[Answer]]:
        if len(self.batches) == batches:
            os.kill(os.getpid(), signal.SIGKILL)
        return search(self, lines, count)

    with monkeypatch.context() as patch:
        patch.setattr(Upper, "search", killed)
        process = get_context("fork").Process(
            target=translate.run, args=(io.BytesIO(), trained, arguments(file=file, out=out))
        )
        process.start()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not out.exists()
    (answers,) = tmp_path.glob(".my.de.work.lightconv/answers.jsonl")
    if torn:
        os.truncate(answers, answers.stat().st_size - torn)
    capfd.readouterr()
    translate.run(io.BytesIO(), trained, arguments(file=file, out=out))
    assert out.read_text() == CAPITALS
    assert len(Upper.batches) == 3 - batches + bool(torn)
    lines = [0, 2, 6][batches - bool(torn)]
    assert (f"{lines:,} lines are already translated" in capfd.readouterr().err) == (lines > 0)
    assert not answers.parent.exists()


@pytest.mark.parametrize("change", [{"nbest": 2}, {"max_tokens": 5}, {"beam": 2}, {"text": TEXT[2:]}, {"model": "x"}])
def test_another_command_starts_anew(change, trained, file, tmp_path, monkeypatch):
    out = tmp_path / "my.de"
    with monkeypatch.context() as patch:
        patch.setattr(translate, "translate_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            translate.run(io.BytesIO(), trained, arguments(file=file, out=out))
    work = tmp_path / ".my.de.work.lightconv"
    (work / "answers.jsonl").write_text('[[1, [["WRONG", 0.0]]]]\n')
    file.write_text(change.pop("text", TEXT))
    trained.model.write_text(change.pop("model", "weights"))
    translate.run(io.BytesIO(), trained, arguments(file=file, out=out, **change))
    assert "WRONG" not in out.read_text()
    assert not work.exists()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": "my.de"}, "--out is for the translations of a FILE"),
        ({"file": "none.en"}, "there is no file .*none.en; expected text, one sentence per line"),
        ({"file": "my.en", "out": "my.en"}, "my.en would be replaced, and holds files that this project did not write"),
        ({"nbest": 9}, "--nbest is 9, and the search has 5 hypotheses; add --beam 9"),
        ({"precision": "int8"}, "cannot be int8, since it is too old; take fp32"),
    ],
)
def test_wrong_options_are_refused_before_the_translation(options, message, trained, file, tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "processor_reasons", lambda: {"int8": "it is too old"})
    paths = {key: tmp_path / value if key in ("file", "out") else value for key, value in options.items()}
    with pytest.raises(UserError, match=message):
        translate.run(io.BytesIO(), trained, arguments(**paths))
    assert file.read_text() == TEXT


def test_the_best_hypotheses_with_their_scores(trained, file):
    translate.run(out := io.BytesIO(), trained, arguments(file=file, nbest=2))
    rows = [line.split("\t") for line in out.getvalue().decode().splitlines()]
    assert rows[:3] == [["1", "0.0000", "A B C"], ["1", "-0.5000", "A B C 1"], ["2", "", ""]]
    assert [row[0] for row in rows] == list("112334455667788")


def test_a_terminal_has_a_prompt_and_ends_with_ctrl_d(trained, monkeypatch, capsys):
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"one two\nthree\n\x04")
    with open(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        translate.run(out := io.BytesIO(), trained, arguments())
    os.close(keyboard)
    assert out.getvalue().decode() == "ONE TWO\nTHREE\n"
    assert capsys.readouterr().err == f"{trained.model}: type a line, or Ctrl-D to end\nen> en> en> \n"
