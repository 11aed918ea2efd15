"""Faults that graphs could have: the comparison alone detects them, and the training equals fairseq's."""

import copy
import dataclasses
import itertools
import logging
import random
import re
from collections import deque
from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
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
from lightconv_plugin.training.state import CannotCapture, State, changed
from lightconv_plugin.training.trainer import LOOP, refuse
from scripts.fairseq_io.models import training_arguments, translation
from tests.training.runs import RECIPE, SIZE, TYPES, batches, begin, mixed, parameters, train

CPU = torch.device("cpu")
Change = Callable[[Any], object]


def flagged(*flags: str, **options: Any) -> Any:
    return begin(True, CPU, *flags, **options)


def layer(made: Any) -> Any:
    return made.get_model().decoder.layers[1]


def nothing(made: Any) -> None:
    pass


def results(change: Callable[..., Any]) -> Change:
    """Replace the criterion's results by ``change(sample, loss, size, logged)``."""

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


class Around(nn.Module):
    """A layer whose results a function replaces: ``function(self, results)``."""

    seen: torch.Tensor

    def __init__(self, inner: nn.Module, function: Callable[[Any, Any], Any], **attributes: Any) -> None:
        super().__init__()
        self.inner, self.function = inner, function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, self.inner(*args, **kwargs))


def around(function: Callable[[Any, Any], Any], **attributes: Any) -> Change:
    """Replace a layer's results by ``function(module, results)``; the module has ``attributes``."""

    def put(made: Any) -> None:
        layer(made).ffn = Around(layer(made).ffn, function, **copy.deepcopy(attributes))

    return put


def then(call: Callable[[Any], object]) -> Callable[[Any, Any], Any]:
    """Return a function that calls ``call`` and leaves the results unchanged."""

    def function(module: Any, out: Any) -> Any:
        call(module)
        return out

    return function


def with_buffer(made: Any) -> None:
    around(then(lambda module: setattr(module, "seen", module.seen + 1)))(made)
    layer(made).ffn.register_buffer("seen", torch.zeros(()))


def batch_norm(made: Any) -> None:
    around(lambda module, out: module.norm(out.flatten(0, 1)).view_as(out), norm=nn.BatchNorm1d(32))(made)


def counts_in_task(made: Any) -> None:
    made.task.batches = []
    results(lambda sample, *others: (made.task.batches.append(len(sample["target"])), others)[1])(made)


def triples_late(made: Any) -> None:
    """Triple the loss from the criterion's 13th call on; a list holds the count."""
    criterion = made.get_criterion()
    criterion.calls = [0]

    def change(sample: Any, loss: Any, size: Any, logged: Any) -> Any:
        criterion.calls[0] += 1
        return (3 if criterion.calls[0] >= 13 else 1) * loss, size, logged

    results(change)(made)


def running_mean(made: Any) -> None:
    """Divide losses by a running mean of losses, which a deque of tensors holds."""
    criterion = made.get_criterion()
    criterion.means = deque([torch.ones(())], maxlen=2)

    def change(sample: Any, loss: Any, size: Any, logged: Any) -> Any:
        criterion.means.append(0.9 * criterion.means[-1] + 0.1 * loss.detach() / size)
        return loss / criterion.means[0], size, logged

    results(change)(made)


def skips(draw: Callable[[], float]) -> Change:
    """Drop a layer at random as wav2vec2 does, by random numbers of the host."""
    return around(lambda module, out: out if draw() > 0.1 else 0 * out)


def logs_aside(sample: Any, *results: Any) -> Any:
    metrics.log_scalar("aside", 1)
    return results


def weighs_rare(sample: Any, loss: Any, size: Any, logged: Any) -> Any:
    rare = sample["target"].eq(TYPES + 1)  # no word is
    return (loss / rare.sum() if rare.any() else loss), size, logged


def weighs_padding(sample: Any, loss: Any, size: Any, logged: Any) -> Any:
    padding = sample["target"].eq(1)
    return (loss / padding.sum() if padding.any() else loss), size, logged


def refuses_nan(sample: Any, loss: Any, *others: Any) -> Any:
    if torch.isnan(loss).any():
        raise FloatingPointError("the loss is NaN")
    return loss, *others


def p_norm(made: Any) -> None:
    scale = around(lambda module, out: out / (1 + out.norm(p=module.p, dim=-1, keepdim=True) / module.droplet))
    scale(made)
    layer(made).ffn.p, layer(made).ffn.droplet = 2.0, 8.0


def in_ours(change: Callable[[Any], object]) -> Change:
    """Change only our updates, not fairseq's."""

    def put(made: Any) -> None:
        if vars(made).get("updates"):
            change(made.updates)

    return put


