"""numpy, bfloat16 and what is refused: each shim, and the error that fairseq gives without it."""

from __future__ import annotations

import functools
import inspect
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import optim, options, trainer
from fairseq.data import TokenBlockDataset, data_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.optim.amp_optimizer import AMPOptimizer

from lightconv_plugin import compat
from lightconv_plugin.compat import training
from tests.models import common
from tests.tolerances import assert_close

from .conftest import Train


def test_torchscript_still_takes_fairseqs_models() -> None:
    """One of whose modules, the sinusoids, has a shim."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "max_source_positions": 64, "max_target_positions": 64}
    small = {name: value for name, value in common.SMALL.items() if "conv" not in name}
    model = common.build("transformer_iwslt_de_en", common.task(), **sizes, **small).eval()
    given = (common.tokens(2, 5), torch.tensor([5, 5]), common.tokens(2, 4, seed=1))
    assert_close(torch.jit.script(model)(*given)[0], model(*given)[0])


# ------------------------------------------------------------------------------------------------------------- numpy


def blocks_of_one_sentence() -> TokenBlockDataset:
    sentences = [torch.arange(3), torch.arange(2)]
    return TokenBlockDataset(sentences, [3, 2], block_size=None, pad=1, eos=2, break_mode="eos")


def test_sentence_blocks_need_numpy_compat(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = types.SimpleNamespace(long=int)
    monkeypatch.setattr(np, "compat", theirs)
    training.restore_numpy_compat()
    assert np.compat is theirs  # type: ignore[attr-defined]
    monkeypatch.delattr(np, "compat")
    with pytest.raises(AttributeError, match="compat"):
        blocks_of_one_sentence()
    training.restore_numpy_compat()
    assert len(blocks_of_one_sentence()) == 2


def test_lengths_fall_into_buckets(train: Train, tmp_path: Path) -> None:
    assert len(train(tmp_path, "--max-update", "1", "--num-batch-buckets", "2")) == 1
    assert data_utils.get_buckets(np.array([1, 2, 3, 9]), 2).tolist() == [2, 9]


# ---------------------------------------------------------------------------------------------------------- bfloat16


@pytest.mark.parametrize("option", ["--bf16", "--memory-efficient-bf16"])
def test_bfloat16_trains_saves_and_resumes(option: str, train: Train, tmp_path: Path) -> None:
    losses = train(tmp_path, "--max-update", "16", option)
    assert losses[-1] < losses[0] - 0.2
    weights = torch.load(tmp_path / "checkpoint_last.pt")["model"]
    # fairseq writes float32 files, but the numbers in them are bfloat16's
    assert all(torch.equal(weight, weight.bfloat16().float()) for name, weight in weights.items() if "weight" in name)
    (resumed,) = train(tmp_path, "--max-update", "17", option)
    assert resumed < losses[0] - 0.2


@pytest.mark.parametrize(("flags", "tpu"), [([], False), (["--bf16"], False), (["--bf16", "--tpu"], True)])
@pytest.mark.parametrize("parse_known", [False, True])
def test_a_tpu_is_meant_where_it_is_asked_for(flags: list[str], tpu: bool, parse_known: bool) -> None:
    given = ["data", "--arch", "transformer", *flags]
    parsed = options.parse_args_and_arch(options.get_training_parser(), given, parse_known=parse_known)
    assert (parsed[0] if parse_known else parsed).tpu is tpu


def test_flags_that_override_a_checkpoint_are_those_given() -> None:
    given = ["data", "--task", "translation", "--bf16"]
    parsed = options.parse_args_and_arch(options.get_validation_parser(), given, suppress_defaults=True)
    assert vars(parsed) == {"data": "data", "task": "translation", "bf16": True}


# ------------------------------------------------------------------------------------------------ what cannot train


FITS = "--optimizer adam --max-tokens 99"
ADAPTIVE = "--criterion adaptive_loss --ddp-backend legacy_ddp"
BANDS = "--adaptive-softmax-cutoff 2,8 --adaptive-input-cutoff 2,8"


@pytest.mark.parametrize(
    ("given", "added"),
    [
        (f"--arch pla_dynamicconv_iwslt_de_en {FITS}", ""),
        ("--arch transformer", "--optimizer adam --lr 0.001 --max-tokens 4096"),
        (f"--arch pla_dynamicconv_iwslt_de_en --task language_modeling {FITS}", "--task translation"),
        (f"--arch pla_dynamicconv_lm_small {FITS}", f"--task language_modeling {ADAPTIVE} {BANDS}"),
        (f"--arch transformer_lm --task language_modeling {FITS} --adaptive-softmax-cutoff 2,8", ADAPTIVE),
        (
            f"--arch pla_dynamicconv_lm_small --task language_modeling {FITS} {ADAPTIVE} --adaptive-softmax-cutoff 9",
            "--adaptive-input-cutoff 9",
        ),
        (f"--arch pla_lightconv_lm --task language_modeling {FITS}", ""),
        (f"--arch pla_lightconv_lm --task language_modeling {FITS} {ADAPTIVE}", "--criterion cross_entropy"),
        (f"--arch pla_lightconv_lm_gbw --task language_modeling {FITS} {ADAPTIVE} {BANDS}", ""),
    ],
)
def test_all_flags_that_a_command_lacks_are_named_at_once(given: str, added: str, monkeypatch, tmp_path: Path) -> None:
    """And the command with them lacks none."""
    common.dictionary(24).save(str(tmp_path / "dict.txt"))
    monkeypatch.setattr("sys.argv", ["fairseq-train", str(tmp_path), *given.split()])

    def parsed() -> Any:
        return options.parse_args_and_arch(options.get_training_parser())

    if added:
        with pytest.raises(SystemExit) as ended:
            parsed()
        assert str(ended.value.code).partition(". Add to the command: ")[2] == added
    monkeypatch.setattr("sys.argv", ["fairseq-train", str(tmp_path), *given.split(), *added.split()])
    parsed()


def test_generation_is_asked_for_no_flags_of_training(monkeypatch) -> None:
    parser = options.get_generation_parser()
    parser.add_argument("--arch", default="wav2vec2")  # as fairseq-generate does
    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", "model.pt"])
    assert options.parse_args_and_arch(parser).arch == "wav2vec2"


@pytest.mark.parametrize("option", ["--fp16", "--memory-efficient-fp16"])
def test_fp16_on_a_cpu_is_refused_in_a_sentence(option: str, train: Train, tmp_path: Path) -> None:
    with pytest.raises(compat.SetupError, match="--fp16 needs a GPU"):
        train(tmp_path, "--max-update", "1", option)


def test_python_without_asserts_trains_nothing(train: Train, tmp_path: Path, take_away: Any) -> None:
    """It would write no checkpoint_last.pt."""
    take_away(trainer.Trainer, "__init__")
    module: dict[str, Any] = {"__name__": training.__name__}
    exec(compile(inspect.getsource(training), training.__file__, "exec", optimize=1), module)
    module["refuse_what_cannot_train"]()
    with pytest.raises(Exception, match="python -O leaves out asserts"):
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


def test_the_trainer_refuses_to_train_the_same_model_twice(monkeypatch, take_away, train, tmp_path):
    """fairseq-hydra-train starts before the plugin is loaded, so there the command line is not completed."""
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    take_away(distributed_utils, "call_main")
    with pytest.raises(compat.SetupError, match="torchrun started 2 processes"):
        train(tmp_path, "--max-update", "1")
