"""Whole trainings by fairseq-train, with updates as graphs on the CPU's tape, equal fairseq's on the same batches."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging.progress_bar import JsonProgressBar
from fairseq_cli import train as fairseq_train

from lightconv_plugin.training import CapturedTrainer, shapes
from tests.compat.conftest import corpus as corpus
from tests.training.runs import KERNELS, NO_DROPOUT, NO_DROPPED_WEIGHTS

pytestmark = pytest.mark.slow  # whole trainings of 8 updates by fairseq-train, two or more in each case

ONE_LAYER = [
    word
    for side in ("encoder", "decoder")
    for word in (
        *(f"--{side}-layers", "1", f"--{side}-embed-dim", "32", f"--{side}-ffn-embed-dim", "64"),
        *(f"--{side}-attention-heads", "2"),
    )
]
KERNEL = [word.replace("[3,5]", "[3]") for word in KERNELS]
OURS = [
    *("--arch", "pla_dynamicconv_iwslt_de_en", *ONE_LAYER, *NO_DROPOUT, *NO_DROPPED_WEIGHTS),
    *KERNEL,
]
RECIPE = """
    --optimizer adam --lr 0.01 --clip-norm 1 --max-tokens 300 --seed 1 --cpu --num-workers 0 --log-format json
    --log-interval 1 --cuda-graphs --no-epoch-checkpoints --max-update 8 --update-epoch-batch-itr True
"""
PAIR = ["--source-lang", "en", "--target-lang", "de", "--share-all-embeddings"]
SMOOTHED = ["--criterion", "pla_label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
TIMES = {"wps", "ups", "train_wall", "wall"}


@dataclass
class Training:
    """A training's logs per update and per epoch, the content of its checkpoint_last.pt, and its trainers."""

    logged: list[dict[str, float]] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    trainers: list[Any] = field(default_factory=list)


def train(data: Path, *commands: list[str]) -> Training:
    """Run training commands one after the other."""
    training = Training()

    def keep(self: Any, stats: dict[str, Any], tag: str | None = None, step: int | None = None) -> None:
        logs = {"train_inner": training.logged, "train": training.epochs}.get(str(tag))
        if logs is not None:
            logs.append({name: float(value) for name, value in stats.items() if name not in TIMES})

    original = CapturedTrainer.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        training.trainers.append(self)

    for command in commands:
        vars(checkpoint_utils.save_checkpoint).pop("best", None)  # left by an earlier training in this process
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["fairseq-train", str(data), *command])
            patch.setattr(JsonProgressBar, "log", keep)
            patch.setattr(JsonProgressBar, "print", keep)
            patch.setattr(CapturedTrainer, "__init__", made)
            fairseq_train.cli_main()
    folder = Path(training.trainers[-1].cfg.checkpoint.save_dir)
    training.state = torch.load(folder / "checkpoint_last.pt", weights_only=False)
    return training


def equal(captured: Training, fairseqs: Training, tolerance: float) -> None:
    """Compare logged values, parameters, and the state of optimizer, loss scale and learning rate."""
    assert len(captured.logged) == len(fairseqs.logged) > 0
    for mine, theirs in zip(captured.logged + captured.epochs, fairseqs.logged + fairseqs.epochs, strict=True):
        mine.pop("by_graphs", None)
        assert mine == pytest.approx(theirs, rel=tolerance, abs=2 * tolerance)
    for name, tensor in fairseqs.state["model"].items():
        # The same number added to all keys of a query changes no softmax. So the gradient of the keys' bias is 0 except
        # for rounding, and each of the 8 updates moves it by up to the learning rate (0.001 in 16 bits) at random.
        within = max(tolerance, 2 * 8 * 0.001) if name.endswith("k_proj.bias") and tolerance > 1e-3 else tolerance
        if not name.endswith("_float_tensor"):  # which fairseq does not initialise
            torch.testing.assert_close(captured.state["model"][name], tensor, rtol=0, atol=within, msg=name)
    optimizers = [each.state["last_optimizer_state"] for each in (captured, fairseqs)]
    steps = [[moments["step"] for moments in optimizer["state"].values()] for optimizer in optimizers]
    assert steps[0] == steps[1]
    assert optimizers[0].get("loss_scale") == optimizers[1].get("loss_scale")
    assert captured.state["optimizer_history"] == fairseqs.state["optimizer_history"]