def seed(updates: Any) -> None:
    launch = updates._launch

    def seeded(*args: Any, **options: Any) -> Any:
        if options.get("graphs"):
            torch.manual_seed(100)
        return launch(*args, **options)

    updates._launch = seeded


def lost_gradient(updates: Any) -> None:
    updates._graphs.clear()
    updates._grads = [*updates._grads[:7], torch.zeros_like(updates._grads[7]), *updates._grads[8:]]


HOLDS = "an update changes values that a graph holds constant: "
ASKED = "a number is asked for during a capture"  # on a GPU the host would wait for it
# changes before the first update and at the second epoch, and what the log says: "" where graphs follow the change
CASES: dict[str, tuple[Change, Change, str]] = {
    "a loss by a padded count": (
        results(lambda sample, loss, size, logged: (loss / sample["target"].size(0), size, logged)),
        nothing,
        "logged loss|gradient|norm",
    ),
    "a hook on a gradient afterwards": (after_gradient, nothing, "layers.1.ffn.fc1.weight"),
    "statistics of a padded batch": (batch_norm, nothing, "running_mean"),
    "a buffer that is replaced": (with_buffer, nothing, "layers.1.ffn.seen is 0, expected 1"),
    "a count": (
        around(then(lambda module: setattr(module, "calls", module.calls + 1)), calls=0),
        nothing,
        HOLDS + "LightConvModel.decoder.layers.1.ffn.calls",
    ),
    "a count in a dictionary": (
        around(then(lambda module: module.calls.update(n=module.calls["n"] + 1)), calls={"n": 0}),
        nothing,
        HOLDS + "LightConvModel.decoder.layers.1.ffn.calls",
    ),
    "a count in an iterator": (
        around(then(lambda module: next(module.calls)), calls=itertools.count()),
        nothing,
        HOLDS + "LightConvModel.decoder.layers.1.ffn.calls",
    ),
    "a list of the task's": (counts_in_task, nothing, HOLDS + "TranslationTask.batches"),
    "a loss that triples late": (triples_late, nothing, HOLDS + "PlaLabelSmoothedCrossEntropy.calls"),
    "tensors in a deque": (running_mean, nothing, HOLDS + "PlaLabelSmoothedCrossEntropy.means"),
    "what cannot be copied": (
        lambda made: setattr(layer(made).ffn, "words", (word for word in "ab")),
        nothing,
        r"layers.1.ffn.words cannot be copied",
    ),
    "random numbers of numpy's": (skips(np.random.random), nothing, "random numbers of numpy are drawn on the host"),
    "random numbers of Python's": (skips(random.random), nothing, "random numbers of Python are drawn on the host"),
    "a log of its own": (results(logs_aside), nothing, "aside is logged by a forward pass"),
    "a log of a padded number": (
        results(lambda sample, loss, size, logged: (loss, size, logged | {"n": sample["target"].numel()})),
        nothing,
        r"logged n is \d+, expected \d+",
    ),
    "a number that the host asks for": (
        lambda made: setattr(made.get_criterion(), "report_accuracy", True),
        nothing,
        ASKED,
    ),
    "a question for rare words": (results(weighs_rare), nothing, ASKED),
    "a question for padding": (results(weighs_padding), nothing, ASKED),
    "a question for NaN": (results(refuses_nan), nothing, ASKED),
    "a probability": (nothing, lambda made: setattr(layer(made).ffn_residual.dropout, "p", 0.4), "gradient"),
    "a criterion's number": (
        nothing,
        lambda made: setattr(made.get_criterion(), "eps", 0.2),
        "logged loss is .*, expected .*",
    ),
    "a frozen parameter": (nothing, trains(False), "does not require grad"),
    "a parameter that was frozen until then": (trains(False), trains(True), "only fairseq computes"),
    "a seed, and a probability": (nothing, in_ours(seed), "logged loss"),
    "a lost gradient": (nothing, in_ours(lost_gradient), "norm 0, expected"),
    "a symbol of padding": (
        nothing,
        in_ours(lambda updates: setattr(updates, "padding", updates.padding._replace(pad=7))),
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
    "a p-norm": (p_norm, nothing, ""),
}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "one kernel after the other" in record.getMessage()]


def assert_same_state(made: Any, expected: Any) -> None:
    """Compare what modules, criterion and task hold in Python."""
    for each in (made, expected):
        vars(layer(each).ffn).pop("words", None)  # which cannot be copied
    states = [State(each.get_model(), each.get_criterion(), each.task).contents() for each in (made, expected)]
    states = [{name: content._replace(shared=[]) for name, content in state.items()} for state in states]
    # random identifiers, and configurations, which contain --cuda-graphs
    others = (".training", ".means", "._owner", "_state_id", ".cfg")
    assert [name for name in changed(*states) if not name.endswith(others)] == []


