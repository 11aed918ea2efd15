"""``--cuda-graphs``: fairseq-train makes its updates as CUDA graphs (see ``updates``).

Losses, norms, the loss scale, schedules, validation and checkpoints are the same as without the flag. If a training
cannot be captured, fairseq makes the updates, and the log gives the reason.
"""

import logging
from typing import Any

import numpy as np
import torch
from fairseq import metrics
from fairseq.models import BaseFairseqModel, FairseqEncoder
from fairseq.optim.adam import Adam, FairseqAdam
from fairseq.optim.fp16_optimizer import FP16Optimizer
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import distributed, nn

from lightconv_plugin.compat import internals
from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.ops.torch_private import has_hooks
from lightconv_plugin.training import shapes
from lightconv_plugin.training.comparison import compare
from lightconv_plugin.training.flat import FlatModel, settings_of
from lightconv_plugin.training.shapes import Padding, Shape
from lightconv_plugin.training.state import CannotCapture, State
from lightconv_plugin.training.updates import LEAD, SAMPLE_SIZE, Numbers, Updates

logger = logging.getLogger(__name__)

# methods of fairseq's training loop that an update by graphs replaces: a training that overrides one is not captured
LOOP: dict[str, tuple[Any, ...]] = {
    "train_step": (FairseqTask.train_step,),
    "optimizer_step": (FairseqTask.optimizer_step,),
    "set_num_updates": (BaseFairseqModel.set_num_updates, FairseqEncoder.set_num_updates),
}
BACKENDS = ("c10d", "pytorch_ddp", "legacy_ddp", "no_c10d")  # those that average the gradients of whole models
FEW = 0.9  # share of an epoch's updates; if graphs make fewer, the log says why

OPTION = "cuda_graphs"
HELP = (
    "make updates as CUDA graphs, several times as fast as one kernel after the other: for Adam, on an NVIDIA GPU; "
    "a training that cannot be captured runs without graphs, and the log gives the reason"
)


def refuse(trainer: Any) -> None:
    """Reject trainings that a comparison of gradients would wrongly accept, and hooks, which a graph would call once.

    Raises:
        CannotCapture: a graph cannot hold this training; the message gives the reason.
    """
    cfg, optimizer, task, criterion = trainer.cfg, trainer.optimizer, trainer.task, trainer.get_criterion()
    inner = optimizer.fp32_optimizer if type(optimizer) is FP16Optimizer else optimizer
    adam = type(inner) is FairseqAdam and type(inner.optimizer) is Adam and len(inner.param_groups) == 1
    several, backend = trainer.data_parallel_world_size > 1, cfg.distributed_training.ddp_backend
    refusals = {
        f"the optimizer is {type(inner).__name__}, not --optimizer adam with one group of parameters": not adam,
        "--store-ema is given": cfg.ema.store_ema,
        f"--ddp-backend {backend} is given": backend not in BACKENDS,
        "--quantization-config-path is given": trainer.quantizer is not None,
        # each process would stop by its own clock
        "--stop-time-hours with several processes is given": several and cfg.optimization.stop_time_hours > 0,
        f"the logs of {type(criterion).__name__} cannot be summed": not task.logging_outputs_can_be_summed(criterion),
    }
    for name, owner in State(trainer.get_model(), criterion, task).owners.items():
        for method, fairseqs in LOOP.items():
            function = getattr(owner, method, None)
            overrides = function is not None and getattr(function, "__func__", None) not in fairseqs
            refusals[f"{name} has a {method} of its own"] = overrides
        if isinstance(owner, nn.Module):
            refusals[f"{name} has hooks"] = has_hooks(owner)
    if reason := next((sentence for sentence, holds in refusals.items() if holds), None):
        raise CannotCapture(reason)