STOP = "--max-update 5 --save-interval-updates 5"
FLOAT16 = "--fp16 --lr 0.001 --fp16-scale-window 3 --fp16-init-scale"
# flags of one command, or of two, the second of which resumes the first
COMMANDS: dict[str, tuple[str, ...]] = {
    "fixed, --update-freq": (
        "--lr-scheduler fixed --warmup-updates 3 --lr 0.01,0.005 --force-anneal 2 --lr-shrink 0.5 --update-freq 1,2",
    ),
    "cosine, --num-shards": (
        "--lr-scheduler cosine --lr-period-updates 6 --t-mult 2 --lr-shrink 0.5 --min-lr 1e-4 --num-shards 2",
    ),
    "polynomial_decay, validation": (
        "--lr-scheduler polynomial_decay --total-num-update 8 --warmup-updates 2 --validate-interval-updates 3",
    ),
    "resumed within an epoch": tuple(f"--lr-scheduler inverse_sqrt --warmup-updates 6 {more}" for more in (STOP, "")),
    "--reset-optimizer, --reset-dataloader": (STOP, "--reset-optimizer --reset-dataloader"),
    "--reset-lr-scheduler, --reset-meters": (STOP, "--reset-lr-scheduler --reset-meters --lr 0.003"),
    "--optimizer-overrides": (STOP, "--optimizer-overrides {'weight_decay':0.1}"),
    "--finetune-from-model": (STOP, "--finetune-from-model FOLDER/checkpoint_last.pt --save-dir FOLDER/tuned"),
    "--stop-time-hours": ("--stop-time-hours 1e-9",),
    "--bf16": ("--bf16 --lr 0.001",),
    "--fp16": (f"{FLOAT16} 16",),
    "--fp16, overflows": (f"{FLOAT16} {2**22}",),
}
TOLERANCES = {"--bf16": 2e-2, "--fp16": 5e-3}


@pytest.fixture
def trainings(graphs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Training, ...]]:
    """Return a function that trains twice: with graphs on the tape, and as fairseq does without a GPU."""

    def both(data: Path, *commands: list[str]) -> tuple[Training, ...]:
        results = []
        for folder in (tmp_path / "captured", tmp_path / "fairseqs"):
            words = [[word.replace("FOLDER", str(folder)) for word in command] for command in commands]
            if any({"--fp16", "--quant-noise-scalar"} & {*command} for command in commands):
                # fairseq asks CUDA for the device of float16 parameters, and puts numbers on it
                monkeypatch.setattr("torch.cuda.current_device", lambda: None)
                monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
            results.append(train(data, *(["--save-dir", str(folder), *arguments] for arguments in words)))
            monkeypatch.undo()
        return tuple(results)

    return both


@pytest.mark.parametrize("case", COMMANDS)
def test_trainings_are_fairseqs(case, corpus, trainings):
    commands = [[*OURS, *PAIR, *SMOOTHED, *RECIPE.split(), *flags.split()] for flags in COMMANDS[case]]
    captured, fairseqs = trainings(corpus, *commands)
    assert [trainer.refusal for trainer in captured.trainers] == [None] * len(commands)
    assert [stats["by_graphs"] for stats in captured.epochs] == [1] * len(captured.epochs)
    equal(captured, fairseqs, TOLERANCES.get(case[:6], 1e-3))
    if "overflows" in case:
        assert captured.trainers[0].optimizer.scaler._last_overflow_iter >= 0


