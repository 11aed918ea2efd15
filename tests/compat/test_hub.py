"""The hub object and the models in it: scores, alignments, copies, pickles; ours and fairseq's own."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.models.lightconv import LightConvModel as FairseqModel

from lightconv_plugin import convert
from lightconv_plugin.models import LightConvModel
from tests.convert import common
from tests.tolerances import assert_close

SOURCES, TARGETS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"], ["w3 w4", "w5 w6 w7", "w1"]
LANGUAGES = {"data_name_or_path": ".", "source_lang": "en", "target_lang": "de"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    model, args = common.theirs(common.write_dictionaries(folder, shared=True), **common.TINY, **common.DYNAMIC)
    common.save(folder / "theirs.pt", model, args)
    convert.main([str(folder / "theirs.pt"), str(folder / "ours.pt")])
    return folder


@pytest.fixture(params=["ours.pt", "theirs.pt"])
def hub(folder, request):
    model = LightConvModel if request.param == "ours.pt" else FairseqModel
    return model.from_pretrained(str(folder), checkpoint_file=request.param, **LANGUAGES)


@torch.no_grad()
def test_translations_are_scored(hub):
    scored = hub.score(SOURCES, targets=TARGETS)
    pad = hub.src_dict.pad()
    # in one batch, as the hub's: with fairseq's own model padding changes the scores
    sources = collate_tokens([hub.encode(source) for source in SOURCES], pad, left_pad=True)
    targets = [hub.encode(target) for target in TARGETS]
    previous = collate_tokens([torch.cat([words[-1:], words[:-1]]) for words in targets], pad)
    logits = hub.models[0](sources, (sources != pad).sum(1), previous)[0]
    for words, row, found in zip(targets, logits, scored, strict=True):
        expected = torch.log_softmax(row[: len(words)], -1).gather(1, words[:, None])[:, 0]
        assert found["tokens"].tolist() == words.tolist()
        assert_close(found["positional_scores"], expected)
        assert_close(found["score"], expected.mean())
    longest = hub.score(SOURCES[1], targets=TARGETS[1])
    assert_close(longest["positional_scores"], scored[1]["positional_scores"])


def test_a_score_that_lacks_a_side_is_refused(hub):
    with pytest.raises(ValueError, match=r"hub.score\(sources, targets=translations\); got 3 sources and no transl"):
        hub.score(SOURCES)
    with pytest.raises(ValueError, match="got 3 sources and 2 translations"):
        hub.score(SOURCES, targets=TARGETS[:2])
    del hub.models[0].encoder
    with pytest.raises(ValueError, match="a language model has no source"):
        hub.score(SOURCES, targets=TARGETS)


def alignments(hub, **options):
    tokens = [hub.encode(sentence) for sentence in SOURCES]
    return [best["alignment"] for best, *_ in hub.generate(tokens, max_len_b=5, **options)]


@pytest.mark.parametrize("kind", ["hard", "soft", True])
def test_alignments_are_those_of_a_hub_loaded_for_them(hub, kind, folder):
    name = "ours.pt" if type(hub.models[0]) is LightConvModel else "theirs.pt"
    word = "hard" if kind is True else kind
    ready = type(hub.models[0]).from_pretrained(str(folder), name, **LANGUAGES, print_alignment=word)
    assert [len(each) for each in alignments(hub)] == [0, 0, 0]
    got = alignments(hub, print_alignment=kind)
    assert got == alignments(ready)
    assert all(got)
    assert not any(layer.need_attn for layer in hub.models[0].decoder.layers)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)), saved])
def test_copies_translate_the_same(hub, again):
    expected = hub.translate(SOURCES, max_len_b=5)
    other = again(hub)
    assert other.models[0] is not hub.models[0]
    assert other.translate(SOURCES, max_len_b=5) == expected
    with pytest.raises(RuntimeError, match="cannot train after make_generation_fast"):
        other.models[0].train()
    fresh = hub.task.build_model(hub.cfg.model)
    assert again(fresh).load_state_dict(fresh.state_dict())
    assert again(fresh).train().training


def test_a_new_process_needs_no_other_import(folder, tmp_path):
    """For a pickle, and for a checkpoint with the options that fairseq-train writes."""
    hub = LightConvModel.from_pretrained(str(folder), checkpoint_file="ours.pt", **LANGUAGES)
    (tmp_path / "hub.pickle").write_bytes(pickle.dumps(hub))
    unpickle = f"import pickle; hub = pickle.load(open({str(tmp_path / 'hub.pickle')!r}, 'rb')); "
    load = (
        "from lightconv_plugin.models import LightConvModel; "
        f"hub = LightConvModel.from_pretrained({str(folder)!r}, 'theirs.pt', **{LANGUAGES!r}); "
    )
    for begin in (unpickle, load):
        program = begin + f"print(hub.translate({SOURCES!r}, max_len_b=5))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
