"""Uses of a converted checkpoint: fairseq's hub interface, fine-tuning, language models, and safetensors."""

import json
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import lightconv
from fairseq.tasks import TASK_REGISTRY
from fairseq_cli import interactive, train
from subword_nmt.learn_bpe import get_vocabulary

from data_prep.sources.supplied import SuppliedText
from data_prep.text import bpe, sentencepiece
from data_prep.text.clean import normalise_space
from lightconv_plugin import LightConvLanguageModel, LightConvModel, convert
from lightconv_plugin.compat.safetensors import read_safetensors, write_safetensors
from lightconv_plugin.units import SENTENCEPIECE, SUBWORD_NMT, CodesError, steps_before, units_of
from scripts import translate
from scripts.fairseq_io.checkpoints import load
from tests.compat.conftest import write_corpus
from tests.convert import common

LANGUAGES = {"source_lang": "zh", "target_lang": "en"}
TEXTS = ["中国 市场 说 , 中国 。", "мир и вода , мир .", "السلام عليكم السلام .", "नमस्ते दुनिया नमस्ते ।"]
TEXTS += ["Typing , Typing .", "ไทย ไทย สยาม"]
OPTION = {SUBWORD_NMT: "bpe_codes", SENTENCEPIECE: "sentencepiece_model"}


@pytest.fixture(scope="module", params=OPTION)
def cut(request, tmp_path_factory):
    """Kind of subwords, folder with fairseq's model, ours and dictionaries, file of codes, function to segment text."""
    units = request.param
    folder = tmp_path_factory.mktemp(units)
    codes = folder.with_suffix(".codes")
    if units == SUBWORD_NMT:
        codes.write_text(bpe.learn_from_counts(get_vocabulary(TEXTS).items(), merges=12), encoding="utf-8")
    else:
        codes.write_bytes(sentencepiece.learn(iter(TEXTS * 9), units=50))
    step = {SUBWORD_NMT: bpe.encoder, SENTENCEPIECE: sentencepiece.encoder}[units](codes=str(codes))
    words = Dictionary()
    for unit in " ".join(map(step, TEXTS)).split():
        words.add_symbol(unit)
    for language in ("zh", "en"):
        words.save(str(folder / f"dict.{language}.txt"))
    task = Namespace(source_dictionary=words, target_dictionary=words)
    model, args = common.theirs(task, **common.TINY, **common.DYNAMIC, **LANGUAGES, share_all_embeddings=True)
    common.save(folder / "theirs.pt", model, args)
    for name in ("model.pt", "model.safetensors"):
        convert.main([str(folder / "theirs.pt"), str(folder / name)])
    return units, folder, codes, step


@pytest.mark.filterwarnings("ignore:.* learnt from text that was:UserWarning")
@pytest.mark.parametrize("file", ["model.pt", "model.safetensors"])
def test_from_pretrained_translates_as_fairseqs(cut, file):
    units, folder, codes, _ = cut
    options = {"data_name_or_path": ".", "bpe": units, OPTION[units]: str(codes)}
    ours = LightConvModel.from_pretrained(str(folder), checkpoint_file=file, **options)
    theirs = lightconv.LightConvModel.from_pretrained(str(folder), checkpoint_file="theirs.pt", **options)
    translations = ours.translate(TEXTS, beam=3, max_len_b=8)
    assert translations == theirs.translate(TEXTS, beam=3, max_len_b=8)
    assert any(translations), "empty translations prove nothing"
    assert ours.translate(TEXTS[0], beam=3, max_len_b=8) == translations[0]


def test_a_model_without_the_plugin_s_tasks_is_not_loaded(monkeypatch):
    """This happens if it is imported from lightconv_plugin.models."""
    monkeypatch.delitem(TASK_REGISTRY, "pla_translation")
    with pytest.raises(RuntimeError, match="use `from lightconv_plugin import LightConvModel`"):
        LightConvModel.from_pretrained(".")


