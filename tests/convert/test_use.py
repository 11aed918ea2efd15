"""Uses of a converted checkpoint: fairseq's hub interface, fine-tuning, language models, and safetensors."""

import json
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq_cli import train

from lightconv_plugin import convert
from lightconv_plugin.compat.safetensors import read_safetensors, write_safetensors
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
    convert.main([str(folder / "theirs.pt"), str(folder / "model.safetensors")])
    (folder / "bpecodes").write_text("#version: 0.2\nw 1\nw1 2</w>\n")
    return folder


@pytest.mark.parametrize("file", ["model.pt", "model.safetensors"])
def test_from_pretrained_translates(folder, file):
    options = {"data_name_or_path": ".", "bpe": "subword_nmt", "source_lang": "en", "target_lang": "de"}
    ours = LightConvModel.from_pretrained(str(folder), checkpoint_file=file, **options)
    assert ours.encode("w12").tolist() == [ours.src_dict.index("w12"), ours.src_dict.eos()]
    sentences = ["w1 w2 w3", "w4 w12"]
    found = ours.translate(sentences, beam=3, max_len_b=8)
    assert len(found) == 2
    assert all(set(sentence.split()) <= {f"w{n}" for n in range(16)} | {"<unk>"} for sentence in found)
    assert any(found), "two empty translations prove nothing"

    from fairseq.models.lightconv import LightConvModel as Theirs

    theirs = Theirs.from_pretrained(str(folder), checkpoint_file="theirs.pt", **options)
    assert theirs.translate(sentences, beam=3, max_len_b=8) == found


def test_safetensors_and_back(folder, tmp_path, capsys):
    """The last of the three is the first, parameters under two names included."""
    convert.main([str(folder / "model.pt"), str(tmp_path / "model.safetensors")])
    convert.main([str(tmp_path / "model.safetensors"), str(tmp_path / "back.pt")])
    assert "pla_lightconv, " in capsys.readouterr().out
    before, after = (torch.load(file, weights_only=True) for file in (folder / "model.pt", tmp_path / "back.pt"))
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["cfg"] == before["cfg"]
    embeddings = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"]
    assert settings["tied"] == dict.fromkeys(embeddings[1:], embeddings[0])
    parameters, others = after.pop("model"), before.pop("model")
    assert after == before
    assert parameters.keys() == others.keys()
    assert all(torch.equal(parameters[name], others[name]) for name in others)
    assert len({parameters[name].data_ptr() for name in embeddings}) == 1


def test_parts_of_larger_tensors_and_half_precision_as_safetensors(tmp_path):
    whole = torch.randn(4, 6, dtype=torch.float16)
    own = {
        "rows": whole[1:3],
        "columns": whole[:, 1:3],
        "again": whole[1:3],
        "none": torch.zeros(0),
        "0": torch.ones(()),
    }
    rest = {"cfg": {}, "optimizer_history": [], "task_state": {}, "extra_state": {"train_iterator": {}}}
    write_safetensors({"model": own, **rest}, tmp_path / "a.safetensors")
    found = read_safetensors(tmp_path / "a.safetensors")
    assert {name: tensor.tolist() for name, tensor in found["model"].items()} == {
        name: tensor.tolist() for name, tensor in own.items()
    }
    assert {tensor.dtype for tensor in found["model"].values()} == {torch.float16, torch.float32}


def test_fine_tuning_starts_from_it(tmp_path, monkeypatch, capsys):
    """A checkpoint of such a training, which leaves options open, is described as the model is built."""
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

    capsys.readouterr()
    convert.main([str(tmp_path / "tuned" / "checkpoint_last.pt"), str(tmp_path / "tuned" / "model.safetensors")])
    said = capsys.readouterr().out
    assert "decoder: dynamic convolutions without GLU, 2 layers of 16, 4 heads, kernels [3, 7]" in said


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
