"""Faults that graphs could have: found by the comparison alone, and with the flag every training is fairseq's."""

import dataclasses
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq import metrics
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data.monolingual_dataset import collate
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.trainer import Trainer
from torch import nn

from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.training import trainer
from lightconv_plugin.training.flat import settings_of
from lightconv_plugin.training.trainer import captured_training
from scripts.fairseq_io.models import training_arguments, translation
from tests.tape import tape  # noqa: F401  a fixture
from tests.training.runs import NO_DROPOUT, NO_DROPPED_WEIGHTS, RECIPE, SIZE, TYPES, batches, begin, parameters, train
from tests.training.test_graphs import graphs, mixed  # noqa: F401  a fixture

CPU = torch.device("cpu")
Change = Callable[[Any], object]


def flagged(*flags: str, **options: Any) -> Any:
    made = begin(False, CPU, *flags, **options)
    made.cfg.optimization.cuda_graphs = True
    return made


def layer(made: Any) -> Any:
    return made.get_model().decoder.layers[1]


def results(change: Callable[..., Any]) -> Change:
    """Have the criterion's results changed: ``change(sample, loss, size, logged)``."""

    def put(made: Any) -> None:
        criterion = made.get_criterion()
        forward = criterion.forward
        criterion.forward = lambda model, sample, **others: change(sample, *forward(model, sample, **others))

    return put


def dropped(p: float) -> Change:
    def change(made: Any) -> None:
        layer(made).ffn_residual.dropout.p = p

    return change


def freeze(made: Any) -> None:
    layer(made).ffn.fc1.weight.requires_grad_(False)


def evaluate(made: Any) -> None:
    for part in layer(made).modules():
        part.eval().train = lambda mode=True, part=part: part


def twice(made: Any) -> None:
    layer(made).ffn.fc1.register_forward_hook(lambda module, given, out: 2 * out)


def global_twice(made: Any) -> None:
    """Of one module, and taken away with it."""
    chosen = layer(made).ffn.fc1
    chosen.handle = nn.modules.module.register_module_forward_hook(
        lambda module, given, out: 2 * out if module is chosen else None
    )


def after_gradient(made: Any) -> None:
    def double(param: torch.Tensor) -> None:
        assert param.grad is not None
        param.grad.mul_(2)

    layer(made).ffn.fc1.weight.register_post_accumulate_grad_hook(double)


def logs_aside(sample: Any, *results: Any) -> Any:
    metrics.log_scalar("aside", 1)
    return results


