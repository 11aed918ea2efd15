"""Trainings whose updates no graph could hold: fairseq makes them, and one sentence in the log says why."""

import logging
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer

from lightconv_plugin.training import CapturedTraining
from lightconv_plugin.training.trainer import captured_training, refuse
from lightconv_plugin.training.updates import CannotCapture
from tests.training.runs import batches, begin

CPU = torch.device("cpu")
FLAGS = {
    "--optimizer nag --momentum 0.9": "the optimizer is FairseqNAG, not --optimizer adam",
    "--decoder-layerdrop 0.1": "leaves out layers at random",
    "--checkpoint-activations": "--checkpoint-activations or --offload-activations is given",
}
OPTIONS = {
    "common.amp": "--amp",
    "common.memory_efficient_bf16": "--memory-efficient-bf16",
    "optimization.use_bmuf": "--use-bmuf",
    "ema.store_ema": "--store-ema",
}
CHANGES: dict[str, Callable[[torch.nn.Module], object]] = {
    "encoder.layers.0.ffn has hooks": lambda model: model.get_submodule("encoder.layers.0.ffn").register_forward_hook(
        lambda *_: None
    ),
    "a parameter has hooks on its gradient": lambda model: next(model.parameters()).register_hook(lambda grad: None),
    "of several types": lambda model: model.get_submodule("decoder.layers.0").double(),
}


def refused(trainer: Trainer, why: str) -> None:
    with pytest.raises(CannotCapture, match=why):
        refuse(trainer)


@pytest.mark.parametrize("flags", FLAGS)
def test_flags(flags):
    refused(begin(False, CPU, *flags.split()), FLAGS[flags])


@pytest.mark.parametrize("option", OPTIONS)
def test_options(option):
    trainer = begin(False, CPU)
    refuse(trainer)
    group, name = option.split(".")
    setattr(trainer.cfg[group], name, True)
    refused(trainer, f"{OPTIONS[option]} is given")


@pytest.mark.parametrize("why", CHANGES)
def test_models(why):
    trainer = begin(False, CPU)
    CHANGES[why](trainer.get_model())
    refused(trainer, why)


def test_a_number_of_pythons_in_the_log():
    trainer = begin(False, CPU, "--report-accuracy")
    with pytest.raises(CannotCapture, match="PlaLabelSmoothedCrossEntropy logs n_correct, which a graph cannot follow"):
        CapturedTraining(trainer, batches(1), capture=False)


@pytest.mark.parametrize("where", [(), ("net_input",)])
def test_more_than_a_graph_is_given(where):
    """Such as alignments, whose loss would be left out."""
    (sample,) = batches(1)
    part = sample
    for name in where:
        part = part[name]
    part["alignments"] = torch.zeros(3, 2)
    with pytest.raises(CannotCapture, match="batches have what no graph is given: alignments"):
        CapturedTraining(begin(False, CPU), [sample], capture=False)


def test_targets_of_another_size():
    (sample,) = batches(1)
    sample["target"] = sample["target"][:, :1]
    with pytest.raises(CannotCapture, match="batches have what no graph is given: target"):
        CapturedTraining(begin(False, CPU), [None, sample], capture=False)


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