@pytest.fixture(scope="session")
def text(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the English side of the corpus, as data of a language model."""
    folder = tmp_path_factory.mktemp("text")
    for path in corpus.glob("*.en-de.en.*"):
        (folder / f"{path.name.partition('.')[0]}{path.suffix}").symlink_to(path)
    (folder / "dict.txt").symlink_to(corpus / "dict.en.txt")
    return folder


THEIRS = [*ONE_LAYER, *NO_DROPOUT]
DECODER = [*ONE_LAYER[len(ONE_LAYER) // 2 :], *NO_DROPOUT]
OUR_DECODER = [*DECODER, *KERNEL[2:], *NO_DROPPED_WEIGHTS]
ADAPTIVE = "--adaptive-softmax-cutoff 10,20 --criterion adaptive_loss --ddp-backend legacy_ddp"
LM = "--task language_modeling --tokens-per-sample 12 --sample-break-mode eos"
MULTILINGUAL = "--lang-pairs en-de,de-en"
SAMPLED = "--sampling-method temperature --sampling-temperature 2 --virtual-epoch-size 60 --encoder-langtok tgt"
HOST = "a number is asked for"
# size, flags of model and task, and the reason why fairseq makes the updates; None if graphs make them
TASKS: dict[str, tuple[list[str], str, str | None]] = {
    "a sampled multilingual training": (
        OURS,
        f"--task translation_multi_simple_epoch --langs en,de {MULTILINGUAL} {SAMPLED}",
        None,
    ),
    "a multilingual training": (
        THEIRS,
        f"--task multilingual_translation --arch multilingual_transformer {MULTILINGUAL}",
        "MultilingualTranslationTask has a train_step of its own",
    ),
    "layers that count their calls": (
        [*THEIRS, *PAIR],
        "--arch transformer --quant-noise-scalar 0.5",
        "TransformerModel.encoder.embed_tokens has hooks",
    ),
    "an adaptive softmax": ([*THEIRS, *PAIR], f"--arch transformer {ADAPTIVE}", HOST),
    "a language model with adaptive input": (
        OUR_DECODER,
        f"{LM} --arch pla_dynamicconv_lm_small {ADAPTIVE} --adaptive-input-cutoff 10,20",
        HOST,
    ),
    "a language model": (DECODER, f"{LM} --arch transformer_lm", None),
    "--add-bos-token": (DECODER, f"{LM} --arch transformer_lm --add-bos-token", None),
}


@pytest.mark.parametrize("case", TASKS)
def test_tasks_and_criterions(case, corpus, text, trainings):
    size, flags, refusal = TASKS[case]
    captured, fairseqs = trainings(text if flags.startswith(LM) else corpus, [*size, *flags.split(), *RECIPE.split()])
    (trainer,) = captured.trainers
    if refusal is None:
        assert trainer.refusal is None
        assert [stats["by_graphs"] for stats in captured.epochs] == [1] * len(captured.epochs)
    else:
        assert refusal in str(trainer.refusal)
    equal(captured, fairseqs, 1e-3)


def test_an_epoch_with_few_updates_by_graphs_says_why(text, graphs, tmp_path, monkeypatch, caplog):
    """Few batches fit where the sizes of a dataset are not the lengths of its batches."""
    monkeypatch.setattr(shapes, "as_collated", lambda planned, *_: planned)
    size, flags, _ = TASKS["--add-bos-token"]
    training = train(text, [*size, *flags.split(), *RECIPE.split(), "--save-dir", str(tmp_path), "--max-epoch", "1"])
    (share,) = (stats["by_graphs"] for stats in training.epochs)
    assert share < 0.9
    (warning,) = (record.getMessage() for record in caplog.records if "graphs made" in record.getMessage())
    count = len(training.logged)
    assert f"graphs made {round(share * count)} of the {count} updates of this epoch" in warning
    assert re.search(r"the last one has the shape \(\d+, \d+\).*largest graph is for \(\d+, \d+\)", warning)