class Normalized(nn.Module):
    """A layer, and its results over the batch; ``calls`` counts in Python, ``seen`` in a buffer."""

    seen: torch.Tensor

    def __init__(self, inner: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.norm, self.calls = inner, norm, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.inner(*args, **kwargs)
        self.count()
        return out if self.norm is None else self.norm(out.flatten(0, 1)).view_as(out)

    def count(self) -> None:
        pass


class Replaced(Normalized):
    def count(self) -> None:
        self.seen = self.seen + 1


class Counted(Normalized):
    def count(self) -> None:
        self.calls += 1


def batch_norm(made: Any) -> None:
    norm = nn.BatchNorm1d(32)
    made.get_model().encoder.layers[0].ffn = Normalized(made.get_model().encoder.layers[0].ffn, norm)
    made.get_model().add_module("norm", norm)


def seed(made: Any) -> None:
    """In graphs alone."""
    own = made._lightconv_captured.updates
    launch = own._launch

    def seeded(*args: Any, **how: Any) -> None:
        if how["graphs"]:
            torch.manual_seed(100)
        launch(*args, **how)

    own._launch = seeded


def lost_gradient(made: Any) -> None:
    updates = made._lightconv_captured.updates
    updates._graphs.clear()
    updates._grads = [*updates._grads[:7], torch.zeros_like(updates._grads[7]), *updates._grads[8:]]


def pad_symbol(made: Any) -> None:
    updates = made._lightconv_captured.updates
    updates.padding = updates.padding._replace(pad=7)


def lost_word(made: Any) -> None:
    own = made._lightconv_captured.updates
    send = own._send
    own._send = lambda sample, *others: send({**sample, "target": sample["target"].clone().fill_(5)}, *others)


def repeated(made: Any) -> None:
    own = made._lightconv_captured.updates
    launch = own._launch
    own._launch = lambda *args, **how: (launch(*args, **how), launch(*args, **how))


def lost_scale(made: Any) -> None:
    """A batch that is one word longer than the criterion is told."""
    own = made._lightconv_captured.updates
    send = own._send
    own._send = lambda sample, *others: send({**sample, "ntokens": sample["ntokens"] + 1}, *others)


# before the first update, and what the log says
AT_FIRST: dict[str, tuple[Change, str]] = {
    "a loss by a padded count": (
        results(lambda sample, loss, size, logged: (loss / sample["target"].size(0), size, logged)),
        "logged loss|gradient|norm",
    ),
    "a hook on a gradient afterwards": (after_gradient, "layers.1.ffn.fc1.weight"),
    "statistics of a padded batch": (batch_norm, "running_mean"),
    "a buffer that is replaced": (
        lambda made: setattr(layer(made), "ffn", Replaced(layer(made).ffn)),
        "layers.1.ffn.seen is 0, expected 2",
    ),
    "a count in Python": (
        lambda made: setattr(layer(made), "ffn", Counted(layer(made).ffn)),
        r"layers.1.ffn.calls was \d+ and is \d+",
    ),
    "a log of a vector": (
        results(lambda sample, loss, size, logged: (loss, size, logged | {"each": sample["target"].sum(1)})),
        r"gives each of shape \(\d+,\), expected one number",
    ),
    "a log of a padded number": (
        results(lambda sample, loss, size, logged: (loss, size, logged | {"n": sample["target"].numel()})),
        r"logged n is \d+, expected \d+",
    ),
    "a number that the host asks for": (
        lambda made: setattr(made.get_criterion(), "report_accuracy", True),
        "a number is asked for during a capture",  # on a GPU: a wait
    ),
    "a log of its own": (results(logs_aside), "aside is logged by a forward pass"),
}
# at the second epoch
LATER: dict[str, tuple[Change, str]] = {
    "a probability": (dropped(0.4), "gradient"),
    "no probability": (dropped(0.0), "gradient"),
    "a criterion's number": (
        lambda made: setattr(made.get_criterion(), "eps", 0.2),
        "logged loss is .*, expected .*",
    ),
    "a frozen parameter": (freeze, "does not require grad"),
    "a part in evaluation": (evaluate, "gradient"),
    "a hook on a module": (twice, "logged loss is .*, expected .*"),
    "a hook for all modules": (global_twice, "logged loss"),
    "a hook on a gradient": (
        lambda made: layer(made).ffn.fc1.weight.register_hook(lambda grad: 2 * grad),
        "layers.1.ffn.fc1.weight",
    ),
    "another loss": (results(lambda sample, loss, size, logged: (2 * loss, size, logged)), "gradient of"),
}
UNTIL_THEN = "a parameter that was frozen until then"
# in what is ours
OURS: dict[str, tuple[Change, str]] = {
    "a seed": (seed, "logged loss"),
    "a lost gradient": (lost_gradient, "norm 0, expected"),
    "a symbol of padding": (pad_symbol, "logged loss"),
    "a lost word": (lost_word, "logged loss"),
    "an update of twice the batch": (repeated, "the sample size is .*, expected"),
    "one word too many": (lost_scale, "logged ntokens is .*, expected"),
}
# that are fairseq's with graphs
SAME: dict[str, Change] = {
    "a loss by a count": results(lambda sample, loss, size, logged: (loss / sample["nsentences"], size, logged)),
    "a size of its own": results(
        lambda sample, loss, size, logged: (loss, 2 * size, logged | {"sample_size": 2 * size})
    ),
}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "one kernel after the other" in record.getMessage()]


@pytest.fixture(autouse=True)
def hooks_as_before():
    yield
    nn.modules.module._global_forward_hooks.clear()


@pytest.mark.parametrize("change", [*AT_FIRST, *LATER, *OURS])
def test_the_comparison_alone_finds(change, graphs, monkeypatch, caplog):  # noqa: F811
    """With no refusal beforehand, and no look at the constants."""
    monkeypatch.setattr(trainer, "refuse", lambda own: None)
    monkeypatch.setattr(trainer, "changes", lambda *_: "")
    made = flagged("--dropout", "0.2")
    if change in AT_FIRST:
        AT_FIRST[change][0](made)
        assert captured_training(made, mixed(1)) is None
    else:
        train(made, mixed(1))
        own = captured_training(made, mixed(1))
        assert own is not None
        (LATER | OURS)[change][0](made)
        own.proven = False
        assert captured_training(made, mixed(1)[1:]) is None
    (reason,) = said(caplog)
    assert re.search((AT_FIRST | LATER | OURS)[change][1], reason), reason


def run(made: Any, change: str = "") -> Any:
    """Two epochs of four updates, with a change of one of the tables."""
    unpadded = "probability" in change  # where a batch is padded, dropout draws other masks
    (AT_FIRST.get(change) or [SAME.get(change, freeze if change == UNTIL_THEN else lambda own: None)])[0](made)
    first = train(made, batches(1) * 4 if unpadded else mixed(2))
    made.begin_epoch(2)
    if change == UNTIL_THEN:
        layer(made).ffn.fc1.weight.requires_grad_(True)
    LATER.get(change, [lambda own: None])[0](made)
    second = train(made, batches(1) * 4 if unpadded else mixed(2))
    return first.logged + second.logged


