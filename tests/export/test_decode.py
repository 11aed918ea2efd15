"""An export: what it says of itself, and the example beside it, a search without torch, against fairseq's and ours."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from subword_nmt.learn_bpe import get_vocabulary

from data_prep.text import bpe, sentencepiece
from lightconv_plugin.export import decode
from lightconv_plugin.tasks.beam_search import BeamSearchGenerator
from tests.tolerances import assert_close

LONGEST = 20
TEXTS = ["中国 市场 说 中国", "мир и вода мир", "नमस्ते दुनिया नमस्ते", "Typing Typing ."]


@pytest.fixture(scope="module")
def model(exported):
    return decode.load(exported)


@pytest.fixture(scope="module")
def sources(original, lines):
    return [original[1].source_dictionary.encode_line(line, add_if_not_exist=False).tolist() for line in lines]


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
        found = decode.search(model, source, beam, LONGEST)
        assert [tokens for _, tokens in found] == [hypothesis["tokens"].tolist() for hypothesis in expected]
        assert_close(torch.tensor([score for score, _ in found]), torch.stack([each["score"] for each in expected]))
        best.add(tuple(found[0][1]))
    assert len(best) > len(sources) // 2, "one translation for all proves nothing"


def run(exported, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The copy in the folder of the export, where there is no torch; the plugin is not on the path."""
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['fairseq'] = None; "
        f"sys.argv = ['decode.py', *{options!r}]; runpy.run_path({str(exported / 'decode.py')!r}, run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, cwd=exported)


def test_it_runs_where_there_is_no_torch(exported, model, lines, sources):
    done = run(exported, "".join(f"{line}\n" for line in lines), "--beam", "2", "--max-len-b", str(LONGEST))
    assert done.returncode == 0, done.stderr
    words = (exported / "target.txt").read_text().split("\n")
    expected = [decode.search(model, source, 2, LONGEST)[0][1][:-1] for source in sources]
    assert done.stdout.split("\n")[:-1] == [" ".join(words[token] for token in tokens) for tokens in expected]


def test_a_line_that_is_too_long_is_named(exported):
    done = run(exported, "w1\n" + "w2 " * 59 + "\n" + "w1 " * 60 + "\nw1\n", "--beam", "1")
    assert done.returncode == 1
    assert done.stderr == "error: line 3 has 60 units; the model takes 59 at most\n"
    assert done.stdout.count("\n") == 2


@pytest.mark.parametrize(
    ("units", "learn", "known"),
    [
        ("subword_nmt", lambda: bpe.learn_from_counts(get_vocabulary(TEXTS).items(), merges=9).encode(), bpe),
        ("sentencepiece", lambda: sentencepiece.learn(iter(TEXTS * 9), units=36), sentencepiece),
    ],
)
def test_text_is_cut_by_the_file_that_the_export_carries(tmp_path, monkeypatch, units, learn, known):
    (tmp_path / "codes").write_bytes(learn())
    cut, expected = decode.cutter(tmp_path, units, "codes"), known.encoder(codes=str(tmp_path / "codes"))
    assert [cut(text) for text in TEXTS] == [expected(text) for text in TEXTS]
    assert [decode.joined(cut(text), units) for text in TEXTS] == TEXTS
    assert decode.cutter(tmp_path, None, None)("a b") == decode.joined("a b", None) == "a b"
    with pytest.raises(SystemExit, match=r"no BPE merges and no SentencePiece model .*--codes FILE.* with --units"):
        decode.cutter(tmp_path, units, None)
    for name in ("subword_nmt.apply_bpe", "sentencepiece"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match=r"to cut text into units run: pip install [a-z-]+; or give .* with --units"):
        decode.cutter(tmp_path, units, "codes")


def test_log_probabilities_that_are_wrong(model, monkeypatch):
    """Padding that is certain is not taken; what are no numbers are refused."""
    expected, own = decode.search(model, [5, 6, 2], 4, LONGEST), model.step

    def certain(*arguments):
        log_probs, state = own(*arguments)
        log_probs[..., model.manifest["pad"]] = 0
        return log_probs, state

    monkeypatch.setattr(model, "step", certain)
    assert decode.search(model, [5, 6, 2], 4, LONGEST) == expected
    monkeypatch.setattr(
        model, "step", lambda *arguments: (np.full_like((found := own(*arguments))[0], np.nan), found[1])
    )
    with pytest.raises(ValueError, match="a sentence cannot end"):
        decode.search(model, [5, 6, 2], 4, LONGEST)


def test_a_damaged_file_is_a_sentence(exported, tmp_path):
    shutil.copytree(exported, folder := tmp_path / "out")
    for name in ("target.txt", "encoder.onnx"):
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        with pytest.raises(SystemExit, match=f"{name} is not as it was written: it is damaged or was changed; export"):
            decode.load(folder)