class CapturedTrainer(Trainer):
    """fairseq's trainer, with updates as CUDA graphs where possible. ``--cuda-graphs`` selects it.

    The device may be up to ``LEAD`` updates behind the host. After an update at which fairseq logs, validates, saves or
    stops, the host waits until the device has finished.

    Updates 1, 2, 4, 8 and so on since the training was started or resumed, and the first update of each epoch, are
    compared with fairseq's (see ``comparison``). This also finds the effects of schedules that a graph does not follow.
    If the results differ, fairseq makes all further updates.

    Attributes:
        updates: the captured updates; None before the first update, and if fairseq makes the updates.
        refusal: the reason why fairseq makes the updates; None if it does not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.updates: Updates | None = None
        self.refusal: str | None = None
        self._batching: shapes.FewShapes | None = None
        self._epoch_iterator: Any = None
        self._first_batch: tuple[Any, Any] = None, None  # the collated batch, and the dataset's sizes
        self._is_new_epoch = True
        self._seen = 0  # updates since the start, or since a checkpoint was loaded
        self._compared = 0  # number of the last update that was compared, in fairseq's count
        self._by_graphs: list[bool] = []  # for each update of this epoch, True if graphs made it
        self._rates: dict[int, float] = {}
        # read once, since reading an option takes as long as launching some kernels
        self._last = self.cfg.optimization.max_update or float("inf")
        intervals = (self.cfg.checkpoint.save_interval_updates, self.cfg.dataset.validate_interval_updates)
        self._intervals = [every for every in (self.cfg.common.log_interval, *intervals) if every > 0]

    @property
    def share_by_graphs(self) -> float:
        """Share of this epoch's updates that graphs made."""
        return sum(self._by_graphs) / len(self._by_graphs) if self.updates and self._by_graphs else 0.0

    def get_train_iterator(
        self, epoch: int, combine: bool = True, load_dataset: bool = True, data_selector: Any = None, **options: Any
    ) -> Any:
        """Return fairseq's iterator, but with batches of few shapes."""
        subset = self.cfg.dataset.train_subset
        if load_dataset:
            logger.info("loading train data for epoch %s", epoch)
            self.task.load_dataset(subset, epoch=epoch, combine=combine, data_selector=data_selector, tpu=self.tpu)
        self._batching = shapes.batch_in_few_shapes(self.task.dataset(subset))
        self._epoch_iterator = super().get_train_iterator(epoch, combine, False, data_selector, **options)
        if self._batching.shapes:
            first = self._epoch_iterator.frozen_batches[0]
            self._first_batch = internals.first_batch(self), np.asarray(self._batching.dataset.sizes)[first]
        return self._epoch_iterator

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self._is_new_epoch = True

    def begin_valid_epoch(self, epoch: int) -> None:
        self._settle()
        super().begin_valid_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        self._settle()
        state: dict[str, Any] = super().state_dict()
        return state

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        self._leave_to_fairseq(None)
        self._seen = 0
        return super().load_checkpoint(*args, **kwargs)

    @metrics.aggregate("train")
    def train_step(self, samples: list[Any], raise_oom: bool = False) -> Any:
        """Make an update, as fairseq's ``train_step``. It logs the updates that the device has finished so far."""
        if self.refusal is None and self._is_compared_next():
            self._compare(samples)
        self._seen += 1
        self._is_new_epoch = False
        if self.updates is None:
            return super().train_step(samples, raise_oom)
        return self._update(self.updates, samples)

    def _is_compared_next(self) -> bool:
        number = self._seen + 1
        return self._is_new_epoch or number & (number - 1) == 0

    def _compare(self, samples: list[Any]) -> None:
        """Compare the next update with fairseq's. If they differ in any process, leave the training to fairseq.

        Before the first update, this also creates ``updates``.
        """
        problem: Exception | None = None
        self._settle()
        with metrics.aggregate(new_root=True):  # an exception would leave the present aggregators in disorder
            try:
                self._prepare(samples)
                assert self.updates is not None
                compare(self, self.updates, [sample for sample in samples if sample])
            except Exception as error:  # fairseq raises it again, if the training causes it
                problem = error
        if self.data_parallel_world_size > 1:
            refused = torch.tensor(float(problem is not None), device=self.device)
            distributed.all_reduce(refused)
            problem = problem or (CannotCapture("another process cannot use graphs") if refused else None)
        update = self.get_num_updates() + 1
        if problem is None:
            self._compared = update
            return
        sentence = f"--cuda-graphs: updates are made one kernel after the other, since {problem}"
        if self._seen:
            sentence += f". This is so from update {update} on"
            doubtful = range(self._compared + 1, update)
            if doubtful:
                sentence += (
                    f". Updates {doubtful[0]} to {doubtful[-1]} ({len(doubtful)}) were made by graphs without a "
                    "comparison, and may differ from fairseq's. To go on from an exact state, give --restore-file the "
                    f"checkpoint of update {self._compared} or an earlier one, without --cuda-graphs"
                )
        logger.warning(sentence, exc_info=None if isinstance(problem, CannotCapture) else problem)
        self._leave_to_fairseq(str(problem))

    def _prepare(self, samples: list[Any]) -> None:
        """Create ``updates`` if necessary, and plan graphs for the shapes of this epoch's batches.

        Raises:
            CannotCapture: a graph cannot hold this training; the message gives the reason.
        """
        refuse(self)
        if self.updates is None:
            self._start(self._planned(samples))
        elif self._is_new_epoch and self._batching and self._batching.shapes:
            self.updates.plan(self._planned(samples))

    def _planned(self, samples: list[Any]) -> list[Shape]:
        """Return the shapes of this epoch's batches, or only of ``samples`` if the dataset does not report lengths."""
        if not self._batching or not self._batching.shapes:
            return [shapes.shape_of(sample) for sample in samples if sample]
        batch, sizes = self._first_batch
        # fairseq has a string in place of the first batch if the dataset cannot provide it so early
        planned = self._batching.shapes
        return shapes.as_collated(planned, batch, sizes) if isinstance(batch, dict) else planned

    def _start(self, planned: list[Shape]) -> None:
        """Take the updates over from fairseq."""
        # wrappers that average gradients hold autograd nodes of the stream they were made on, which no capture may use
        internals.use_model_itself(self)
        words, dataset = self.task.target_dictionary, getattr(self._epoch_iterator, "dataset", None)
        pads_left = (bool(getattr(dataset, f"left_pad_{side}", False)) for side in ("source", "target"))
        updates = self._make_updates(Padding(words.pad(), words.eos(), *pads_left), planned)
        flat = FlatModel(self.optimizer, updates.reached)
        control = dict.fromkeys(ending.CONTROL, 0.0) | {"loss_scale": 1.0, "steps": float(flat.steps)}
        if scaler := getattr(self.optimizer, "scaler", None):
            control |= {name: float(getattr(scaler, attribute)) for name, attribute in internals.LOSS_SCALER.items()}
        self.updates = updates  # set before ``begin``: ``_leave_to_fairseq`` must undo the flat buffers
        updates.begin(flat, settings_of(self), control)

    def _make_updates(self, padding: Padding, planned: list[Shape]) -> Updates:
        """Create the updates for a GPU.

        Raises:
            CannotCapture: the model is not on a GPU, our kernels do not run on it, or an attribute cannot be copied.
            RuntimeError: something in an update waits for the device.
        """
        if self.device.type != "cuda":
            raise CannotCapture(f"the model is on a {self.device.type}, not on a GPU")
        if missing := library.load() or library.cuda_unusable():
            raise CannotCapture(missing)
        processes = self.data_parallel_world_size
        model, criterion = self.get_model(), self.get_criterion()
        return Updates(model, criterion, self.task, padding, planned, capture=True, processes=processes)

    def _leave_to_fairseq(self, refusal: str | None) -> None:
        self.refusal = refusal
        if self.updates is not None:
            self._settle()
            self.updates.flat.release()
            self.updates = None
        internals.wrap_model_again(self)

    def _update(self, updates: Updates, samples: list[Any]) -> dict[str, Any] | None:
        """Start an update, and log those that the device has finished."""
        internals.set_seed(self)
        metrics.log_start_time("train_wall", priority=800, round=0)
        number, rate = self.get_num_updates(), self.optimizer.get_lr()
        self._rates[number] = rate
        rates = [self._rates.get(number - skipped, rate) for skipped in range(LEAD + 1)]
        self._rates.pop(number - LEAD - 1, None)
        self._by_graphs.append(updates.update([sample or None for sample in samples], rates))
        self.set_num_updates(number + 1)
        logged: dict[str, Any] | None = {}
        for made in updates.made(0 if self._is_looked_at() else LEAD):
            logged = self._take(*made)
        metrics.log_scalar("by_graphs", float(self._by_graphs[-1]), priority=1600, round=2)
        if scaler := getattr(self.optimizer, "scaler", None):
            metrics.log_scalar("loss_scale", scaler.loss_scale, priority=700, round=4, weight=0)
        metrics.log_stop_time("train_wall")
        if self._ends_epoch():
            self._log_share(updates)
        return logged

    def _ends_epoch(self) -> bool:
        """Return True if the update that has just begun is the last of its epoch, or of the training."""
        return internals.is_at_end(self._epoch_iterator) or self.get_num_updates() >= self._last

    def _is_looked_at(self) -> bool:
        """Return True if fairseq logs, validates, saves or ends after the update that has just begun."""
        return self._ends_epoch() or any(self.get_num_updates() % every == 0 for every in self._intervals)

    def _log_share(self, updates: Updates) -> None:
        """Log the reason if graphs made few of an epoch's updates."""
        if updates.unfit is not None and self.share_by_graphs < FEW:
            logger.warning(
                "--cuda-graphs: graphs made %s of the %s updates of this epoch. The others were made one kernel after "
                "the other, since some batches are larger than the dataset's sizes predict: the last one has the shape "
                "%s (sentences, then the words of each side), and the largest graph is for %s",
                *(sum(self._by_graphs), len(self._by_graphs), updates.unfit, updates.shapes[0]),
            )
        self._by_graphs, updates.unfit = [], None

    def _take(self, sums: Numbers, outcome: Numbers, control: Numbers) -> dict[str, Any] | None:
        """Log the result of an update. Return None for a skipped update, as fairseq's ``train_step`` does."""
        scaler = getattr(self.optimizer, "scaler", None)
        for name, attribute in internals.LOSS_SCALER.items() if scaler else ():
            setattr(scaler, attribute, control[name] if name == "loss_scale" else int(control[name]))
        if outcome["applied"]:
            size, norm = sums.pop(SAMPLE_SIZE), torch.tensor(outcome["norm"])
            return internals.log_update(self, sums, size, norm)
        self.set_num_updates(self.get_num_updates() - 1)
        scale = control["loss_scale"]
        if scaler and not outcome["floor"]:
            logger.info("NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: %s", scale)
            return None
        assert self.updates is not None
        self.set_num_updates(self.get_num_updates() - len(self.updates.waiting))  # they changed nothing
        self.updates.waiting.clear()
        reason = f"gradients overflow at a loss scale of {scale}" if scaler else "the gradient is not finite"
        path = f"{self.cfg.checkpoint.save_dir}/crash.pt"
        self.consolidate_optimizer()
        self.save_checkpoint(path, {})
        raise FloatingPointError(
            f"{reason} in update {self.get_num_updates() + 1}; the parameters before it are in {path}. "
            "Train with a lower --lr or with --clip-norm. Without --cuda-graphs, fairseq names the module at fault"
        )

    def _settle(self) -> None:
        """Wait for the device, log its updates, and export their result to fairseq's optimizer."""
        if self.updates is not None:
            for made in self.updates.made(0):
                self._take(*made)
            self.updates.export()
