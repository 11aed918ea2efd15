"""An export: what it says of itself, its search without torch against fairseq's and ours, damaged files."""

import io
import json
import shutil
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from lightconv_plugin.export import __main__ as command
from lightconv_plugin.export import decode, write
from lightconv_plugin.export.decode import Options
from lightconv_plugin.tasks.beam_search import BeamSearchGenerator
from tests.tolerances import assert_close

OPTIONS = {
    "greedy": Options(beam=1),
    "beam 4": Options(beam=4),
    "long": Options(beam=4, lenpen=2.0, min_len=9),
    "unknown words": Options(beam=4, unkpen=-5.0),
    "short": Options(beam=3, lenpen=0.0, max_len_a=0.5, max_len_b=1),
    "more beams than types": Options(beam=30, max_len_b=5),
}


@pytest.fixture(scope="module")
def model(exported):
    return decode.Model(exported, threads=1)


def expected_of(generator, original, task, batch):
    """fairseq's hypotheses of sources, padded on the left as its batches are."""
    longest = max(map(len, batch))
    tokens = torch.tensor([[task.source_dictionary.pad()] * (longest - len(line)) + line for line in batch])
    return generator.generate([original], {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(1).sum(1)}})


def test_manifest_names_what_the_graphs_take_and_give(exported):
    import onnx

    manifest = json.loads((exported / "manifest.json").read_text())
    assert {file.name for file in exported.iterdir()} == {*manifest["files"], "manifest.json"}
    assert manifest["vocab_sizes"] == {"source": 44, "target": 44}
    assert [manifest[name] for name in ("bos", "pad", "eos", "unk", "first")] == [0, 1, 2, 3, 2]
    assert (exported / "target.txt").read_text().split()[:5] == ["<s>", "<pad>", "</s>", "<unk>", "w0"]
    for graph in manifest["graphs"].values():
        written = onnx.load(exported / graph["file"]).graph
        for side in ("inputs", "outputs"):
            found = {
                value.name: [size.dim_value or size.dim_param for size in value.type.tensor_type.shape.dim]
                for value in (written.input if side == "inputs" else written.output)
            }
            assert list(found) == [port["name"] for port in graph[side]]
            for port in graph[side]:
                sizes = [size for size in port["shape"] if isinstance(size, int)]
                assert [size for size in found[port["name"]] if isinstance(size, int)] == sizes, port["name"]


def test_programs_of_torch_run_without_the_model(trained, original, lines, tmp_path, exported, capsys):
    out = tmp_path / "out"
    command.main([str(trained), str(out), "--format", "torch"])
    assert "LightConvModel: its exported steps give its log-probabilities" in capsys.readouterr().out
    assert {file.name for file in out.iterdir()} >= {"encoder.pt2", "step.pt2", "manifest.json", "decode.py"}
    program = write.Program(out)
    for sizes in ({"sentences": 1, "beam": 1, "length": 1}, {"sentences": 5, "beam": 7, "length": 60}):
        write.compare(original[0], program, steps=12, **sizes)
    options = decode.Options(beam=4)
    found = list(decode.translate(program, lines, options, 16))
    for got, wanted in zip(found, decode.translate(decode.Model(exported, 1), lines, options, 16), strict=True):
        assert [hypothesis.tokens for hypothesis in got] == [hypothesis.tokens for hypothesis in wanted]
        assert_close(torch.tensor([each.score for each in got]), torch.tensor([each.score for each in wanted]))


@pytest.mark.parametrize("generator", [SequenceGenerator, BeamSearchGenerator])
@pytest.mark.parametrize("name", OPTIONS)
def test_hypotheses_are_those_of_fairseq(model, original, lines, generator, name):
    options = OPTIONS[name]
    trained, task = original
    settings = {**vars(options), "len_penalty": options.lenpen, "unk_penalty": options.unkpen}
    known = ("max_len_a", "max_len_b", "min_len", "len_penalty", "unk_penalty")
    fairseqs = generator(
        [trained], task.target_dictionary, beam_size=options.beam, **{key: settings[key] for key in known}
    )
    sources = [task.source_dictionary.encode_line(line, add_if_not_exist=False).tolist() for line in lines]
    assert [model.tokens_of(line) for line in lines] == sources
    batches = [sources[:1], sources[1:8], sources[8:]]  # of one, of a few and of many
    found = [hypotheses for batch in batches for hypotheses in decode.search(model, batch, options)]
    expected = [hypotheses for batch in batches for hypotheses in expected_of(fairseqs, trained, task, batch)]
    assert len({tuple(best.tokens) for best, *_ in found}) > len(lines) // 2, "one translation for all proves nothing"
    for got, wanted in zip(found, expected, strict=True):
        assert [hypothesis.tokens for hypothesis in got] == [hypothesis["tokens"].tolist() for hypothesis in wanted]
        scores = torch.tensor([hypothesis.score for hypothesis in got])
        assert_close(scores, torch.stack([hypothesis["score"] for hypothesis in wanted]))


def test_sizes_other_than_those_of_the_export(model, original):
    for sizes in ({"sentences": 1, "beam": 1, "length": 1}, {"sentences": 5, "beam": 7, "length": 60}):
        write.compare(original[0], model, steps=12, **sizes)