@pytest.mark.filterwarnings("ignore:.* learnt from text that was:UserWarning")
def test_the_hub_segments_text_with_the_model_s_own_codes_or_names_what_is_missing(cut, tmp_path):
    """The codes are beside the model, beside the dictionaries, where reproduce writes them, or in an option."""
    units, folder, codes, step = cut
    model, data, prepared = tmp_path / "run" / "averaged", tmp_path / "binarised", tmp_path / "prepared"
    model.mkdir(parents=True)
    shutil.copy(folder / "model.pt", model)
    shutil.copytree(folder, data)
    prepared.mkdir()

    def load(**options):
        return LightConvModel.from_pretrained(str(model), "model.pt", str(data), **options)

    option = OPTION[units]
    for options in ({}, {"bpe": units}):
        with pytest.raises(CodesError, match=rf"of zh in {model}, {data}, {prepared} .* as codes.zh"):
            load(**options)
    as_units = load(bpe=None)
    assert as_units.string(as_units.encode(step(TEXTS[0]))) == step(TEXTS[0])
    for place in (prepared / "codes", data / "zh.code", model / "codes.zh"):
        shutil.copy(codes, place)
        if place.parent == model:
            (model / "bpecodes").write_text("#version: 0.2\nq q\n")  # codes of another language or model
        for hub in (load(), load(bpe=units), load(**{option: str(place)})):
            assert [hub.string(hub.encode(line)) for line in TEXTS] == [step(line) for line in TEXTS]
            assert [hub.decode(hub.encode(line)[:-1]) for line in TEXTS] == TEXTS
        place.unlink()


SPACES = "\xa0\u202f\u3000\t\u2028\x85\x0c\0"
CLEANED = {  # text as it may be written: the text after preparation
    **{f"{TEXTS[1].replace(' ', space)}": TEXTS[1] for space in SPACES},
    **{f" {TEXTS[4]}{space}": TEXTS[4] for space in SPACES},
    **{f"ไทย{space}ไทย": "ไทย ไทย" for space in SPACES},
    **{f"\ufeff{text}\u200b": text for text in TEXTS},
    **dict.fromkeys(("ไทย\u200bสยาม", "ไทย\ufeff\u200bสยาม"), "ไทยสยาม"),
    "Typing\u200b,": "Typing ,",
}


@pytest.mark.filterwarnings("ignore:.* learnt from text that was:UserWarning")
def test_every_way_into_a_model_cleans_text_as_preparation_does(cut, tmp_path, monkeypatch, capsys):
    """The ways are from_pretrained, fairseq-interactive, scripts.translate, and a user's file for training."""
    units, folder, codes, step = cut
    option = {"bpe": units, OPTION[units]: str(codes)}
    (file := tmp_path / "text").write_text("".join(f"{line}\n" for line in CLEANED), encoding="utf-8", newline="\n")
    lines = list(CLEANED.values())
    assert [normalise_space(line.decode()) for line in SuppliedText(file)] == lines
    assert [normalise_space(translate.read_text(line.encode(), 1)) for line in CLEANED] == lines

    hub = LightConvModel.from_pretrained(str(folder), "model.pt", ".", **option)
    expected = [hub.string(hub.binarize(step(line))) for line in lines]
    assert [hub.string(hub.encode(line)) for line in CLEANED] == expected
    with pytest.raises(ValueError, match=r"^line 2 has [\d,]+ tokens, and the model takes [\d,]+$"):
        hub.translate([TEXTS[0], " ".join(TEXTS) * 1000], beam=1)

    flags = ["-s", "zh", "-t", "en", "--task", "pla_translation", "--path", str(folder / "model.pt"), "--cpu"]
    flags += [f"--{name.replace('_', '-')}={value}" for name, value in option.items()]
    flags += ["--buffer-size=99", "--batch-size=99", "--max-len-b=2", "--input", str(file)]
    monkeypatch.setattr("sys.argv", ["fairseq-interactive", str(folder), *flags])
    interactive.cli_main()
    printed = [line.split("\t")[1] for line in capsys.readouterr().out.split("\n") if line.startswith("S-")]
    assert printed == expected


