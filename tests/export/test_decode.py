"""An export: what it says of itself, and the example beside it, a search without torch, against fairseq's and ours."""

import json
import random
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
DRAW = random.Random(2)
# of all lengths; one without words, and one of an unknown word
LINES = [" ".join(f"w{DRAW.randrange(40)}" for _ in range(DRAW.randrange(1, 14))) for _ in range(20)]
LINES += ["", "unheard-of"]


@pytest.fixture(scope="module")
def model(exported):
    return decode.load(exported)


@pytest.fixture(scope="module")
def sources(original):
    return [original[1].source_dictionary.encode_line(line, add_if_not_exist=False).tolist() for line in LINES]


def test_manifest_names_what_the_graphs_take_and_give(exported):
    import onnx

    manifest = json.loads((exported / "manifest.json").read_text())
    own = {"decode.py", "encoder.onnx", "manifest.json", "source.txt", "step.onnx", "target.txt"}
    assert {file.name for file in exported.iterdir()} == own
    assert manifest["vocab_sizes"] == {"source": 44, "target": 44}
    assert [manifest[name] for name in ("bos", "pad", "eos", "unk", "first")] == [0, 1, 2, 3, 2]
    for graph in manifest["graphs"].values():
        written = onnx.load(exported / graph["file"]).graph
        for side, values in (("inputs", written.input), ("outputs", written.output)):
            assert [value.name for value in values] == [port["name"] for port in graph[side]]
            for value, port in zip(values, graph[side], strict=True):
                sizes = [size.dim_value for size in value.type.tensor_type.shape.dim if size.dim_value]
                assert sizes == [size for size in port["shape"] if isinstance(size, int)], port["name"]


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


def test_it_runs_where_there_is_no_torch_and_names_a_line_that_is_too_long(exported, model, sources):
    """The copy in the folder of the export; the plugin is not on the path."""
    options = ["--beam", "2", "--max-len-b", str(LONGEST)]
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['fairseq'] = None; "
        f"sys.argv = ['decode.py', *{options!r}]; runpy.run_path({str(exported / 'decode.py')!r}, run_name='__main__')"
    )
    text = "".join(f"{line}\n" for line in [*LINES, "w1 " * 60])
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, cwd=exported)
    assert done.returncode == 1
    assert done.stderr == f"error: line {len(LINES) + 1} has 60 units; the model takes 59 at most\n"
    words = (exported / "target.txt").read_text().split("\n")
    expected = [decode.search(model, source, 2, LONGEST)[0][1][:-1] for source in sources]
    assert done.stdout.split("\n")[:-1] == [" ".join(words[token] for token in tokens) for tokens in expected]


@pytest.mark.parametrize(
    ("units", "learn", "known"),
    [
        ("subword_nmt", lambda: bpe.learn_from_counts(get_vocabulary(TEXTS).items(), merges=9).encode(), bpe),
        ("sentencepiece", lambda: sentencepiece.learn(iter(TEXTS * 9), units=36), sentencepiece),
    ],
)
def test_text_is_cut_by_the_file_that_the_export_carries(tmp_path, units, learn, known):
    (tmp_path / "codes").write_bytes(learn())
    cut, expected = decode.cutter(tmp_path, units, "codes"), known.encoder(codes=str(tmp_path / "codes"))
    assert [cut(text) for text in TEXTS] == [expected(text) for text in TEXTS]
    assert [decode.joined(cut(text), units) for text in TEXTS] == TEXTS
    assert decode.cutter(tmp_path, None, None)("a b") == decode.joined("a b", None) == "a b"
    with pytest.raises(SystemExit, match=r"no BPE merges and no SentencePiece model .*--codes FILE.* with --units"):
        decode.cutter(tmp_path, units, None)


def test_log_probabilities_that_are_wrong(model, monkeypatch):
    """Padding that is certain is not taken; what are no numbers are refused."""
    expected, own = decode.search(model, [5, 6, 2], 4, LONGEST), model.step
    for value, place in ((0.0, model.manifest["pad"]), (np.nan, slice(None))):

        def changed(*arguments, value=value, place=place):
            log_probs, state = own(*arguments)
            log_probs[..., place] = value
            return log_probs, state

        monkeypatch.setattr(model, "step", changed)
        if value == 0.0:
            assert decode.search(model, [5, 6, 2], 4, LONGEST) == expected
    with pytest.raises(ValueError, match="a sentence cannot end"):
        decode.search(model, [5, 6, 2], 4, LONGEST)
