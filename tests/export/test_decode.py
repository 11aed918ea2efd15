"""decode.py, the search without torch that is part of an export, is compared with fairseq's search and ours."""

import random
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from lightconv_plugin.export import decode
from lightconv_plugin.tasks.beam_search import BeamSearchGenerator
from tests.tolerances import assert_close

LONGEST = 20
DRAW = random.Random(2)
# of all lengths, one empty, and one with an unknown word
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
    fairseq_generator = generator([trained], task.target_dictionary, beam_size=beam, max_len_b=LONGEST)
    best = set()
    for source in sources:
        net_input = {"src_tokens": torch.tensor([source]), "src_lengths": torch.tensor([len(source)])}
        (expected,) = fairseq_generator.generate([trained], {"net_input": net_input})
        results = decode.search(model, source, beam, LONGEST)
        assert [tokens for _, tokens in results] == [hypothesis["tokens"].tolist() for hypothesis in expected]
        assert_close(
            torch.tensor([score for score, _ in results]), torch.stack([hypothesis["score"] for hypothesis in expected])
        )
        best.add(tuple(results[0][1]))
    assert len(best) > len(sources) // 2, "equal translations prove nothing"


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_it_runs_where_there_is_no_torch_and_names_a_line_that_is_too_long(precision, exported, sources):
    """The export's own copy is run, and the plugin is not on the path."""
    plain = ["w1 unheard-of", "Plain text w2", "is not cut into units"]  # one of the two words in the first is known
    sources = [
        *sources,
        *([*(4 + int(word[1:]) if word[1:].isdigit() else 3 for word in line.split()), 2] for line in plain),
    ]
    program = run_alone(exported, "--precision", precision, lines=[*LINES, *plain, "w1 " * 60])
    assert program.returncode == 1
    warning, error = program.stderr.splitlines()
    assert warning.startswith(
        f"line {len(LINES) + 2}: the model does not know 2 of its 3 words. It expects subwords: split"
    )
    assert error == f"error: line {len(LINES) + 4} has 60 subwords; the model takes at most 59"
    words, model = (exported / "target.txt").read_text().split("\n"), decode.Model(exported, precision)
    expected = [decode.search(model, source, 2, LONGEST)[0][1][:-1] for source in sources]
    assert program.stdout.split("\n")[:-1] == [" ".join(words[token] for token in tokens) for tokens in expected]


@pytest.mark.parametrize("flag", ["--beam", "--max-len-b"])
def test_a_beam_or_length_of_0_is_refused(flag, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["decode.py", flag, "0"])
    with pytest.raises(SystemExit):
        decode.main()
    assert f"error: {flag} is 0, expected a whole number from 1 on" in capsys.readouterr().err


def run_alone(
    exported: Path, *options: str, lines: list[str], reader: list[str] | None = None
) -> subprocess.CompletedProcess:
    """Run an export's decode.py in a process that can import neither torch nor fairseq; ``reader`` gets its output."""
    argv = ["decode.py", "--beam", "2", "--max-len-b", str(LONGEST), *options]
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['fairseq'] = None; "
        f"sys.argv = {argv!r}; runpy.run_path({str(exported / 'decode.py')!r}, run_name='__main__')"
    )
    text, command = "".join(f"{line}\n" for line in lines), [sys.executable, "-c", code]
    if reader is not None:
        command = ["bash", "-o", "pipefail", "-c", f"{shlex.join(command)} | {shlex.join(reader)}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, cwd=exported)


def test_it_ends_without_a_traceback_when_nobody_reads_on(exported):
    process = run_alone(exported, lines=LINES * 50, reader=["head", "-n", "1"])
    assert (process.returncode, process.stdout.count("\n"), process.stderr) == (128 + signal.SIGPIPE, 1, "")


def test_the_files_of_an_export(exported):
    graphs = ("encoder", "step")
    names = {"decode.py", "manifest.json", "source.txt", "target.txt"}
    names |= {f"{graph}{ending}" for graph in graphs for ending in (".onnx", ".int8.onnx")}
    assert {file.name for file in exported.iterdir()} == names
    for graph in graphs:
        assert (exported / f"{graph}.int8.onnx").stat().st_size < (exported / f"{graph}.onnx").stat().st_size


def test_scores_in_int8_are_near_the_models(exported, model, sources):
    """They are not equal, which shows that another graph runs."""
    in_int8 = decode.Model(exported, "int8")
    for source in sources[:5]:
        steps = []
        for exported_model in (model, in_int8):
            read, state = exported_model.encode(np.array([source])), exported_model.start(1)
            steps.append(exported_model.step(np.array([[2]]), np.array([[0]]), 0, read, state)[0])
        assert 0 < np.abs(steps[0] - steps[1]).max() < 0.1 * np.abs(steps[0]).max()


def test_an_export_without_int8_says_so(exported, tmp_path):
    older = shutil.copytree(exported, tmp_path / "older", ignore=shutil.ignore_patterns("*.int8.onnx"))
    process = run_alone(older, "--precision", "int8", lines=LINES)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == f"error: {older} has no graphs in int8; export the model again\n"


def test_a_language_model_is_not_searched(exported, tmp_path):
    """An export of a language model has no encoder and no source.txt."""
    no_source = shutil.copytree(exported, tmp_path / "lm", ignore=shutil.ignore_patterns("encoder*", "source.txt"))
    process = run_alone(no_source, lines=LINES)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith(f"error: {no_source} is a language model, which translates nothing; ")


def test_padding_is_never_chosen(model, monkeypatch):
    expected, step = decode.search(model, [5, 6, 2], 4, LONGEST), model.step

    def certain(*arguments):
        log_probs, state = step(*arguments)
        log_probs[..., model.manifest["pad"]] = 0.0
        return log_probs, state

    monkeypatch.setattr(model, "step", certain)
    assert decode.search(model, [5, 6, 2], 4, LONGEST) == expected
