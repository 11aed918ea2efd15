"""Each mistake is found before anything runs, and named with its file, its key, what was got and what was expected."""

import shutil
from pathlib import Path

import pytest

from scripts import check
from scripts.common.errors import UserError
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.models import load_plugin
from scripts.pipeline.config import load_config
from scripts.scoring import metrics
from tests.compat.conftest import write_corpus

CONFIG = """
dataset: debian_en_de
seeds: [1]
train:
  task: translation
  arch: pla_dynamicconv_small
  encoder-embed-dim: 32
  decoder-embed-dim: 32
  encoder-ffn-embed-dim: 32
  decoder-ffn-embed-dim: 32
  optimizer: adam
  lr: 0.01
  lr-scheduler: cosine
  warmup-updates: 10
  lr-period-updates: 30
  criterion: label_smoothed_cross_entropy
  max-tokens: 300
  max-update: 40
  save-interval-updates: 10
  keep-interval-updates: 3
  no-epoch-checkpoints: true
  required-batch-size-multiple: 1
average: {by: update, last: 3}
generate: {beam: 4, max-tokens: 3000, post-process: subword_nmt}
tune: {last: [1, 3], lenpen: [0.5, 1.0], max-len-b: [10, 20]}
speed: {beam: 4, batch-size: 8, subset: test, runs: 1}
"""
LANGUAGE_MODEL = """
dataset: debian_lm
seeds: [1]
train:
  task: language_modeling
  arch: pla_dynamicconv_lm_small
  sample-break-mode: eos
  tokens-per-sample: 20
  adaptive-softmax-cutoff: [10]
  adaptive-input-cutoff: [10]
  criterion: adaptive_loss
  ddp-backend: legacy_ddp
  optimizer: nag
  lr: 1.0
  max-tokens: 300
  max-update: 40
score: {metric: perplexity}
"""
CPU = Devices(gpu=False, count=1)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def plugin() -> None:
    load_plugin()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Sentences of 3 to 11 words, in two languages."""
    folder = tmp_path_factory.mktemp("data")
    write_corpus(folder)
    for path in list(folder.glob("valid.*")):
        shutil.copy(path, folder / path.name.replace("valid", "test"))
    return folder


@pytest.fixture(scope="module")
def one_language(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    for path in data.iterdir():
        if ".de." in path.name:
            name = "dict.txt" if path.name == "dict.de.txt" else path.name.replace(".en-de.de", "")
            shutil.copy(path, folder / name)
    return folder


def said(folder: Path, changes: str = "", data: Path | None = None, base: str = CONFIG, devices: Devices = CPU) -> str:
    """The sentences of the check of a configuration with changes; raises its refusal."""
    (folder / "base.yaml").write_text(base)
    (folder / "model.yaml").write_text(f"base: base.yaml\n{changes}\n")
    return "\n".join(check.check(load_config(folder / "model.yaml"), data, devices))


@pytest.mark.parametrize("base", [CONFIG, LANGUAGE_MODEL], ids=["translation", "language model"])
def test_what_can_be_trained_is_taken(tmp_path, base, data, one_language):
    assert said(tmp_path, base=base) == ""
    assert said(tmp_path, base=base, data=data if base == CONFIG else one_language) == ""


EVAL_BLEU = "eval-bleu: true, eval-bleu-remove-bpe: true"
BY_EPOCH = "average: null\ntune: null"
FIVE_EPOCHS = (
    "max-epoch: 5, max-update: null, lr-scheduler: fixed, lr-period-updates: null, save-interval-updates: null"
)
PLATEAU = "lr-scheduler: reduce_lr_on_plateau, lr-period-updates: null"
LSTM = "train: {arch: lstm, decoder-attention: 0, encoder-ffn-embed-dim: null, decoder-ffn-embed-dim: null}"
MISTAKES = {
    "generate: {beam: many}": "`generate.beam` is many, which fairseq-generate refuses: argument --beam: inv",
    "generate: {beem: 5}": "which fairseq-generate refuses: unrecognized arguments: --beem=5",
    "generate: {beam: 0}": "`generate.beam` is 0, expected 1 or more",
    "generate: {sampling-topk: 5}": "the search of the section `generate`: --sampling-topk requires --sampling",
    "generate: {sampling: true}": "`generate.sampling` is true, and fairseq samples as many hypotheses as it prints",
    "generate: {sampling: true, beam: 1}": "generate.beam: 1 (here it is 4)",  # of the section speed
    "generate: {sampling: true, beam: 1, sampling-topk: 2000000}\nspeed: null": "the dictionary has fewer types",
    "generate: {diverse-beam-groups: 3}": "`generate.diverse-beam-groups` is 3, expected a divisor of the beam, 4",
    "generate: {match-source-len: true, min-len: 4}": "every hypothesis is as long as its source",
    "generate: {min-len: 30}": "`generate.min-len` is 30, and no hypothesis may be so long: see generate.max-len-a (0",
    "generate: {replace-unk: true}": "`generate.replace-unk` is true, which fairseq does on text that is not binar",
    "generate: {bpe: subword_nmt}": "`generate.bpe` is subword_nmt, and the stages read fairseq's lines before it",
    "generate: {constraints: true}": "`generate.constraints` is true, and fairseq-generate reads none",
    "generate: {score-reference: true}": "and the references would be scored as if they were the output",
    "generate: {prefix-size: 1}": "`generate.prefix-size` is 1, and the references' own words would be scored",
    "generate: {decoding-format: vote}": "models that refine a sentence, not for those that write it word by word",
    "generate: {eos-token: end}": "`generate.eos-token` is end, which is for fairseq's tasks of speech",
    f"generate: {{print-alignment: hard}}\n{LSTM}": "`generate.print-alignment` is hard, and the model has no atten",
    "generate: {lm-path: no.pt, lm-weight: 0.1}": "`generate.lm-path` is no.pt, expected the file of a language",
    f"generate: {{lm-path: {__file__}}}": "which has no effect without generate.lm-weight",
    "generate: {lm-weight: 0.1}": "`generate.lm-weight` is 0.1, which has no effect without generate.lm-path",
    "generate: {lenpen: 2, unnormalized: true}\ntune: null": "which has no effect beside generate.unnormalized",
    "generate: {required-batch-size-multiple: 8}": "with which fairseq leaves out the last sentences",
    "generate: {num-shards: 2}": "`generate.num-shards` is 2, with which fairseq reads a part of the text",
    "generate: {memory-efficient-fp16: true}": "and a search has its precision from scripts.generate --precision",
    "generate: {scoring: wer}": "the search of the section `generate`: Please install editdistance",
    "generate: {model-overrides: '{dropout'}": "the search of the section `generate`: '{' was never closed",
    "generate: {source-lang: de, target-lang: en}": "`generate.source-lang` is de, and the other stages go from en",
    "generate: {task: translation_lev}": "`generate.task` is translation_lev, which is not what the model is trained",
    "generate: {post-process: sentencepiece}": "is sentencepiece, and debian_en_de is cut into units of subword_nmt",
    "generate: {post-process: null}": "is left out, and debian_en_de is cut into units of subword_nmt, which it would",
    "tune: {max-len-b: [10, -3]}": "`tune.max-len-b` is -3, expected 0 or more",
    "tune: {post-process: [subword_nmt, letter]}": "`tune.post-process` is letter, and debian_en_de is cut into",
    "train: {arch: nonsense}": "`train.arch` is nonsense, which fairseq-train refuses: argument --arch/-a: ",
    "train: {lr: fast}": "`train.lr` is fast, which fairseq-train refuses: argument --lr: ",
    "train: {adam-betas: 0.9}": "a step with `train.optimizer`: cannot unpack",
    "train: {encoder-attention-heads: 5}": "5 heads do not divide 32 channels; choose a divisor of 32",
    "train: {best-checkpoint-metric: bleu}": "expected one of loss, nll_loss, ppl, which a validation report",
    "train: {best-checkpoint-metric: accuracy}": "and accuracy train.report-accuracy: true",
    f"train: {{best-checkpoint-metric: bleu, {EVAL_BLEU}}}": "of which more is better, and the worst checkpoint would",
    "train: {maximize-best-checkpoint-metric: true}": "is loss, of which less is better: the worst checkpoint would",
    "train: {eval-bleu: true}": "`train.eval-bleu-remove-bpe` is left out, and debian_en_de is in units of subword_n",
    f"train: {{{EVAL_BLEU}, eval-bleu-args: '{{\"max-len-a\": 1}}'}}": "fairseq's search passes max-len-a over",
    f"train: {{{EVAL_BLEU}, eval-bleu-args: beam}}": "build the model of `train`: Expecting value",
    "train: {max-tokens: null}": "`train.max-tokens` is left out, expected it, or train.batch-size",
    "train: {valid-subset: 'valid,dev'}": "`train.valid-subset` is valid,dev, expected some of train, valid, test",
    f"train: {{{PLATEAU}, disable-validation: true}}": "is reduce_lr_on_plateau, which goes by validations; take",
    "train: {disable-validation: true, patience: 5}": "`train.patience` is 5, which has no effect without validation",
    f"{BY_EPOCH}\ntrain: {{validate-interval: 10, {FIVE_EPOCHS}}}": "training ends after 5 epochs: without a valid",
    "train: {no-save: true}": "`train.no-save` is true, so that the training would leave nothing behind",
    "train: {no-last-checkpoints: true}": "`train.no-last-checkpoints` is true, and a training goes on from",
    "train: {save-async: true}": "fairseq's second name; write train.write-checkpoints-asynchronously",
    "train: {checkpoint-suffix: x}": "`train.checkpoint-suffix` is x, and no stage looks for checkpoints of such",
    "train: {finetune-from-model: no.pt}": "`train.finetune-from-model` is no.pt, expected the file of a checkpoint",
    "train: {reset-dataloader: true}": "`train.reset-dataloader` is true, with which a training that goes on after",
    "train: {no-save-optimizer-state: true}": "a training that goes on after an interruption forgets what it had",
    "train: {memory-efficient-bf16: true}": "beside the same `precision`, here fp32; set that, or take it out",
    "train: {source-lang: de, target-lang: en}": "`train.source-lang` is de, and the other stages go from en to de",
    "train: {dataset-impl: lazy}": "`train.dataset-impl` is lazy, and the binarised text is mmap",
    "train: {criterion: adaptive_loss, ddp-backend: legacy_ddp}": "for a model with an adaptive softmax",
    "dataset: debian_en_zh\ntrain: {share-all-embeddings: true}\nspeed: null": "with --joined-dictionary",
    "average: {last: 9}\ntune: null": "`average.last` asks for 9 checkpoints by update",
    "batch: {tokens: 1, max-tokens: 9}\ntrain: {max-tokens: null}": "batch.tokens is 1, too few for 2 devices",
}


@pytest.mark.parametrize("changes", MISTAKES)
def test_a_mistake_is_named_with_its_key(tmp_path, changes):
    with pytest.raises(UserError) as refused:
        said(tmp_path, changes, devices=Devices(gpu=False, count=2))
    assert str(refused.value).startswith(f"{tmp_path / 'model.yaml'}: ")
    assert MISTAKES[changes] in str(refused.value)


def test_a_model_that_reads_words_is_built(tmp_path, data):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("1 32\nw1 " + " ".join(["0.5"] * 32) + "\n")
    assert said(tmp_path, f"train: {{encoder-embed-path: {vectors}}}") == ""
    assert said(tmp_path, f"train: {{encoder-embed-path: {vectors}}}", data) == ""
    with pytest.raises(UserError, match="do not divide"):
        said(tmp_path, f"train: {{encoder-embed-path: {vectors}, encoder-conv-heads: 5}}", data)


@pytest.mark.parametrize(
    "changes",
    [
        "generate: {post-process: true}",
        "generate: {post-process: '@@ '}",
        "generate: {sampling: true, sampling-topk: 5, beam: 1}\nspeed: null",
        "generate: {diverse-beam-groups: 2, print-step: true, no-repeat-ngram-size: 3, scoring: sacrebleu}",
        "generate: {print-alignment: hard, num-shards: 1, model-overrides: \"{'dropout': 0.1}\"}",
        f"train: {{best-checkpoint-metric: bleu, {EVAL_BLEU}, maximize-best-checkpoint-metric: true}}",
        "train: {best-checkpoint-metric: accuracy, report-accuracy: true, maximize-best-checkpoint-metric: true}",
        "train: {best-checkpoint-metric: ppl, patience: 5, keep-best-checkpoints: 3}",
    ],
)
def test_what_fairseq_does_is_not_refused(tmp_path, changes):
    assert said(tmp_path, changes) == ""


def test_generation_reads_lines_as_long_as_training_does(tmp_path):
    said(tmp_path, "train: {max-source-positions: 2048}")
    for command in check.generations(load_config(tmp_path / "model.yaml"), Path("data"), CPU):
        assert command.given("max-source-positions") == "2048"  # fairseq-generate's own limit is 1,024


def test_the_baseline_of_the_speed_is_checked_too(tmp_path):
    (tmp_path / "other.yaml").write_text("base: base.yaml\nspeed: null\ntrain: {no-save: true}\n")
    with pytest.raises(UserError, match=r"other\.yaml: `train\.no-save` is true"):
        said(tmp_path, "speed: {baseline: other.yaml}")


OF_LANGUAGE_MODELS = {
    "generate: {beam: 4}": "`generate.beam` is 4, which fairseq-eval-lm refuses: unrecognized",
    "train: {eval-bleu: true}": "`train.eval-bleu` is true, which fairseq-train refuses: unrecognized",
    "train: {best-checkpoint-metric: nll_loss}": "expected one of loss, ppl, which a validation reports",
    "generate: {post-process: subword_nmt}": "is subword_nmt, and debian_lm is in whole words; take it out",
    "generate: {num-shards: 2}": "`generate.num-shards` is 2, with which fairseq reads a part of the text",
    "score: {metric: bleu}": "`score.metric` is bleu; language models have score: {metric: perplexity}, others",
    "dataset: debian_en_de": "`score.metric` is perplexity, and debian_en_de is of en and de",
    "dataset: gbw\ngenerate: {post-process: letter}": "is letter, expected subword_nmt or sentencepiece",
}


@pytest.mark.parametrize("changes", OF_LANGUAGE_MODELS)
def test_the_flags_of_a_language_model_are_those_of_its_own_commands(tmp_path, changes):
    with pytest.raises(UserError) as refused:
        said(tmp_path, changes, base=LANGUAGE_MODEL)
    assert OF_LANGUAGE_MODELS[changes] in str(refused.value)


# settings that are too small, where the line is that is too long for them, and the setting that is named
TOO_SMALL = {
    "train: {max-source-positions: 9}": ("valid.en", "train.max-source-positions"),
    "train: {max-target-positions: 9}": ("valid.de", "train.max-target-positions"),
    "generate: {max-source-positions: 9}": ("valid.en", "generate.max-source-positions"),
    "generate: {max-tokens: 9}": ("valid", "generate.max-tokens"),
    "train: {max-tokens-valid: 9}": ("valid", "train.max-tokens-valid"),
}


@pytest.mark.parametrize("changes", TOO_SMALL)
def test_a_line_that_is_too_long_is_named_and_the_advice_is_taken(tmp_path, data, changes):
    from fairseq.data import data_utils

    with pytest.raises(UserError) as refused:
        said(tmp_path, changes, data)
    lines = data_utils.load_indexed_dataset(str(data / "valid.en-de.en"), None)
    sizes = lines.sizes.tolist()
    first = next(number for number, size in enumerate(sizes) if size > 9)
    text = str(refused.value)
    where, named = TOO_SMALL[changes]
    assert f"model.yaml: line {first + 1} of {where} has {sizes[first]} tokens, its end counted, expected" in text
    assert f"expected at most 9 (`{named}`); " in text
    assert f"{sum(size > 9 for size in sizes) - 1} more are too long. Set " in text
    section, key, value = text.split("Set ")[1].split(", or")[0].replace(": ", ".").split(".")
    assert int(value) == max(sizes)
    assert said(tmp_path, f"{section}: {{{key}: {value}}}", data) == ""


@pytest.mark.parametrize("key", ["tokens-per-sample", "max-target-positions"])
def test_a_language_model_has_limits_of_its_own(tmp_path, one_language, key):
    with pytest.raises(UserError, match=rf"line \d+ of valid has 1\d tokens, its end counted, .* 9 \(`train\.{key}`\)"):
        said(tmp_path, f"train: {{{key}: 9}}", one_language, LANGUAGE_MODEL)


def test_blocks_are_as_long_as_they_are_asked_to_be(tmp_path, one_language):
    blocks = "train: {{tokens-per-sample: 9, sample-break-mode: none{}}}"
    assert said(tmp_path, blocks.format(""), one_language, LANGUAGE_MODEL) == ""
    with pytest.raises(UserError, match=r"are longer than 5 tokens \(train\.max-target-positions.* None is left"):
        said(tmp_path, blocks.format(", max-target-positions: 5"), one_language, LANGUAGE_MODEL)


def test_pairs_that_training_skips_are_counted(tmp_path, data):
    text = said(tmp_path, "train: {max-tokens: 9, max-tokens-valid: 300}", data)
    assert "of the 200 samples for training (" in text
    assert "are longer than 9 tokens" in text
    with pytest.raises(UserError, match=r"200 of the 200 samples for training \(100\.0%\) .* None is left"):
        said(tmp_path, "train: {max-tokens: 3, max-tokens-valid: 300}", data)


def test_the_epochs_that_a_training_has_follow_from_the_data(tmp_path, data):
    """200 pairs in batches of 50: 4 updates an epoch, 2 with two devices, 10 or 20 epochs in 40 updates."""
    changes = (
        "tune: null\naverage: {{by: epoch, last: {}}}\n"
        "train: {{no-epoch-checkpoints: null, max-tokens: 3000, batch-size: 50, keep-interval-updates: null{}}}"
    )
    assert said(tmp_path, changes.format(10, ""), data) == ""
    with pytest.raises(UserError, match="asks for 11 checkpoints by epoch, but a training of 10 epochs will have kept"):
        said(tmp_path, changes.format(11, ""), data)
    assert said(tmp_path, changes.format(11, ""), data, devices=Devices(gpu=False, count=2)) == ""
    assert said(tmp_path, changes.format(20, ", update-freq: 2"), data) == ""


def test_the_command_ends_with_a_sentence(tmp_path, data, capsys, monkeypatch):
    path = tmp_path / "model.yaml"
    path.write_text(CONFIG)
    monkeypatch.setattr(check, "find_devices", lambda *_, **__: CPU)
    check.main([str(path), "--data", str(data)])
    assert capsys.readouterr().out == f"check: {path} can be trained on these data\n"


def test_a_missing_tokeniser_is_named_before_the_training(tmp_path, monkeypatch):
    def missing(*given, **options):
        raise RuntimeError("Japanese tokenization needs more.\n\n    pip install sacrebleu[ja]\n")

    (tmp_path / "c.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "c.yaml")
    monkeypatch.setattr(metrics, "measures", missing)
    with pytest.raises(UserError, match=r"the stage `score` cannot measure text in de: .* pip install sacrebleu\[ja\]"):
        check.check_scores(config)
