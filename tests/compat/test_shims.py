"""The shims for numpy, bfloat16, --help and refused settings, and fairseq's error without each of them."""

from __future__ import annotations

import functools
import inspect
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import optim, options, trainer
from fairseq.data import TokenBlockDataset, data_utils, token_block_dataset
from fairseq.optim.amp_optimizer import AMPOptimizer

from lightconv_plugin.compat import training
from lightconv_plugin.models.config import LightConvConfig, LightConvLanguageModelConfig
from scripts.fairseq_io.checkpoints import load

from .conftest import REPO, Train, unwrapped


def test_blocks_of_one_sentence_need_numpy_compat(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ([torch.arange(3), torch.arange(2)], [3, 2], None, 1, 2, "eos")
    assert len(TokenBlockDataset(*arguments)) == 2
    monkeypatch.setattr(token_block_dataset, "np", np)
    with pytest.raises(AttributeError, match="compat"):
        TokenBlockDataset(*arguments)


def test_lengths_fall_into_buckets(train: Train, tmp_path: Path) -> None:
    assert len(train(tmp_path, "--max-update", "1", "--num-batch-buckets", "2")) == 1
    assert data_utils.get_buckets(np.array([1, 2, 3, 9]), 2).tolist() == [2, 9]


def test_bfloat16_trains_saves_and_resumes(train: Train, tmp_path: Path) -> None:
    losses = train(tmp_path, "--max-update", "16", "--bf16")
    assert losses[-1] < losses[0]  # 5.3 and 6.6 with AVX-512, AVX2 and without
    weights = load(tmp_path / "checkpoint_last.pt")["model"]
    # fairseq writes float32 files, but the numbers in them are bfloat16's
    assert all(torch.equal(weight, weight.bfloat16().float()) for name, weight in weights.items() if "weight" in name)
    (resumed,) = train(tmp_path, "--max-update", "17", "--bf16")
    assert resumed < losses[0]  # 5.3


def test_bfloat16_means_no_tpu() -> None:
    """Only flags that the command has override a checkpoint's."""
    arguments = ["data", "--arch", "transformer", "--bf16"]
    assert not options.parse_args_and_arch(options.get_training_parser(), arguments).tpu
    assert not options.parse_args_and_arch(options.get_training_parser(), arguments, parse_known=True)[0].tpu
    arguments = ["data", "--task", "translation", "--bf16"]
    parsed = options.parse_args_and_arch(options.get_validation_parser(), arguments, suppress_defaults=True)
    assert vars(parsed) == {"data": "data", "task": "translation", "bf16": True}


@pytest.mark.parametrize(
    ("arch", "task", "config"),
    [
        ("pla_dynamicconv_small", "translation", LightConvConfig),
        ("pla_dynamicconv_lm_small", "language_modeling", LightConvLanguageModelConfig),
    ],
)
def test_help_lists_every_option_of_a_model_with_a_sentence(monkeypatch, capsys, arch, task, config) -> None:
    argv = ["fairseq-train", "--help", "--user-dir", str(REPO / "lightconv_plugin"), "--arch", arch, "--task", task]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit, match=r"^(0|None)$"):
        options.parse_args_and_arch(options.get_training_parser())
    printed = " ".join(capsys.readouterr().out.split())
    ours = [f for f in fields(config) if not f.name.startswith("_") and not str(f.default).startswith("${")]
    assert len(ours) > 25  # options with a default such as ${...} are the task's
    for option in ours:
        assert f"--{option.name.replace('_', '-')}" in printed
        assert " ".join(option.metadata["help"].split()[:4]) in printed, option.name


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        ("pla_dynamicconv_iwslt_de_en", ""),
        ("pla_dynamicconv_iwslt_de_en --task language_modeling", "--task translation"),
        ("pla_dynamicconv_lm_small --task translation", "--task language_modeling --criterion adaptive_loss"),
        ("transformer_lm --task language_modeling --adaptive-softmax-cutoff 2,8", "--criterion adaptive_loss"),
        ("transformer_lm_wiki103 --task language_modeling", "--criterion adaptive_loss"),
        ("pla_lightconv_lm --task language_modeling --criterion adaptive_loss", "--criterion cross_entropy"),
        # models with cut-offs by default, which they use with an adaptive loss only
        *((f"lstm --criterion {criterion}", "") for criterion in ("cross_entropy", "adaptive_loss")),
        *((f"lstm_lm --task language_modeling --criterion {name}", "") for name in ("cross_entropy", "adaptive_loss")),
        ("fconv_lm_dauphin_gbw --task language_modeling", ""),
        ("fconv_lm --task language_modeling --criterion adaptive_loss", "--criterion cross_entropy"),
        ("fconv_lm_dauphin_gbw --task translation", "--task language_modeling"),
        ("fconv --criterion adaptive_loss", "--criterion cross_entropy"),
    ],
)
def test_flags_that_do_not_fit_the_model_are_named(arguments: str, added: str, monkeypatch) -> None:
    """With the flags that the message adds, the command is accepted."""
    argv = ["fairseq-train", "data", "--arch", *arguments.split()]
    monkeypatch.setattr("sys.argv", argv)
    if added:
        with pytest.raises(SystemExit) as ended:
            options.parse_args_and_arch(options.get_training_parser())
        assert str(ended.value.code).partition(". Add to the command: ")[2] == added
    monkeypatch.setattr("sys.argv", [*argv, *added.split()])
    options.parse_args_and_arch(options.get_training_parser())


def test_python_without_asserts_is_refused(train: Train, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(trainer.Trainer, "__init__", unwrapped(trainer.Trainer.__init__))
    module: dict[str, Any] = {"__name__": training.__name__}
    exec(compile(inspect.getsource(training), training.__file__, "exec", optimize=1), module)
    module["refuse_lost_trainings"]()
    with pytest.raises(RuntimeError, match="python -O leaves out asserts"):
        train(tmp_path, "--max-update", "1")
    assert list(tmp_path.iterdir()) == []


def test_the_loss_scale_of_amp_is_taken_back_once(monkeypatch):
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", functools.partial(torch.amp.GradScaler, "cpu"))
    weight = torch.nn.Parameter(torch.zeros(3))
    sgd = optim.build_optimizer(Namespace(optimizer="sgd", lr=[1.0], momentum=0.0, weight_decay=0.0), [weight])
    common = Namespace(fp16_init_scale=128, min_loss_scale=1e-4)
    optimizer = AMPOptimizer(Namespace(optimizer=None, common=common), [weight], sgd)
    optimizer.backward((weight * torch.tensor([1.0, 2.0, 4.0])).sum())
    optimizer.clip_grad_norm(0.0)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.tensor([-1.0, -2.0, -4.0]))