def compare(made: Any, expected: Any, change: str = "") -> None:
    """Losses, norms, counts, parameters and buffers."""
    got = run(made, change)
    nn.modules.module._global_forward_hooks.clear()
    want = run(expected, change)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.keys() == theirs.keys()
        for name in theirs.keys() - {"wps", "ups", "train_wall", "wall"}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-3), name
    torch.testing.assert_close(parameters(made), parameters(expected), rtol=0, atol=2e-4)
    for name, buffer in expected.get_model().named_buffers():
        torch.testing.assert_close(made.get_model().get_buffer(name), buffer)


# that could leave something behind which fairseq's own updates then meet
REFUSED_AFTER = ["statistics of a padded batch", "a buffer that is replaced", "a log of a vector", "a hook on a module"]
ANEW = {"a probability", "no probability", "a criterion's number", "a frozen parameter", "a part in evaluation"}


@pytest.mark.parametrize("change", [*REFUSED_AFTER, *sorted(ANEW), *SAME, UNTIL_THEN])
def test_with_the_flag_a_training_is_fairseqs(change, graphs, caplog):  # noqa: F811
    """Training that graphs cannot do is said once in the log; a constant that has changed is captured anew."""
    caplog.set_level(logging.INFO)
    flags = ["--dropout", "0.2"] if "probability" in change else []
    made = flagged(*flags)
    compare(made, begin(False, CPU, *flags), change)
    refused = change not in ANEW and change not in SAME
    assert len(said(caplog)) == refused == (made._lightconv_captured is None)
    assert any("captured anew: " in record.getMessage() for record in caplog.records) == (change in {*ANEW, UNTIL_THEN})


class Weighted(LabelSmoothedCrossEntropyCriterion):
    """Has a parameter, which its loss is multiplied by."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, model: Any, sample: Any, reduce: bool = True) -> Any:
        loss, size, logged = super().forward(model, sample, reduce)
        return loss * self.weight, size, logged


WIDTHS = ["--encoder-embed-dim", "32", "--decoder-embed-dim", "32", "--dropout", "0"]
KERNELS = ["--encoder-kernel-size-list", "[3,5]", "--decoder-kernel-size-list", "[3,5]"]
KINDS = {
    "lstm": [*WIDTHS, "--encoder-hidden-size", "32", "--decoder-hidden-size", "32", "--decoder-out-embed-dim", "32"],
    "fconv": [*WIDTHS, "--encoder-layers", "[(32, 3)] * 2", "--decoder-layers", "[(32, 3)] * 2"],
    "lightconv": [*SIZE, *KERNELS, *NO_DROPOUT, *NO_DROPPED_WEIGHTS],
    "transformer_lm": ["--decoder-layers", "2", "--decoder-embed-dim", "32", "--dropout", "0"],
    "transformer": [*SIZE, *NO_DROPOUT],  # by a criterion with a parameter
}


REFUSED = {"lstm": r"lstm\.py", "fconv": "has hooks"}  # on a GPU an LSTM waits for the lengths


def of_kind(arch: str) -> Any:
    torch.manual_seed(1)
    flags = [*(word for word in RECIPE if word != "--share-all-embeddings"), "--cpu"]
    if arch == "transformer_lm":
        words = translation("transformer", TYPES, [*SIZE, *flags]).task.target_dictionary
        given = ["--task", "language_modeling", "--arch", arch, *KINDS[arch], *flags, "--tokens-per-sample", "20"]
        cfg = convert_namespace_to_omegaconf(training_arguments(given))
        task = LanguageModelingTask(cfg.task, words)
        model = task.build_model(cfg.model)
    else:
        built = translation(arch, TYPES, [*KINDS[arch], *flags])
        cfg, task, model = built.cfg, built.task, built.model
    for name, param in model.named_parameters():
        if "conv_bias" in name:  # fairseq's lightconv leaves them as they come, and uses them nowhere
            param.data.fill_(1)
    criterion = task.build_criterion(cfg.criterion) if arch != "transformer" else Weighted(task, False, 0.1)
    made = Trainer(cfg, task, model, criterion)
    made.begin_epoch(1)
    return made


def monolingual(sample: dict[str, Any]) -> dict[str, Any]:
    rows = [row[row != 1] for row in sample["target"]]
    texts = [{"id": i, "source": words, "target": words.roll(-1)} for i, words in enumerate(rows)]
    return collate(texts, pad_idx=1, eos_idx=2)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("arch", KINDS)
def test_models_of_other_kinds(arch, graphs, monkeypatch, caplog):  # noqa: F811
    if arch == "transformer_lm":
        texts = [monolingual(each) for each in mixed(2)]
        monkeypatch.setitem(globals(), "mixed", lambda count: texts)
    made, plain = of_kind(arch), of_kind(arch)
    made.cfg.optimization.cuda_graphs = True
    compare(made, plain)
    assert re.search(REFUSED.get(arch, "^$"), "".join(said(caplog)))
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