def compare(made: Any, expected: Any, samples: list[Any], first: Change = nothing, later: Change = nothing) -> None:
    """Train for two epochs; compare losses, norms, counts, parameters and buffers."""
    logged = []
    for each in (made, expected):
        np.random.seed(1)
        random.seed(1)
        first(each)
        run = train(each, samples)
        each.begin_epoch(2)
        later(each)
        logged.append(run.logged + train(each, samples).logged)
    for mine, theirs in zip(*logged, strict=True):
        assert mine.keys() - {"by_graphs"} == theirs.keys()
        for name in theirs.keys() - {"wps", "ups", "train_wall", "wall"}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-3), name
    torch.testing.assert_close(parameters(made), parameters(expected), rtol=0, atol=2e-4)
    for name, buffer in expected.get_model().named_buffers():
        torch.testing.assert_close(made.get_model().get_buffer(name), buffer)


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_detected_and_the_training_equals_fairseqs(case, graphs, monkeypatch, caplog):
    """The comparison detects it without a refusal beforehand; it is logged once, and leaves no trace."""
    monkeypatch.setattr(trainer, "refuse", lambda own: None)
    first, later, message = CASES[case]
    drops = "probability" in case
    flags = ["--dropout", "0.2"] if drops else []
    made, expected = flagged(*flags), begin(False, CPU, *flags)
    # where a batch is padded, dropout draws other masks
    samples = batches(1) * 2 if drops else mixed(1 if message else 5)  # 20 updates where graphs make all of them
    compare(made, expected, samples, first, later)
    assert_same_state(made, expected)
    assert re.search(message or "^$", "".join(said(caplog)))
    assert len(said(caplog)) == bool(message) == (made.updates is None)


def own(owner: Callable[[Any], Any], name: str) -> Change:
    """Replace a method of ``owner`` by one that does the same."""

    def put(made: Any) -> None:
        original = getattr(owner(made), name, lambda *args, **options: None)
        setattr(owner(made), name, MethodType(lambda self, *args, **options: original(*args, **options), owner(made)))

    return put


def from_update(start: int) -> Change:
    """Triple the loss from an update on, which only the trainer's own count shows."""

    def put(made: Any) -> None:
        def change(sample: Any, loss: Any, size: Any, logged: Any) -> Any:
            return (3 if made.get_num_updates() + 1 >= start else 1) * loss, size, logged

        results(change)(made)

    return put


# the first update of a schedule, and the update that detects it
@pytest.mark.parametrize(
    ("start", "end"),
    [(3, 4), (13, 16), pytest.param(100, 128, marks=pytest.mark.slow)],  # 128 updates on the tape
)
def test_a_user_s_schedule_is_detected(start, end, graphs, caplog):
    """The message says which updates may differ; until then the training equals fairseq's."""
    made, expected = flagged(), begin(False, CPU)
    samples = batches(end)
    compared = end // 2
    for each in (made, expected):
        from_update(start)(each)
        train(each, samples[:compared])
    # differences of rounding grow with the updates; a third of the learning rate is less than one wrong update
    tolerance = 2e-4 if compared < 10 else 1e-3
    torch.testing.assert_close(parameters(made), parameters(expected), rtol=0, atol=tolerance)
    for sample in samples[compared:]:
        made.train_step([sample])
    (message,) = said(caplog)
    doubtful = f"Updates {compared + 1} to {end - 1} ({end - 1 - compared}) were made by graphs"
    assert f"This is so from update {end} on. {doubtful}" in message
    assert f"--restore-file the checkpoint of update {compared} or" in message
    assert made.updates is None


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
    "--ddp-backend fully_sharded is given": (
        "",
        lambda made: setattr(made.cfg.distributed_training, "ddp_backend", "fully_sharded"),
    ),
    "--quantization-config-path is given": ("", lambda made: setattr(made, "quantizer", object())),
    "TranslationTask has a train_step of its own": ("", own(lambda made: made.task, "train_step")),
    "TranslationTask has a optimizer_step of its own": ("", own(lambda made: made.task, "optimizer_step")),
    "LightConvModel has a set_num_updates of its own": ("", own(lambda made: made.get_model(), "set_num_updates")),
    "layers.1.ffn has a set_num_updates of its own": ("", own(lambda made: layer(made).ffn, "set_num_updates")),
    "CrossEntropy has a set_num_updates of its own": ("", own(lambda made: made.get_criterion(), "set_num_updates")),
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


