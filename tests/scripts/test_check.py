"""Settings that would waste a training, or make its scores incomparable, are refused with their file and key."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from scripts import check
from scripts.config import Config, load_config
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.models import load_plugin
from scripts.scoring import rouge
from tests.compat.conftest import write_corpus

CONFIG = """
dataset: debian_en_de
seeds: [1]
train:
  task: translation
  arch: pla_dynamicconv_small
  optimizer: adam
  lr: 0.01
  criterion: label_smoothed_cross_entropy
  max-tokens: 300
  max-update: 40
  save-interval-updates: 10
  keep-interval-updates: 3
average: {by: update, last: 3}
generate: {beam: 4, max-tokens: 3000, post-process: subword_nmt}
tune: {last: [1, 3], lenpen: [0.5, 1.0], max-len-b: [10, 20]}
"""
LANGUAGE_MODEL = """
dataset: debian_lm
seeds: [1]
train:
  task: language_modeling
  arch: pla_dynamicconv_lm_small
  sample-break-mode: eos
  tokens-per-sample: 20
  criterion: adaptive_loss
  ddp-backend: legacy_ddp
  optimizer: nag
  adaptive-input-cutoff: [10, 20]
  adaptive-softmax-cutoff: [10, 20]
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


def checked(folder: Path, changes: str = "", data: Path | None = None, base: str = CONFIG) -> None:
    (folder / "base.yaml").write_text(base)
    (folder / "model.yaml").write_text(f"base: base.yaml\n{changes}\n")
    check.check(load_config(folder / "model.yaml"), data, CPU)


def refusal(*arguments: object, **options: object) -> str:
    with pytest.raises(UserError) as error:
        checked(*arguments, **options)  # type: ignore[arg-type]
    return str(error.value)


EVAL_BLEU = "eval-bleu: true, best-checkpoint-metric: bleu"


@pytest.mark.parametrize(
    "changes",
    [
        "generate: {post-process: true}",
        "generate: {post-process: '@@ '}",
        f"train: {{{EVAL_BLEU}, maximize-best-checkpoint-metric: true}}",
        "train: {best-checkpoint-metric: accuracy, report-accuracy: true, maximize-best-checkpoint-metric: true}",
        "train: {best-checkpoint-metric: ppl, patience: 5}",
        "train: {lr-scheduler: cosine, max-update: 100, warmup-updates: 20, lr-period-updates: 200}",
        "train: {lr-scheduler: cosine, max-update: 100, warmup-updates: 20, lr-period-updates: 40, lr-shrink: 0.5}",
    ],
)
def test_settings_that_can_be_trained_pass(tmp_path, data, one_language, changes):
    checked(tmp_path, changes, data)
    checked(tmp_path, "", one_language, LANGUAGE_MODEL)


