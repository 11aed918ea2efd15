import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.data.data_utils import post_process
from hypothesis import given
from hypothesis import strategies as st

from data_prep.common.errors import UserError
from scripts.config import Config
from scripts.fairseq_io import commands
from scripts.fairseq_io.commands import generate_command
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.generation import GenerationOutput, Hypothesis, best_text, prepared_lines

ENDING = [
    "x | Translated 3 sentences (1,024 tokens) in 2.5s (1.20 sentences/s, 409.60 tokens/s)",
    "Generate test with beam=5: BLEU4 = 12.34, 50.0/20.0/10.0/5.0 (BP=1.000)",
]


def printed(number: int, texts: tuple[str, str, str]) -> list[str]:
    return [
        f"S-{number}\t{texts[0]}",
        f"T-{number}\t{texts[1]}",
        f"H-{number}\t-0.5\t{texts[2]}",
        f"D-{number}\t-0.5\tno",
    ]


def collect(lines: list[str], count: int = 3) -> GenerationOutput:
    output = GenerationOutput("test")
    output.read(f"INFO:fairseq:loaded {count:,} examples from: /a.b/c/test.en-de.en")
    for line in lines:
        output.read(line)
    return output


words = st.text(st.characters(blacklist_characters="\n\t", blacklist_categories=["Cs"]), max_size=8)


@given(st.lists(st.tuples(words, words, words), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_lines_come_back_in_the_order_of_the_corpus(sentences, rng):
    blocks = [printed(number, texts) for number, texts in enumerate(sentences)]
    rng.shuffle(blocks)
    output = collect([line for block in blocks for line in block] + ENDING, len(sentences))
    files = output.in_corpus_order()
    assert files["source.tok"] == [texts[0] for texts in sentences]
    assert files["reference.tok"] == [texts[1] for texts in sentences]
    assert files["hypotheses.tok"] == [texts[2] for texts in sentences]


@pytest.mark.parametrize("symbol", ["subword_nmt", "@@ ", "sentencepiece", None])
@given(st.lists(st.sampled_from(["a", "na@@", "\u2581ve", "@@", "\u2581", "ï", "<unk>"]), max_size=6))
def test_prepared_lines_are_joined_as_fairseq_joins_units(tmp_path_factory, symbol, units):
    folder = tmp_path_factory.mktemp("prepared")
    for language in ("en", "de"):
        (folder / f"test.{language}").write_text(" ".join(units) + "\n", encoding="utf-8")
    lines = prepared_lines(folder, "test", ("en", "de"), {"post-process": symbol})
    expected = [post_process(" ".join(units), symbol)]
    assert lines == {"source.tok": expected, "reference.tok": expected}


def test_references_are_the_prepared_lines_even_with_words_out_of_the_dictionary():
    output = collect([line for number in range(3) for line in printed(number, ("a", "na<<unk>> ve", "c"))] + ENDING)
    assert output.in_corpus_order()["reference.tok"] == ["na<<unk>> ve"] * 3
    prepared = {"source.tok": ["a"] * 3, "reference.tok": ["naïve"] * 3}
    assert output.in_corpus_order(prepared) == {"hypotheses.tok": ["c"] * 3, **prepared}
    with pytest.raises(UserError, match="`test` has 2 lines as prepared and 3 as binarised"):
        output.in_corpus_order({"reference.tok": ["naïve"] * 2})
    assert prepared_lines(None, "test", ("en", "de"), {}) == {}


def three() -> list[str]:
    lines = [line for number in range(3) for line in printed(number, ("a", "b", "c"))]
    random.Random(1).shuffle(lines)
    return lines


def test_speed_and_bleu_are_fairseqs_own():
    output = collect(three() + ENDING)
    speed = {"seconds": 2.5, "sentences_per_second": 1.2, "tokens_per_second": 409.6}
    assert output.facts == {"sentences": 3, "tokens": 1024, **speed, "fairseq_bleu": 12.34}


def test_incomplete_output_is_refused():
    incomplete = [line for line in three() if not line.startswith("H-2")]
    for lines, message in (
        (incomplete + ENDING, "2 of the 3 H- lines of `test`; the first missing is H-2"),
        (three(), "did not finish the subset"),
    ):
        with pytest.raises(UserError, match=message):
            collect(lines).in_corpus_order()


def test_an_n_best_list_can_be_ordered_by_any_length_penalty():
    output = GenerationOutput("test")
    printed_lines = (
        "INFO:fairseq:loaded 1 examples from: /a/test.en-de.en|S-0\ta|T-0\tb|H-0\t-3.0\tshort|D-0\t-3.0\tshort|"
        "P-0\t-1.5 -1.5|H-0\t-4.0\ta longer one|D-0\t-4.0\ta longer one|P-0\t-1.0 -1.0 -1.0 -1.0"
    )
    for line in [*printed_lines.split("|"), *ENDING]:
        output.read(line)
    assert output.in_corpus_order()["hypotheses.tok"] == ["short"]
    assert output.hypotheses[0] == [Hypothesis(-3.0, "short", 2), Hypothesis(-4.0, "a longer one", 4)]
    best = [best_text(output.hypotheses[0], lenpen) for lenpen in (0, 0.3, 0.5, 1)]
    assert best == ["short", "short", "a longer one", "a longer one"]


@pytest.mark.parametrize(("languages", "named"), [(("zh-Hant", "en"), True), (("en", "de"), False)])
def test_languages_with_a_hyphen_are_named(languages, named, monkeypatch):
    """From dict.pt-BR.txt, fairseq would infer the pair pt and BR."""
    monkeypatch.setattr(commands, "load_dataset", lambda name: SimpleNamespace(languages=languages))
    config = Config(path=Path("c.yaml"), name="c", dataset="d", seeds=[1], train={"arch": "a"})
    places = Path("data"), Path("out")
    train = commands.train_command(config, 1, *places, Devices(gpu=False, count=1))
    for command in (train, generate_command(config, {}, *places, "test", gpu=False)):
        flags = [word for word in command if "-lang" in word]
        assert flags == ([f"--source-lang={languages[0]}", f"--target-lang={languages[1]}"] if named else [])
