"""decode.py, the search without torch that is written beside an export, compared with fairseq's search and ours."""

import random
import subprocess
import sys

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from lightconv_plugin.export import decode
from lightconv_plugin.tasks.beam_search import BeamSearchGenerator
from tests.tolerances import assert_close

LONGEST = 20
DRAW = random.Random(2)
# of all lengths; one without words, and one of an unknown word
LINES = [" ".join(f"w{DRAW.randrange(40)}" for _ in range(DRAW.randrange(1, 14))) for _ in range(20)]
LINES += ["", "unheard-of"]


@pytest.fixture(scope="module")
def model(exported):
    return decode.Model(exported)


@pytest.fixture(scope="module")
def sources(original):
    return [original[1].source_dictionary.encode_line(line, add_if_not_exist=False).tolist() for line in LINES]


@pytest.mark.parametrize(
    ("generator", "beam"),
    [(SequenceGenerator, 1), (SequenceGenerator, 4), (BeamSearchGenerator, 4), (SequenceGenerator, 30)],
)
def test_hypotheses_are_those_of_fairseq(model, original, sources, generator, beam):
    trained, task = original
    fairseqs = generator([trained], task.target_dictionary, beam_size=beam, max_len_b=LONGEST)
    best = set()
    for source in sources:
        net_input = {"src_tokens": torch.tensor([source]), "src_lengths": torch.tensor([len(source)])}
        (expected,) = fairseqs.generate([trained], {"net_input": net_input})
        results = decode.search(model, source, beam, LONGEST)
        assert [tokens for _, tokens in results] == [hypothesis["tokens"].tolist() for hypothesis in expected]
        assert_close(
            torch.tensor([score for score, _ in results]), torch.stack([hypothesis["score"] for hypothesis in expected])
        )
        best.add(tuple(results[0][1]))
    assert len(best) > len(sources) // 2, "one translation for all proves nothing"


def test_it_runs_where_there_is_no_torch_and_names_a_line_that_is_too_long(exported, model, sources):
    """The copy in the folder of the export; the plugin is not on the path."""
    names = {"decode.py", "encoder.onnx", "manifest.json", "source.txt", "step.onnx", "target.txt"}
    assert {file.name for file in exported.iterdir()} == names
    options = ["--beam", "2", "--max-len-b", str(LONGEST)]
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['fairseq'] = None; "
        f"sys.argv = ['decode.py', *{options!r}]; runpy.run_path({str(exported / 'decode.py')!r}, run_name='__main__')"
    )
    plain = ["w1 unheard-of", "Plain text w2", "is not cut into units"]  # half of the first are known
    sources = [
        *sources,
        *([*(4 + int(word[1:]) if word[1:].isdigit() else 3 for word in line.split()), 2] for line in plain),
    ]
    text = "".join(f"{line}\n" for line in [*LINES, *plain, "w1 " * 60])
    program = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, cwd=exported)
    assert program.returncode == 1
    warning, error = program.stderr.splitlines()
    assert warning.startswith(
        f"line {len(LINES) + 2}: the model does not know 2 of its 3 words. It takes text in units: c"
    )
    assert error == f"error: line {len(LINES) + 4} has 60 units; the model takes 59 at most"
    words = (exported / "target.txt").read_text().split("\n")
    expected = [decode.search(model, source, 2, LONGEST)[0][1][:-1] for source in sources]
    assert program.stdout.split("\n")[:-1] == [" ".join(words[token] for token in tokens) for tokens in expected]


@pytest.mark.parametrize("flag", ["--beam", "--max-len-b"])
def test_a_search_of_nothing_is_refused(flag, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["decode.py", flag, "0"])
    with pytest.raises(SystemExit):
        decode.main()
    assert f"error: {flag} is 0, expected a whole number from 1 on" in capsys.readouterr().err


def test_padding_is_never_taken(model, monkeypatch):
    expected, step = decode.search(model, [5, 6, 2], 4, LONGEST), model.step

    def certain(*arguments):
        log_probs, state = step(*arguments)
        log_probs[..., model.manifest["pad"]] = 0.0
        return log_probs, state

    monkeypatch.setattr(model, "step", certain)
    assert decode.search(model, [5, 6, 2], 4, LONGEST) == expected
