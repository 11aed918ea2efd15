"""Faults that graphs could have: found by the comparison alone, and with the flag every training is fairseq's."""

import dataclasses
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq import metrics
from fairseq.data.monolingual_dataset import collate
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.trainer import Trainer
from torch import nn

from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.training import trainer
from lightconv_plugin.training.flat import settings_of
from lightconv_plugin.training.trainer import captured_training, refuse
from lightconv_plugin.training.updates import CannotCapture, Updates
from scripts.fairseq_io.models import training_arguments, translation
from tests.tape import tape  # noqa: F401  a fixture
from tests.training.runs import RECIPE, SIZE, TYPES, batches, begin, parameters, train
from tests.training.test_graphs import graphs, mixed  # noqa: F401  a fixture

CPU = torch.device("cpu")
Change = Callable[[Any], object]


def flagged(*flags: str, **options: Any) -> Any:
    made = begin(False, CPU, *flags, **options)
    made.cfg.optimization.cuda_graphs = True
    return made


def layer(made: Any) -> Any:
    return made.get_model().decoder.layers[1]


def nothing(made: Any) -> None:
    pass


def results(change: Callable[..., Any]) -> Change:
    """Have the criterion's results changed: ``change(sample, loss, size, logged)``."""

    def put(made: Any) -> None:
        criterion = made.get_criterion()
        forward = criterion.forward
        criterion.forward = lambda model, sample, **others: change(sample, *forward(model, sample, **others))

    return put


def trains(flag: bool) -> Change:
    return lambda made: layer(made).ffn.fc1.weight.requires_grad_(flag)


def after_gradient(made: Any) -> None:
    def double(param: torch.Tensor) -> None:
        assert param.grad is not None
        param.grad.mul_(2)

    layer(made).ffn.fc1.weight.register_post_accumulate_grad_hook(double)


