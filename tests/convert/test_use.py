"""Uses of a converted checkpoint: fairseq's hub interface, fine-tuning, and language models."""

from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq_cli import train

from lightconv_plugin import convert
from lightconv_plugin.models.encoder_decoder import LightConvModel
from lightconv_plugin.models.language_model import LightConvLanguageModel
from tests.compat.conftest import write_corpus
from tests.convert import common


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as scripts.pretrained leaves it: dictionaries, BPE codes, model.pt."""
    folder = tmp_path_factory.mktemp("pretrained")
    task = common.write_dictionaries(folder, shared=True)
    model, args = common.theirs(task, **common.TINY, **common.DYNAMIC, share_all_embeddings=True)
    common.save(folder / "theirs.pt", model, args)
    convert.main([str(folder / "theirs.pt"), str(folder / "model.pt")])
    (folder / "bpecodes").write_text("#version: 0.2\nw 1\nw1 2</w>\n")
    return folder


def test_from_pretrained_translates(folder):
    options = {"data_name_or_path": ".", "bpe": "subword_nmt", "source_lang": "en", "target_lang": "de"}
    ours = LightConvModel.from_pretrained(str(folder), checkpoint_file="model.pt", **options)
    assert ours.encode("w12").tolist() == [ours.src_dict.index("w12"), ours.src_dict.eos()]
    sentences = ["w1 w2 w3", "w4 w12"]
    found = ours.translate(sentences, beam=3, max_len_b=8)
    assert len(found) == 2
    assert all(set(sentence.split()) <= {f"w{n}" for n in range(16)} | {"<unk>"} for sentence in found)
    assert any(found), "two empty translations prove nothing"

    from fairseq.models.lightconv import LightConvModel as Theirs

    theirs = Theirs.from_pretrained(str(folder), checkpoint_file="theirs.pt", **options)
    assert theirs.translate(sentences, beam=3, max_len_b=8) == found


def test_fine_tuning_starts_from_it(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    words = Dictionary.load(str(tmp_path / "dict.en.txt"))
    task = Namespace(source_dictionary=words, target_dictionary=words)
    model, args = common.theirs(task, **common.TINY, **common.DYNAMIC, share_all_embeddings=True)
    common.save(tmp_path / "theirs.pt", model, args)
    convert.main([str(tmp_path / "theirs.pt"), str(tmp_path / "model.pt")])

    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in common.TINY.items()]
    architecture = ["--arch", "pla_dynamicconv_iwslt_de_en", "--share-all-embeddings", *sizes]
    still = ["--optimizer", "sgd", "--lr", "0", "--max-update", "1", "--disable-validation", "--no-epoch-checkpoints"]
    rest = ["--max-tokens", "300", "--cpu", "--num-workers", "0", "--task", "translation", "-s", "en", "-t", "de"]
    places = ["--finetune-from-model", str(tmp_path / "model.pt"), "--save-dir", str(tmp_path / "tuned")]
    monkeypatch.setattr("sys.argv", ["fairseq-train", str(tmp_path), *architecture, *still, *rest, *places])
    train.cli_main()

    before = torch.load(tmp_path / "model.pt", weights_only=True)["model"]
    after = torch.load(tmp_path / "tuned" / "checkpoint_last.pt", weights_only=True)["model"]
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive", "plain"])
@pytest.mark.parametrize("operator", ["lightweight", "dynamic"])
def test_a_language_model(tmp_path, operator, adaptive):
    task = common.write_dictionaries(tmp_path, shared=True)
    options = {k: v for k, v in common.TINY.items() if k.startswith("decoder")}
    options |= {"task": "language_modeling", "tokens_per_sample": 32, "decoder_conv_type": operator}
    options |= {"dropout": 0.1, "attention_dropout": 0.1, "relu_dropout": 0.0, "weight_softmax": True}
    if adaptive:
        cutoff = {"adaptive_input_cutoff": "8,14", "adaptive_softmax_cutoff": "8,14"}
        options |= {**cutoff, "adaptive_input": True, "tie_adaptive_weights": True, "adaptive_softmax_dropout": 0.0}
        options |= {"adaptive_input_factor": 2, "adaptive_softmax_factor": 2}
    options |= {"share_decoder_input_output_embed": not adaptive, "no_token_positional_embeddings": False}
    model, args = common.theirs(task, "lightconv_lm", **options)
    task.dictionary.save(str(tmp_path / "dict.txt"))
    common.save(tmp_path / "in.pt", model, args)
    convert.main([str(tmp_path / "in.pt"), str(tmp_path / "out.pt")])
    (ours,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "out.pt")], arg_overrides={"data": str(tmp_path)}
    )
    assert isinstance(ours, LightConvLanguageModel)
    tokens = torch.randint(4, 20, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, expected = (m.get_normalized_probs(m(tokens), True, {"target": tokens}) for m in (ours.eval(), model))
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
