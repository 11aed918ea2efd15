"""Each mistake is found before anything runs, and named with its file, its key, what was got and what was expected."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from data_prep.dataset import load_dataset
from scripts import check
from scripts.common.errors import UserError
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.mistakes import find_mistakes
from scripts.fairseq_io.models import TaskAndModel, load_plugin, parse
from scripts.pipeline.config import Config, load_config
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


def changed(folder: Path, changes: str, base: str = CONFIG) -> Config:
    (folder / "base.yaml").write_text(base)
    (folder / "model.yaml").write_text(f"base: base.yaml\n{changes}\n")
    return load_config(folder / "model.yaml")


def said(folder: Path, changes: str = "", data: Path | None = None, base: str = CONFIG, count: int = 1) -> str | None:
    """The sentence of the check of a configuration with changes; raises its refusal."""
    return check.check(changed(folder, changes, base), data, Devices(gpu=False, count=count))


def refused(folder: Path, *given: object, **more: object) -> str:
    with pytest.raises(UserError) as error:
        said(folder, *given, **more)  # type: ignore[arg-type]
    return str(error.value)


@pytest.mark.parametrize("base", [CONFIG, LANGUAGE_MODEL], ids=["translation", "language model"])
def test_what_can_be_trained_is_taken(tmp_path, base, data, one_language):
    assert said(tmp_path, base=base) is None
    assert said(tmp_path, base=base, data=data if base == CONFIG else one_language) is None


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, TaskAndModel]:
    """The model of each configuration."""
    models = {}
    for base in (CONFIG, LANGUAGE_MODEL):
        config = changed(tmp_path_factory.mktemp("model"), "", base)
        models[base] = check.build(config, parse(check.training(config, check.NOWHERE, CPU)), None)
    return models


def mistakes(config: Config, built: TaskAndModel) -> list[str]:
    """Mistakes in the flags of a configuration that has the model of another."""
    given = [check.training(config, check.NOWHERE, CPU), *check.generations(config, check.NOWHERE, CPU)]
    dataset = load_dataset(config.dataset)
    return [
        str(command.refusal(flag, why))
        for command in given
        for flag, why in find_mistakes(command, parse(command), config, dataset, built.model, gpu=False)
    ]


EVAL_BLEU = "eval-bleu: true, eval-bleu-remove-bpe: true"
MISTAKES = {
    "generate: {sampling: true}": "`generate.sampling` is true, and fairseq samples as many hypotheses as it prints",
    "generate: {sampling: true, beam: 1}": "generate.beam: 1 (here it is 4)",  # of the section speed
    "generate: {diverse-beam-groups: 3}": "`generate.diverse-beam-groups` is 3, expected a divisor of the beam, 4",
    "generate: {min-len: 30}": "`generate.min-len` is 30, and no hypothesis may be so long: see generate.max-len-a (0",
    "generate: {replace-unk: true}": "`generate.replace-unk` is true, which fairseq does on text that is not binar",
    "generate: {bpe: subword_nmt}": "`generate.bpe` is subword_nmt, and the stages read fairseq's lines before it",
    "generate: {prefix-size: 1}": "`generate.prefix-size` is 1, and the references' own words would be scored; take",
    "generate: {memory-efficient-fp16: true}": "and a search has its precision from scripts.generate --precision",
    "generate: {lm-path: no.pt, lm-weight: 0.1}": "`generate.lm-path` is no.pt, expected the file of a language",
    "generate: {lm-weight: 0.1}": "`generate.lm-weight` is 0.1, and generate.lm-path is None; set both, or",
    "generate: {required-batch-size-multiple: 8}": "with which fairseq leaves out the last sentences",
    "generate: {num-shards: 2}": "`generate.num-shards` is 2, with which fairseq reads a part of the text",
    "generate: {source-lang: de, target-lang: en}": "`generate.source-lang` is de, and debian_en_de goes from en to de",
    "generate: {post-process: sentencepiece}": "is sentencepiece, and debian_en_de is cut into units of subword_nmt",
    "generate: {post-process: null}": "is left out, and debian_en_de is cut into units of subword_nmt, which it would",
    "tune: {post-process: [subword_nmt, letter]}": "`tune.post-process` is letter, and debian_en_de is cut into",
    "train: {best-checkpoint-metric: bleu}": "expected one of loss, nll_loss, ppl, which a validation report",
    "train: {best-checkpoint-metric: accuracy}": "and accuracy train.report-accuracy: true",
    f"train: {{best-checkpoint-metric: bleu, {EVAL_BLEU}}}": "and of train.best-checkpoint-metric, bleu, more is bett",
    "train: {maximize-best-checkpoint-metric: true}": "is true, and of train.best-checkpoint-metric, loss, less is",
    "train: {eval-bleu: true}": "`train.eval-bleu-remove-bpe` is left out, and debian_en_de is in units of subword_n",
    f"train: {{{EVAL_BLEU}, eval-bleu-args: '{{\"max-len-a\": 1}}'}}": "fairseq's search passes max-len-a over",
    "train: {max-tokens: null}": "`train.max-tokens` is left out, expected it, or train.batch-size",
    "train: {no-save: true}": "`train.no-save` is true, so that the training would leave nothing behind; take it out",
    "train: {finetune-from-model: no.pt}": "`train.finetune-from-model` is no.pt, expected the file of a checkpoint",
    "train: {reset-dataloader: true}": "`train.reset-dataloader` is true, with which a training that goes on after",
    "train: {memory-efficient-bf16: true}": "beside the same `precision`, here fp32; set that, or take it out",
    "train: {source-lang: de, target-lang: en}": "`train.source-lang` is de, and debian_en_de goes from en to de",
    "train: {criterion: adaptive_loss, ddp-backend: legacy_ddp}": "for a model with an adaptive softmax",
}
OF_LANGUAGE_MODELS = {
    "train: {best-checkpoint-metric: nll_loss}": "expected one of loss, ppl, which a validation reports",
    "generate: {post-process: subword_nmt}": "is subword_nmt, and debian_lm is in whole words; take it out",
    "generate: {num-shards: 2}": "`generate.num-shards` is 2, with which fairseq reads a part of the text",
    "score: {metric: bleu}": "`score.metric` is bleu; language models have score: {metric: perplexity}, no others",
    "dataset: gbw\ngenerate: {post-process: letter}": "is letter, expected subword_nmt or sentencepiece",
}


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [(base, *row) for base, rows in ((CONFIG, MISTAKES), (LANGUAGE_MODEL, OF_LANGUAGE_MODELS)) for row in rows.items()],
)
def test_a_mistake_is_named_with_its_key(tmp_path, built, base, changes, expected):
    text = "\n".join(mistakes(changed(tmp_path, changes, base), built[base]))
    assert text.startswith(f"{tmp_path / 'model.yaml'}: ")
    assert expected in text


@pytest.mark.parametrize("key", ["tensorboard-logdir", "wandb-project"])
def test_a_package_that_is_missing_is_named_before_the_training(tmp_path, built, monkeypatch, key):
    config = changed(tmp_path, f"train: {{{key}: a}}")
    monkeypatch.setattr("scripts.fairseq_io.mistakes.find_spec", lambda name: None)
    (text,) = mistakes(config, built[CONFIG])
    assert f"`train.{key}` is a, and nothing would be" in text
    assert f"pip install {key.partition('-')[0]}" in text
    monkeypatch.setattr("scripts.fairseq_io.mistakes.find_spec", lambda name: find_spec("torch"))
    assert mistakes(config, built[CONFIG]) == []


REFUSED = {
    "generate: {beam: many}": "`generate.beam` is many, which fairseq-generate refuses: argument --beam: inv",
    "generate: {beem: 5}": "which fairseq-generate refuses: unrecognized arguments: --beem=5",
    "generate: {sampling-topk: 5}": "the search of the section `generate`: --sampling-topk requires --sampling",
    "generate: {scoring: wer}": "the search of the section `generate`: Please install editdistance",
    "generate: {model-overrides: '{dropout'}": "the search of the section `generate`: '{' was never closed",
    "generate: {min-len: 30, prefix-size: 1}": "`generate.min-len` is 30",  # and the other one
    "train: {arch: nonsense}": "`train.arch` is nonsense, which fairseq-train refuses: argument --arch/-a: ",
    "train: {lr: fast}": "`train.lr` is fast, which fairseq-train refuses: argument --lr: ",
    "train: {lr: [0.01, 0.02]}": "build `train.optimizer` and `train.lr-scheduler`: Cannot use a fixed learning rate",
    "train: {encoder-attention-heads: 5}": "5 heads do not divide 32 channels; choose",
    f"train: {{{EVAL_BLEU}, eval-bleu-args: beam}}": "build the model of `train`: Expecting value",
    "dataset: debian_en_zh\ntrain: {share-all-embeddings: true}\nspeed: null": "with --joined-dictionary",
    "average: {last: 9}\ntune: null": "`average.last` asks for 9 checkpoints by update",
    "batch: {tokens: 1, max-tokens: 9}\ntrain: {max-tokens: null}": "batch.tokens is 1, too few for 2 devices",
}


@pytest.mark.parametrize("changes", REFUSED)
def test_what_fairseq_would_refuse_is_said_with_its_key(tmp_path, changes):
    text = refused(tmp_path, changes, count=2)
    assert text.startswith(f"{tmp_path / 'model.yaml'}: ")
    assert REFUSED[changes] in text
    assert ("\n" in text) is ("prefix-size" in changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("generate: {beam: 4}", "`generate.beam` is 4, which fairseq-eval-lm refuses: unrecognized"),
        ("train: {eval-bleu: true}", "`train.eval-bleu` is true, which fairseq-train refuses: unrecognized"),
        ("dataset: debian_en_de", "`score.metric` is perplexity, and debian_en_de is of en and de"),
    ],
)
def test_the_flags_of_a_language_model_are_those_of_its_own_commands(tmp_path, changes, expected):
    assert expected in refused(tmp_path, changes, base=LANGUAGE_MODEL)


def test_a_model_that_reads_words_is_built(tmp_path, data):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("1 32\nw1 " + " ".join(["0.5"] * 32) + "\n")
    assert said(tmp_path, f"train: {{encoder-embed-path: {vectors}}}", data) is None


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
def test_what_fairseq_does_is_not_refused(tmp_path, built, changes):
    assert mistakes(changed(tmp_path, changes), built[CONFIG]) == []


def test_generation_reads_lines_as_long_as_training_does(tmp_path):
    config = changed(tmp_path, "train: {max-source-positions: 2048}")
    for command in check.generations(config, Path("data"), CPU):
        assert command.given("max-source-positions") == "2048"  # fairseq-generate's own limit is 1,024


@pytest.mark.parametrize(
    "named", ["train.max-target-positions", "generate.max-source-positions", "generate.max-tokens"]
)
def test_a_line_that_is_too_long_is_named_and_the_advice_is_taken(tmp_path, data, named):
    from fairseq.data import data_utils

    section, key = named.split(".")
    text = refused(tmp_path, f"{section}: {{{key}: 9}}", data)
    lines = data_utils.load_indexed_dataset(str(data / "valid.en-de.en"), None)  # as long as those of German
    sizes = lines.sizes.tolist()
    first = next(number for number, size in enumerate(sizes) if size > 9)
    assert f"model.yaml: line {first + 1} of valid has {sizes[first]} tokens, its end counted, expected at most" in text
    assert (
        f" 9 (`{named}`); {sum(size > 9 for size in sizes) - 1} more are too long. Set {named}: {max(sizes)}," in text
    )
    assert said(tmp_path, f"{section}: {{{key}: {max(sizes)}}}", data) is None


@pytest.mark.parametrize("key", ["tokens-per-sample", "max-target-positions"])
def test_a_language_model_has_limits_of_its_own(tmp_path, one_language, key):
    text = refused(tmp_path, f"train: {{{key}: 9}}", one_language, LANGUAGE_MODEL)
    assert "tokens, its end counted, expected at most 9 (`train." + key in text
    if key == "tokens-per-sample":  # which blocks are as long as
        blocks = "train: {tokens-per-sample: 9, sample-break-mode: none}"
        assert said(tmp_path, blocks, one_language, LANGUAGE_MODEL) is None


def test_the_epochs_that_a_training_has_follow_from_the_data(tmp_path, data):
    """200 pairs in batches of 50: 4 updates an epoch, 10 epochs in 40 updates."""
    changes = (
        "tune: null\naverage: {{by: epoch, last: {}}}\n"
        "train: {{no-epoch-checkpoints: null, max-tokens: 3000, batch-size: 50, keep-interval-updates: null{}}}"
    )
    assert said(tmp_path, changes.format(10, ""), data) is None
    text = refused(tmp_path, changes.format(11, ""), data)
    assert "asks for 11 checkpoints by epoch, but a training of 10 epochs will have kept" in text
    assert said(tmp_path, changes.format(20, ""), data, count=2) is None  # which make an update of two batches


def test_the_command_ends_with_a_sentence(tmp_path, data, capsys, monkeypatch):
    path = tmp_path / "model.yaml"
    path.write_text(CONFIG)
    monkeypatch.setattr(check, "find_devices", lambda *_, **__: CPU)
    check.main([str(path), "--data", str(data)])
    assert capsys.readouterr().out == f"check: {path} can be trained on these data\n"


def test_a_missing_tokeniser_is_named_before_the_training(tmp_path, monkeypatch):
    def missing(*given, **options):
        raise RuntimeError("Japanese tokenization needs more.\n\n    pip install sacrebleu[ja]\n")

    config = changed(tmp_path, "")
    monkeypatch.setattr(metrics, "measures", missing)
    with pytest.raises(UserError, match=r"the stage `score` cannot measure text in de: .* pip install sacrebleu\[ja\]"):
        check.check_scores(config, load_dataset(config.dataset))