def test_it_runs_where_there_is_no_torch(exported, model, lines):
    """By the copy in the folder of the export; the plugin is not on the path."""
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['fairseq'] = None; "
        "sys.argv = ['decode.py', '--beam', '2', '--threads', '1', '--scores', '--batch', '5']; "
        f"runpy.run_path({str(exported / 'decode.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(lines) + "\n", capture_output=True, text=True, cwd=exported.parent
    )
    assert done.returncode == 0, done.stderr
    best = [hypotheses[0] for hypotheses in decode.translate(model, lines, Options(beam=2), 5)]
    printed = [line.split("\t") for line in done.stdout.split("\n")[:-1]]
    assert [text for _, text in printed] == [model.text_of(hypothesis.tokens) for hypothesis in best]
    assert_close(
        torch.tensor([float(score) for score, _ in printed]), torch.tensor([hypothesis.score for hypothesis in best])
    )


@pytest.mark.parametrize(
    ("options", "words", "sentence"),
    [
        (Options(), 60, "a source has 61 words; the model takes at most 60"),
        (Options(min_len=9, max_len_b=8), 1, "--min-len 9 is larger than the longest hypothesis allowed, 8"),
    ],
)
def test_what_cannot_be_searched_is_a_sentence(model, options, words, sentence):
    with pytest.raises(decode.DecodeError, match=sentence):
        decode.search(model, [model.tokens_of("w1 " * words)], options)


@pytest.mark.parametrize("before", [0, 3, 65], ids=["first", "among others", "after the first lines that are read"])
def test_lines_before_one_that_is_too_long_are_answered(exported, model, monkeypatch, capsys, before):
    lines = [f"w{number % 40} w1" for number in range(before)]
    text = "\n".join([*lines, "w1 " * 60, "w2", "w3 " * 70]) + "\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    with pytest.raises(SystemExit) as ended:
        decode.main([str(exported), "--beam", "1", "--batch", "1", "--max-len-b", "3", "--threads", "1"])
    assert str(ended.value) == (
        f"error: line {before + 1} has 60 words; the model takes at most 59 in a line. The lines before it are "
        f"translated: divide line {before + 1}, and go on from there"
    )
    expected = decode.translate(model, lines, Options(beam=1, max_len_b=3), 1)
    assert capsys.readouterr().out.split("\n")[:-1] == [model.text_of(best.tokens) for best, *_ in expected]


def test_the_longest_line_that_the_model_takes_is_translated(model):
    assert len(list(decode.translate(model, ["w1 " * 59, "w1"], Options(beam=1, max_len_b=3), 1))) == 2


def test_padding_is_never_written(model, monkeypatch):
    def certain(*arguments):
        log_probs, state = decode.Model.step(model, *arguments)
        log_probs[..., model.manifest["pad"]] = 0
        return log_probs, state

    expected = decode.search(model, [[5, 6, 2]], Options(beam=4))
    monkeypatch.setattr(model, "step", certain)
    assert decode.search(model, [[5, 6, 2]], Options(beam=4)) == expected


def test_log_probabilities_that_are_not_numbers_are_a_sentence(model, monkeypatch):
    def broken(*arguments):
        log_probs, state = decode.Model.step(model, *arguments)
        return log_probs * float("nan"), state

    monkeypatch.setattr(model, "step", broken)
    with pytest.raises(decode.DecodeError, match="a sentence cannot end"):
        decode.search(model, [[5, 2]], Options(max_len_b=3))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_a_weight(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = [
    ("manifest.json", "unlink", "manifest.json: No such file or directory; expected the folder that"),
    ("manifest.json", cut, "manifest.json is damaged, or no manifest of an export; export again"),
    ("step.onnx", "unlink", "step.onnx: No such file or directory; export again"),
    ("step.onnx", cut, "step.onnx is not as it was written: it is damaged or was changed; export again"),
    ("encoder.onnx", change_a_weight, "encoder.onnx is not as it was written"),
    ("target.txt", cut, "target.txt is not as it was written"),
]


@pytest.mark.parametrize(("name", "damage", "sentence"), DAMAGE)
def test_damaged_files_are_a_sentence(exported, tmp_path, capsys, name, damage, sentence):
    folder = tmp_path / "out"
    shutil.copytree(exported, folder)
    if damage == "unlink":
        (folder / name).unlink()
    else:
        damage(folder / name)
    with pytest.raises(SystemExit) as ended:
        decode.main([str(folder)])
    assert sentence in str(ended.value)
    assert str(ended.value).startswith("error: ")


def test_exports_of_other_kinds_are_a_sentence(exported, tmp_path):
    manifest = json.loads((exported / "manifest.json").read_text())
    for change, sentence in (
        ({"version": 2}, "is an export of version 2, expected 1; export again"),
        ({"format": "torch"}, "is an export for torch; export with --format onnx"),
    ):
        folder = tmp_path / str(change)
        shutil.copytree(exported, folder)
        (folder / "manifest.json").write_text(json.dumps({**manifest, **change}))
        with pytest.raises(decode.DecodeError, match=sentence):
            decode.Model(folder)
    language_model = Namespace(manifest={"graphs": {"step": {}}})
    with pytest.raises(decode.DecodeError, match="it is a language model, which has nothing to translate"):
        list(decode.translate(language_model, ["w1"], Options(), 1))  # type: ignore[arg-type]