class Normalized(nn.Module):
    """A layer, and its results over the batch; ``seen`` counts in a buffer that is replaced."""

    seen: torch.Tensor

    def __init__(self, inner: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.norm = inner, norm
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.inner(*args, **kwargs)
        if self.norm is not None:
            return self.norm(out.flatten(0, 1)).view_as(out)
        self.seen = self.seen + 1
        return out


class Counted(nn.Module):
    """A layer that counts its calls in Python."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.inner(*args, **kwargs)


def logs_aside(sample: Any, *results: Any) -> Any:
    metrics.log_scalar("aside", 1)
    return results


def batch_norm(made: Any) -> None:
    norm = nn.BatchNorm1d(32)
    made.get_model().encoder.layers[0].ffn = Normalized(made.get_model().encoder.layers[0].ffn, norm)
    made.get_model().add_module("norm", norm)


def in_ours(change: Callable[[Updates], object]) -> Change:
    """Have our updates alone changed."""

    def put(made: Any) -> None:
        if "_lightconv_captured" in vars(made):
            change(made._lightconv_captured.updates)

    return put


def seed(own: Any) -> None:
    launch = own._launch

    def seeded(*args: Any, **how: Any) -> None:
        if how["graphs"]:
            torch.manual_seed(100)
        launch(*args, **how)

    own._launch = seeded


def lost_gradient(own: Any) -> None:
    own._graphs.clear()
    own._grads = [*own._grads[:7], torch.zeros_like(own._grads[7]), *own._grads[8:]]


# changes before the first update and at the second epoch, and what the log says; nothing of what graphs can do
CASES: dict[str, tuple[Change, Change, str]] = {
    "a loss by a padded count": (
        results(lambda sample, loss, size, logged: (loss / sample["target"].size(0), size, logged)),
        nothing,
        "logged loss|gradient|norm",
    ),
    "a hook on a gradient afterwards": (after_gradient, nothing, "layers.1.ffn.fc1.weight"),
    "statistics of a padded batch": (batch_norm, nothing, "running_mean"),
    "a buffer that is replaced": (
        lambda made: setattr(layer(made), "ffn", Normalized(layer(made).ffn)),
        nothing,
        "layers.1.ffn.seen is 0, expected 1",
    ),
    "a count in Python": (
        lambda made: setattr(layer(made), "ffn", Counted(layer(made).ffn)),
        nothing,
        r"an update changes .*layers.1.ffn.calls",
    ),
    "a log of its own": (results(logs_aside), nothing, "aside is logged by a forward pass"),
    "a log of a padded number": (
        results(lambda sample, loss, size, logged: (loss, size, logged | {"n": sample["target"].numel()})),
        nothing,
        r"logged n is \d+, expected \d+",
    ),
    "a number that the host asks for": (
        lambda made: setattr(made.get_criterion(), "report_accuracy", True),
        nothing,
        "a number is asked for during a capture",  # on a GPU: a wait
    ),
    "a probability": (nothing, lambda made: setattr(layer(made).ffn_residual.dropout, "p", 0.4), "gradient"),
    "a criterion's number": (
        nothing,
        lambda made: setattr(made.get_criterion(), "eps", 0.2),
        "logged loss is .*, expected .*",
    ),
    "a frozen parameter": (nothing, trains(False), "does not require grad"),
    "a parameter that was frozen until then": (trains(False), trains(True), "is fairseq's alone"),
    "a seed, and a probability": (nothing, in_ours(seed), "logged loss"),
    "a lost gradient": (nothing, in_ours(lost_gradient), "norm 0, expected"),
    "a symbol of padding": (
        nothing,
        in_ours(lambda own: setattr(own, "padding", own.padding._replace(pad=7))),
        "logged loss",
    ),
    "a loss by a count": (
        results(lambda sample, loss, size, logged: (loss / sample["nsentences"], size, logged)),
        nothing,
        "",
    ),
    "a size of its own": (
        results(lambda sample, loss, size, logged: (loss, 2 * size, logged | {"sample_size": 2 * size})),
        nothing,
        "",
    ),
}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "one kernel after the other" in record.getMessage()]


def compare(made: Any, expected: Any, samples: list[Any], first: Change = nothing, later: Change = nothing) -> None:
    """Train for two epochs; compare losses, norms, counts, parameters and buffers."""
    logged = []
    for each in (made, expected):
        first(each)
        before = train(each, samples).logged
        each.begin_epoch(2)
        later(each)
        logged.append(before + train(each, samples).logged)
    for mine, theirs in zip(*logged, strict=True):
        assert mine.keys() == theirs.keys()
        for name in theirs.keys() - {"wps", "ups", "train_wall", "wall"}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-3), name
    torch.testing.assert_close(parameters(made), parameters(expected), rtol=0, atol=2e-4)
    for name, buffer in expected.get_model().named_buffers():
        torch.testing.assert_close(made.get_model().get_buffer(name), buffer)


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_found_and_the_training_is_fairseqs(case, graphs, monkeypatch, caplog):  # noqa: F811
    """By the comparison alone, with no refusal beforehand; what is found is said once."""
    monkeypatch.setattr(trainer, "refuse", lambda own: None)
    first, later, message = CASES[case]
    drops = "probability" in case
    flags = ["--dropout", "0.2"] if drops else []
    made = flagged(*flags)
    # where a batch is padded, dropout draws other masks
    compare(made, begin(False, CPU, *flags), batches(1) * 4 if drops else mixed(2), first, later)
    assert re.search(message or "^$", "".join(said(caplog)))
    assert len(said(caplog)) == bool(message) == (made._lightconv_captured is None)


REFUSALS: dict[str, tuple[str, Change]] = {
    "the optimizer is FairseqNAG, not --optimizer adam": ("--optimizer nag --momentum 0.9", nothing),
    "the optimizer is MemoryEfficientFP16Optimizer": ("--memory-efficient-bf16 --bf16", nothing),
    "--store-ema is given": ("", lambda made: setattr(made.cfg.ema, "store_ema", True)),
    "encoder.layers.0.ffn has hooks": (
        "",
        lambda made: made.get_model().get_submodule("encoder.layers.0.ffn").register_forward_hook(lambda *_: None),
    ),
    "--stop-time-hours with several processes is given": (
        "--distributed-world-size 2",
        lambda made: setattr(made.cfg.optimization, "stop_time_hours", 1),
    ),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_refusals(why, monkeypatch):
    flags, change = REFUSALS[why]
    made = begin(False, CPU)
    refuse(made)
    made = begin(False, CPU, *flags.split())
    change(made)
    monkeypatch.setattr(distributed_utils, "get_data_parallel_world_size", lambda: 2)
    with pytest.raises(CannotCapture, match=why):
        refuse(made)


def test_without_a_gpu_it_is_said_once(caplog):
    made = flagged()
    with caplog.at_level(logging.WARNING):
        for sample in batches(2):
            assert captured_training(made, [sample]) is None
            assert made.train_step([sample]) is not None
    reason = "the model is on a cpu, not on a GPU"
    assert said(caplog) == [f"--cuda-graphs: updates are made one kernel after the other, since {reason}"]


def language_model() -> Any:
    torch.manual_seed(1)
    flags = [*(word for word in RECIPE if word != "--share-all-embeddings"), "--cpu"]
    words = translation("transformer", TYPES, [*SIZE, *flags]).task.target_dictionary
    size = ["--decoder-layers", "2", "--decoder-embed-dim", "32", "--dropout", "0", "--tokens-per-sample", "20"]
    given = ["--task", "language_modeling", "--arch", "transformer_lm", *size, *flags]
    cfg = convert_namespace_to_omegaconf(training_arguments(given))
    task = LanguageModelingTask(cfg.task, words)
    made = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    made.begin_epoch(1)
    return made


def monolingual(sample: dict[str, Any]) -> dict[str, Any]:
    rows = [row[row != 1] for row in sample["target"]]
    texts = [{"id": i, "source": words, "target": words.roll(-1)} for i, words in enumerate(rows)]
    return collate(texts, pad_idx=1, eos_idx=2)


def lightconv() -> Any:
    made = begin(False, CPU, arch="lightconv")
    for name, param in made.get_model().named_parameters():
        if "conv_bias" in name:  # fairseq leaves them as they come, and uses them nowhere
            param.data.fill_(1)
    return made


@pytest.mark.parametrize("make", [language_model, lightconv])
def test_fairseqs_models(make, graphs, caplog):  # noqa: F811
    samples = [monolingual(each) for each in mixed(2)] if make is language_model else mixed(2)
    made, plain = make(), make()
    made.cfg.optimization.cuda_graphs = True
    compare(made, plain, samples)
    assert said(caplog) == []
    states = [own.optimizer.state_dict()["state"] for own in (made, plain)]
    assert states[0].keys() == states[1].keys()


def test_the_first_update_of_an_epoch_is_made_twice(graphs, monkeypatch):  # noqa: F811
    """fairseq's ``train_step`` is called for it, and for no other."""
    made, calls, original = flagged(), [], FairseqTask.train_step

    def train_step(*args: Any, **others: Any) -> Any:
        calls.append(made.get_num_updates())
        return original(*args, **others)

    monkeypatch.setattr(FairseqTask, "train_step", train_step)
    for epoch in (1, 2):
        made.begin_epoch(epoch)
        train(made, batches(3))
    assert calls == [0, 3]
    assert made._lightconv_captured.proven


def test_a_late_gradient_that_is_not_finite(graphs, tmp_path):  # noqa: F811
    """The host learns of it three updates later; message and crash.pt are of the update in which it happened."""
    made = flagged("--save-dir", str(tmp_path))
    made.cfg.common.log_interval = 1000
    del made._gathered_optim_state  # as before the first checkpoint
    told, weight = None, layer(made).ffn.fc1.weight
    for number, sample in enumerate(batches(7)):
        before, kept = parameters(made), weight.data.clone()
        if number == 3:
            want = before
            weight.data.fill_(torch.nan)
        try:
            made.train_step([sample])
        except FloatingPointError as error:
            told = str(error)
        if number == 3:
            weight.data.copy_(kept)
    assert re.search(r"not finite in update 4; .*crash\.pt", str(told))
    state = torch.load(tmp_path / "crash.pt", weights_only=False)
    assert state["optimizer_history"][-1]["num_updates"] == 3
    assert {int(each["step"]) for each in state["last_optimizer_state"]["state"].values()} == {3}
    made.get_model().load_state_dict(state["model"])
    assert torch.equal(parameters(made), want)


def test_nothing_changes_after_the_last_loss_scale():
    made = begin(True, CPU)
    captured = made._lightconv_captured
    updates = captured.updates
    settings = dataclasses.replace(settings_of(made), scaled=True, lowest=64.0, least=0.0)
    updates.begin(updates.flat, settings, dict.fromkeys(ending.CONTROL, 0.0) | {"loss_scale": 128.0})
    before = parameters(made)
    outcomes = []
    for bad in (True, False, False):
        updates.flat.grad.fill_(torch.nan if bad else 1.0)
        updates._finish()
        outcomes.append(updates._outcome[[0, 2]].tolist())
    assert outcomes[0] == [0, 1]
    assert [applied for applied, _ in outcomes] == [0, 0, 0]
    assert torch.equal(parameters(made), before)
