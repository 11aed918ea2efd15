"""Files that belong to a model, and lines of text on their way into it and out; test_end_to_end asks a trained one."""

import argparse
import io
import json

import pytest
from fairseq.data import Dictionary

from data_prep.common.errors import UserError
from data_prep.dataset import Dataset, Step
from data_prep.lines import line_steps
from data_prep.text import bpe, sentencepiece
from scripts import translate
from scripts.fairseq_io.translator import Translator
from scripts.pretrained import codes_file
from scripts.scoring.detokenise import detokeniser
from scripts.translate import Trained, find_trained

ARGUMENTS = argparse.Namespace(beam=None, lenpen=None, precision="fp32", batch_size=1)


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
    write("seed2/tuned/tune.json", {"chosen": {"last": 3, "lenpen": 0.6, "max-len-b": None}})
    write("seed2/checkpoints/checkpoint_best.pt", "")
    tuned = of_the_config | {"lenpen": 0.6}
    places = ["", "/tuned", "/tuned/model.pt", "/checkpoints", "/checkpoints/checkpoint_best.pt"]
    assert found("m", "../best.pt", *(f"m/seed2{place}" for place in places)) == [tuned] * 7
    assert found("m/seed1", "m/seed1/averaged/model.pt") == [of_the_config] * 2
    (data / "m/record.json").unlink()
    with pytest.raises(UserError, match=r"m has neither a record\.json that says its best seed .* seed1, seed2"):
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
    translate.run([b"x\n"], out, trained, ARGUMENTS)
    assert out.getvalue().decode() == written + "\n"
    assert asked == {"post-process": joined}


MARKS = "a@@ b|@@|a @@ b|<unk>|<s> a|a </s> b|<pad>|&#124;|&amp;|\u00b6|a \u00b6 b|x@|<<unk>>|a@-@b"
UNITS = {"tokenise": {}, "bpe": {"merges": 9}, "sentencepiece": {"units": 40}, "normalise_space": {}}


@pytest.mark.parametrize("names", ["tokenise bpe", "tokenise", "sentencepiece", "normalise_space bpe"])
def test_characters_that_mean_something_to_us_come_back(names, tmp_path):
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
    assert ["".join(line.split()) for line in found] == ["".join(mark.split()) for mark in marks]


def test_what_is_missing_is_said_with_the_option_that_gives_it(tmp_path):
    """A published model says its dataset by its name."""
    with pytest.raises(UserError, match=r"there is no .*nothing"):
        find_trained(tmp_path / "nothing")
    for name, lacking in (
        ("model.pt", "nor any of model.pt"),
        ("dict.en.txt", "--dataset"),
    ):
        with pytest.raises(UserError, match=lacking):
            find_trained(tmp_path)
        (tmp_path / name).touch()
    (tmp_path / "code").touch()
    found = find_trained(tmp_path, dataset="wmt16_en_de")
    with pytest.raises(UserError, match=r"there is no .*dict\.de\.txt"):
        Translator(found.model, found.dictionaries, ("en", "de"), {})
    (tmp_path / "manifest.json").write_text('{"name": "dynamicconv.glu.wmt16.en-de"}')
    found = find_trained(tmp_path)
    assert (found.model, found.dictionaries, found.dataset) == (tmp_path / "model.pt", tmp_path, "wmt16_en_de")
    assert codes_file("en", *found.codes_folders) == tmp_path / "code"
    assert found.generate == {"beam": 5, "lenpen": 0.5, "batch-size": 128}  # of its authors' page
    (tmp_path / "code").unlink()
    with pytest.raises(UserError, match=r"of en in .*put the file there as codes\.en$"):
        translate.run([], io.BytesIO(), found, ARGUMENTS)