def test_without_a_gpu_the_reason_is_logged_once(caplog):
    made = flagged()
    with caplog.at_level(logging.WARNING):
        for sample in batches(2):
            assert made.train_step([sample]) is not None
    assert made.refusal == "the model is on a cpu, not on a GPU"
    assert said(caplog) == [f"--cuda-graphs: updates are made one kernel after the other, since {made.refusal}"]


def language_model(captured: bool) -> Any:
    torch.manual_seed(1)
    flags = [*(word for word in RECIPE if word != "--share-all-embeddings"), "--cpu"]
    words = translation("transformer", TYPES, [*SIZE, *flags]).task.target_dictionary
    size = ["--decoder-layers", "2", "--decoder-embed-dim", "32", "--dropout", "0", "--tokens-per-sample", "20"]
    graphs = ["--cuda-graphs"] if captured else []
    arguments = ["--task", "language_modeling", "--arch", "transformer_lm", *size, *flags, *graphs]
    cfg = convert_namespace_to_omegaconf(training_arguments(arguments))
    task = LanguageModelingTask(cfg.task, words)
    made = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    made.begin_epoch(1)
    return made


def monolingual(sample: dict[str, Any]) -> dict[str, Any]:
    rows = [row[row != 1] for row in sample["target"]]
    texts = [{"id": i, "source": words, "target": words.roll(-1)} for i, words in enumerate(rows)]
    return collate(texts, pad_idx=1, eos_idx=2)


def lightconv(captured: bool) -> Any:
    made = begin(captured, CPU, arch="lightconv")
    for name, param in made.get_model().named_parameters():
        if "conv_bias" in name:  # fairseq neither initialises nor uses them
            param.data.fill_(1)
    return made


@pytest.mark.parametrize("make", [language_model, lightconv])
def test_fairseqs_models(make, graphs, caplog):
    samples = [monolingual(sample) for sample in mixed(2)] if make is language_model else mixed(2)
    made, plain = make(True), make(False)
    compare(made, plain, samples)
    assert said(caplog) == []
    states = [training.optimizer.state_dict()["state"] for training in (made, plain)]
    assert states[0].keys() == states[1].keys()


def test_updates_that_are_compared(graphs, monkeypatch):
    """The first, second, fourth, ... and the first of each epoch are made by fairseq's ``train_step`` too."""
    calls, original = [], FairseqTask.train_step

    def train_step(*args: Any, **others: Any) -> Any:
        calls.append(made.get_num_updates() + 1)
        return original(*args, **others)

    monkeypatch.setattr(FairseqTask, "train_step", train_step)
    monkeypatch.setitem(LOOP, "train_step", (train_step,))
    made = flagged()
    for epoch, count in ((1, 5), (2, 5)):
        made.begin_epoch(epoch)
        train(made, batches(count))
    assert calls == [1, 2, 4, 6, 8]
    assert made.refusal is None


def test_a_late_gradient_that_is_not_finite(graphs, tmp_path):
    """The host learns of it three updates later; the message and crash.pt are about the update where it happened."""
    made = flagged("--save-dir", str(tmp_path))
    made._intervals = [1000]
    del made._gathered_optim_state  # as before the first checkpoint
    message, weight = None, layer(made).ffn.fc1.weight
    for number, sample in enumerate(batches(9)):
        previous, content = parameters(made), weight.data.clone()
        if number == 4:
            expected = previous
            weight.data.fill_(torch.nan)
        try:
            made.train_step([sample])
        except FloatingPointError as error:
            message = str(error)
        if number == 4:
            weight.data.copy_(content)
    assert re.search(r"not finite in update 5; .*crash\.pt", str(message))
    state = torch.load(tmp_path / "crash.pt", weights_only=False)
    assert state["optimizer_history"][-1]["num_updates"] == 4
    assert {int(moments["step"]) for moments in state["last_optimizer_state"]["state"].values()} == {4}
    made.get_model().load_state_dict(state["model"])
    assert torch.equal(parameters(made), expected)


def test_nothing_changes_after_the_last_loss_scale(on_cpu):
    on_cpu(False)
    made = flagged()
    made.train_step(batches(1))
    updates = made.updates
    settings = dataclasses.replace(settings_of(made), scaled=True, lowest=64.0, least=0.0)
    updates.begin(updates.flat, settings, dict.fromkeys(ending.CONTROL, 0.0) | {"loss_scale": 128.0})
    previous = parameters(made)
    outcomes = []
    for bad in (True, False, False):
        updates.flat.grad.fill_(torch.nan if bad else 1.0)
        updates._finish()
        outcomes.append(updates._outcome[[0, 2]].tolist())
    assert outcomes[0] == [0, 1]
    assert [applied for applied, _ in outcomes] == [0, 0, 0]
    assert torch.equal(parameters(made), previous)