UNITS = "but debian_en_de has subwords of subword_nmt; set generate.post-process: subword_nmt"
REFUSED = [
    (CONFIG, "generate: {beam: many}", "fairseq-generate refuses its flags: argument --beam: invalid"),
    (CONFIG, "generate: {beem: 5}", "fairseq-generate refuses its flags: unrecognized arguments: --beem=5"),
    (CONFIG, "train: {arch: nonsense}", "fairseq-train refuses its flags: argument --arch/-a: invalid"),
    (CONFIG, "generate: {post-process: sentencepiece}", f"`generate.post-process` is sentencepiece, {UNITS}"),
    (CONFIG, "generate: {post-process: null}", f"`generate.post-process` is left out, {UNITS}"),
    (CONFIG, "tune: {post-process: [letter]}", f"`tune.post-process` is letter, {UNITS}"),
    (CONFIG, "train: {best-checkpoint-metric: bleu}", "expected one of loss, nll_loss, ppl, which validation report"),
    (CONFIG, f"train: {{{EVAL_BLEU}}}", "but a higher bleu is better: the worst checkpoint would"),
    (CONFIG, "train: {maximize-best-checkpoint-metric: true}", "is true, but a lower loss is better"),
    (
        CONFIG,
        "train: {lr-scheduler: cosine, max-update: 100, warmup-updates: 20, lr-period-updates: 40}",
        "`train.lr-period-updates` is 40, so the learning rate starts a second cycle at update 60 of 100; set "
        "train.lr-period-updates: 80 ",
    ),
    (CONFIG, "average: {last: 9}\ntune: null", "`average.last` asks for 9 checkpoints by update"),
    *(
        (CONFIG, f"{section}: {{{flag}: {setting}}}", f"`{section}.{flag}` is {value}, expected {limit}")
        for section, flag, value, limit in (
            ("generate", "beam", 0, "a whole number from 1 on"),
            ("generate", "beam", -2, "a whole number from 1 on"),
            ("tune", "beam", 0, "a whole number from 1 on"),
            ("generate", "temperature", 0.0, "a number above 0"),
            ("tune", "max-len-b", -5, "at least --min-len, or 0 with --max-len-a"),
            ("generate", "max-len-a", -0.5, "a number from 0 on"),
            ("tune", "min-len", -1, "a number from 0 on"),
            ("generate", "batch-size", 0, "a whole number from 1 on"),
            ("tune", "max-tokens", 0, "a whole number from 1 on"),
            ("generate", "no-repeat-ngram-size", -1, "a number from 0 on"),
            ("generate", "stepwise-length-penalty", -1, "a number from 0 on"),
            ("generate", "diverse-beam-groups", 3, "a divisor of --beam, or -1 for none"),
            ("generate", "sampling", "true", "false, or beside it a beam of 1"),
            ("generate", "replace-unk", "true", "nothing: it is for text that is not binarised"),
            ("train", "validate-interval", 0, "a whole number from 1 on"),
            ("train", "save-interval", 0, "a whole number from 1 on"),
            ("train", "log-interval", 0, "a whole number from 1 on"),
            ("train", "max-tokens-valid", "many", "a whole number from 1 on"),
            ("train", "label-smoothing", 2, "a number from 0 to 1"),
        )
        for setting in ([f"[8, {value}]"] if section == "tune" else [value])
    ),
    *(
        (CONFIG, f"train: {{{flags}}}", f"fairseq-train cannot build the {expected}")
        for flags, expected in (
            ("decoder-conv-heads: 5", "model: --decoder-conv-heads 5 does not divide --decoder-conv-dim 128 "),
            ("encoder-kernel-size-list: [6, 8]", "model: --encoder-kernel-size-list holds [6, 8]; expected odd"),
            ("arch: transformer, encoder-attention-heads: 3", "model: AssertionError: embed_dim must be divisible"),
            ("lr: [0.1, 0.2], lr-scheduler: inverse_sqrt", "schedule of the learning rate: Cannot use a fixed"),
            ("eval-bleu: true, eval-bleu-args: '{\"beam\": 0}', task: pla_translation", "model: --beam is 0, expected"),
            ("eval-bleu: true, eval-bleu-args: '{beam: 4}'", "model: Expecting property name enclosed in double qu"),
        )
    ),
    (CONFIG, "generate: {sampling-topk: 5}", "cannot search with its flags: AssertionError: --sampling-topk requires"),
    (CONFIG, "generate: {lenpen: 2.0, stepwise-length-penalty: 1.0}", "--stepwise-length-penalty replaces --lenpen"),
    (CONFIG, "tune: {stepwise-length-penalty: [0.0, 1.0]}", "--stepwise-length-penalty replaces --lenpen"),
    (CONFIG, "generate: {bpe: sentencepiece}", "fairseq-generate cannot search with its flags: OSError: file ??? not"),
    (CONFIG, "dataset: debian_docs_en_de", "and debian_docs_en_de has a dictionary for each language; set train.no-sh"),
    (
        LANGUAGE_MODEL,
        "train: {adaptive-input-factor: 100.0, no-tie-adaptive-weights: true}",
        "--adaptive-input-factor is 100, which leaves band 2 ",
    ),
    (LANGUAGE_MODEL, "generate: {context-window: -1}", "`generate.context-window` is -1, expected a number from 0 on"),
    (LANGUAGE_MODEL, "generate: {max-tokens: 0}", "`generate.max-tokens` is 0, expected a whole number from 1 on"),
    (LANGUAGE_MODEL, "train: {best-checkpoint-metric: nll_loss}", "expected one of loss, ppl, which validation"),
    (LANGUAGE_MODEL, "generate: {beam: 4}", "fairseq-eval-lm refuses its flags: unrecognized arguments: --beam"),
]


