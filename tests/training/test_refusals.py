"""Trainings whose updates no graph could hold: fairseq makes them, and one sentence in the log says why."""

import logging
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer

from lightconv_plugin.training.trainer import captured_training, refuse
from lightconv_plugin.training.updates import CannotCapture
from tests.training.runs import batches, begin

CPU = torch.device("cpu")
FLAGS = {
    "--optimizer nag --momentum 0.9": "the optimizer is FairseqNAG, not --optimizer adam",
    "--memory-efficient-bf16 --bf16": "the optimizer is MemoryEfficientFP16Optimizer, not --optimizer adam",
}
CHANGES: dict[str, Callable[[torch.nn.Module], object]] = {
    "encoder.layers.0.ffn has hooks": lambda model: model.get_submodule("encoder.layers.0.ffn").register_forward_hook(
        lambda *_: None
    ),
    "embed_tokens.weight has hooks": lambda model: next(model.parameters()).register_hook(lambda grad: None),
    "of several types": lambda model: model.get_submodule("decoder.layers.0").double(),
}


def refused(trainer: Trainer, why: str) -> None:
    with pytest.raises(CannotCapture, match=why):
        refuse(trainer)


@pytest.mark.parametrize("flags", FLAGS)
def test_flags(flags):
    refused(begin(False, CPU, *flags.split()), FLAGS[flags])


def test_an_option():
    trainer = begin(False, CPU)
    refuse(trainer)
    trainer.cfg.ema.store_ema = True
    refused(trainer, "--store-ema is given")


@pytest.mark.parametrize("why", CHANGES)
def test_models(why):
    trainer = begin(False, CPU)
    CHANGES[why](trainer.get_model())
    refused(trainer, why)


def test_a_clock_of_each_process():
    trainer = begin(False, CPU)
    trainer.cfg.optimization.stop_time_hours = 1
    refuse(trainer)
    trainer.cfg.distributed_training.distributed_world_size = 2
    with mock.patch.object(distributed_utils, "get_data_parallel_world_size", return_value=2):
        refused(trainer, "--stop-time-hours with several processes is given")


def test_it_is_said_once(caplog):
    trainer = begin(False, CPU)
    trainer.cfg.optimization.cuda_graphs = True
    with caplog.at_level(logging.WARNING):
        for sample in batches(2):
            assert captured_training(trainer, [sample]) is None
            assert trainer.train_step([sample]) is not None
    said = [record.getMessage() for record in caplog.records if "--cuda-graphs" in record.getMessage()]
    assert said == [
        "--cuda-graphs: updates are made one kernel after the other, since the model is on a cpu, not on a GPU"
    ]