@pytest.mark.parametrize(
    ("words", "units", "steps"),
    [
        (["Th@@", "is", "&apos;s"], SUBWORD_NMT, ["tokenised by Moses"]),
        (["中@@", "国", "的"], SUBWORD_NMT, ["split into words by spaces"]),
        (["བོད་@@", "ཡིག་", "the"], SUBWORD_NMT, ["split into words by spaces"]),
        (["ｶﾅ@@", "ｶﾀ", "the"], SUBWORD_NMT, ["split into words by spaces"]),
        (["한국@@", "어", "the"], SUBWORD_NMT, []),
        (["\u2581this", "国"], SENTENCEPIECE, []),
        (["@@", "\u2581", *(f"Word{n}" for n in range(100))], None, []),
        ([f"\u00e4{n}" for n in range(600)], None, ["lower-cased"]),
        ([f"\u00c4{n}" for n in range(600)], None, []),
        ([f"\u0939{n}" for n in range(600)], None, []),  # a script without case
    ],
)
def test_a_dictionary_shows_what_was_done_to_text(words, units, steps):
    words = ["<s>", "<pad>", "</s>", "<unk>", *words, "madeupword0000"]
    assert (units_of(words), steps_before(words)) == (units, steps)


def test_safetensors_and_back(cut, tmp_path, capsys):
    """The file converted back equals the first one, including parameters with two names."""
    folder = cut[1]
    convert.main([str(folder / "model.pt"), str(tmp_path / "model.safetensors")])
    convert.main([str(tmp_path / "model.safetensors"), str(tmp_path / "back.pt")])
    assert "pla_lightconv, " in capsys.readouterr().out
    original, converted_back = (
        torch.load(file, weights_only=True) for file in (folder / "model.pt", tmp_path / "back.pt")
    )
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["cfg"] == original["cfg"]
    embeddings = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"]
    assert settings["tied"] == dict.fromkeys(embeddings[1:], embeddings[0])
    parameters, original_parameters = converted_back.pop("model"), original.pop("model")
    assert converted_back == original
    assert parameters.keys() == original_parameters.keys()
    assert all(torch.equal(parameters[name], original_parameters[name]) for name in original_parameters)
    assert len({parameters[name].data_ptr() for name in embeddings}) == 1


def test_parts_of_larger_tensors_and_half_precision_as_safetensors(tmp_path):
    matrix = torch.randn(4, 6, dtype=torch.float16)
    written = {"rows": matrix[1:3], "columns": matrix[:, 1:3], "again": matrix[1:3], "0": torch.ones(())}
    rest = {"cfg": {}, "optimizer_history": [], "task_state": {}, "extra_state": {"train_iterator": {}}}
    write_safetensors({"model": written, **rest}, tmp_path / "a.safetensors")
    read = read_safetensors(tmp_path / "a.safetensors")
    assert {name: tensor.tolist() for name, tensor in read["model"].items()} == {
        name: tensor.tolist() for name, tensor in written.items()
    }
    assert {tensor.dtype for tensor in read["model"].values()} == {torch.float16, torch.float32}


def test_fine_tuning_starts_from_it(tmp_path, monkeypatch):
    """A checkpoint of that training, in which some options are not set, is converted to safetensors."""
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

    weights = torch.load(tmp_path / "model.pt", weights_only=True)["model"]
    tuned = load(tmp_path / "tuned" / "checkpoint_last.pt")["model"]
    assert weights.keys() == tuned.keys()
    assert all(torch.equal(weights[name], tuned[name]) for name in weights)

    convert.main([str(tmp_path / "tuned" / "checkpoint_last.pt"), str(tmp_path / "tuned" / "model.safetensors")])


@pytest.mark.parametrize(("operator", "adaptive"), [("lightweight", True), ("dynamic", False)])
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
        log_probs, expected = (
            m.get_normalized_probs(m(tokens), True, {"target": tokens}) for m in (ours.eval(), model)
        )
    assert expected.std() > 0.1
    torch.testing.assert_close(log_probs, expected, rtol=0, atol=1e-5)