@pytest.mark.parametrize(("base", "changes", "expected"), REFUSED)
def test_a_mistake_is_named_with_its_key(tmp_path, base, changes, expected):
    text = refusal(tmp_path, changes, base=base)
    assert text.startswith(f"{tmp_path / 'model.yaml'}: ")
    assert expected in text


@pytest.mark.parametrize(
    ("base", "key"),
    [
        (CONFIG, "train.max-source-positions"),
        (CONFIG, "train.max-target-positions"),
        (CONFIG, "train.max-tokens-valid"),
        (LANGUAGE_MODEL, "train.tokens-per-sample"),
        (LANGUAGE_MODEL, "train.max-target-positions"),
        (CONFIG, "generate.max-tokens"),
        (LANGUAGE_MODEL, "generate.max-tokens"),
    ],
)
def test_a_line_that_is_too_long_is_named_and_the_advice_is_taken(tmp_path, data, one_language, base, key):
    from fairseq.data import data_utils

    folder = one_language if base is LANGUAGE_MODEL else data
    section, _, flag = key.partition(".")
    text = refusal(tmp_path, f"{section}: {{{flag}: 9}}", folder, base)
    lines = data_utils.load_indexed_dataset(str(data / "valid.en-de.en"), None)  # as long as the German lines
    sizes = lines.sizes.tolist()
    first = next(number for number, size in enumerate(sizes) if size > 9)
    assert (
        f"model.yaml: line {first + 1} of valid has {sizes[first]} tokens with its end symbol, expected at most" in text
    )
    more = sum(size > 9 for size in sizes) - 1
    assert f" 9 (`{key}`); {more} more are too long. Set {key}: {max(sizes)}," in text
    checked(tmp_path, f"{section}: {{{flag}: {max(sizes)}}}", folder, base)


def test_the_command_prints_that_the_settings_pass(tmp_path, data, capsys, monkeypatch):
    path = tmp_path / "model.yaml"
    path.write_text(CONFIG)
    monkeypatch.setattr(check, "find_devices", lambda *_, **__: CPU)
    check.main([str(path), "--data", str(data)])
    assert capsys.readouterr().out == f"check: {path} can be trained on these data\n"


@pytest.mark.parametrize(
    ("metric", "target", "missing", "message"),
    [
        ("rouge", "en", "rouge_score", "ModuleNotFoundError: "),
        ("sacrebleu", "ja", "sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", "pip install sacrebleu[ja]"),
        ("bleu", "ko", "sacrebleu.tokenizers.tokenizer_ko_mecab.MeCab", "pip install sacrebleu[ko]"),
    ],
)
def test_a_missing_package_that_the_scores_need_is_reported_before_the_training(
    metric, target, missing, message, tmp_path, monkeypatch
):
    dataset = tmp_path / "toy.yaml"
    dataset.write_text(f"kind: text\nsource: de\ntarget: {target}\n")
    config = Config(tmp_path / "model.yaml", "model", str(dataset), [1], score={"metric": metric})
    check.check_scores(config)
    if "." in missing:
        monkeypatch.setattr(missing, None)
    else:
        monkeypatch.setitem(sys.modules, f"{missing}.rouge_scorer", None)
        rouge._scorer.cache_clear()
        rouge._document.cache_clear()
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        check.check_scores(config)
    assert f"`score.metric` {metric} cannot be computed: " in str(refused.value)
