"""``--cuda-graphs``: fairseq-train makes its updates as CUDA graphs, see ``updates``.

Losses, norms, the loss scale, schedules, validation and checkpoints are those of a training without it. What cannot be
captured is trained as fairseq does it, and the log says once why.
"""

import dataclasses
import logging
from typing import Any

import torch
from fairseq import metrics
from fairseq.dataclass.configs import OptimizationConfig
from fairseq.dataclass.initialize import hydra_init
from fairseq.models import BaseFairseqModel, FairseqEncoder
from fairseq.optim.adam import Adam, FairseqAdam
from fairseq.optim.fp16_optimizer import FP16Optimizer
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import distributed

from lightconv_plugin.compat.shim import Original, shim
from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.training import shapes
from lightconv_plugin.training.comparison import compare, modules_of
from lightconv_plugin.training.flat import SCALER, FlatModel, settings_of
from lightconv_plugin.training.shapes import Padding
from lightconv_plugin.training.updates import LEAD, SAMPLE_SIZE, CannotCapture, Numbers, Updates

logger = logging.getLogger(__name__)

HOOKS = [f"_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre")]
SAME = (None, BaseFairseqModel.set_num_updates, FairseqEncoder.set_num_updates)

OPTION = "cuda_graphs"
HELP = (
    "make updates as CUDA graphs, several times as fast as one kernel after the other: for Adam, on an NVIDIA GPU; "
    "what cannot be captured is trained without, and the log says why"
)


def add_option() -> None:
    """Give fairseq-train the flag, and its configuration the field ``optimization.cuda_graphs``."""
    known = OptimizationConfig.__dataclass_fields__
    if OPTION in known:
        return
    field: Any = dataclasses.field(default=False, metadata={"help": HELP})
    field.name, field.type, field._field_type = OPTION, bool, known["lr"]._field_type
    setattr(OptimizationConfig, OPTION, False)
    known[OPTION], OptimizationConfig.__annotations__[OPTION] = field, bool
    hydra_init()  # which has read the fields before


def capture_updates() -> None:
    """Have fairseq's trainer make updates as graphs where the flag asks for it."""

    @shim(Trainer, "get_train_iterator")
    def in_few_shapes(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
        task = self.task

        def dataset(subset: str) -> Any:
            return shapes.batch_in_few_shapes(type(task).dataset(task, subset))

        if getattr(self.cfg.optimization, OPTION, False):
            task.dataset = dataset
        try:
            self._lightconv_epoch = original(self, *args, **kwargs)
        finally:
            vars(task).pop("dataset", None)
        return self._lightconv_epoch

    @shim(Trainer, "begin_epoch")
    def begin_epoch(original: Original, self: Any, *args: Any) -> None:
        original(self, *args)
        if captured := vars(self).get("_lightconv_captured"):
            captured.proven = False

    @shim(Trainer, "train_step")
    def train_step(original: Original, self: Any, samples: Any, raise_oom: bool = False) -> Any:
        captured = captured_training(self, samples)
        return original(self, samples, raise_oom) if captured is None else captured.train_step(samples)

    @shim(Trainer, "begin_valid_epoch")
    @shim(Trainer, "state_dict")
    def settled(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
        if captured := vars(self).get("_lightconv_captured"):
            captured.settle()
        return original(self, *args, **kwargs)

    @shim(Trainer, "load_checkpoint")
    def before_loading(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
        if captured := vars(self).pop("_lightconv_captured", None):
            captured.release()
        return original(self, *args, **kwargs)


def captured_training(trainer: Any, samples: list[Any]) -> "CapturedTraining | None":
    """Return what makes this trainer's updates, of these batches first; None for fairseq.

    Decided at the first update, and at the first of each epoch.
    """
    known = vars(trainer)
    captured: CapturedTraining | None = known.get("_lightconv_captured")
    asked = "_lightconv_captured" not in known and getattr(trainer.cfg.optimization, OPTION, False)
    if captured.proven if captured else not asked:
        return captured
    try:
        captured = captured or CapturedTraining(trainer, samples)
        captured.prove(samples)
    except Exception as error:  # fairseq meets it too, if it is the training's own
        unforeseen = not isinstance(error, CannotCapture)
        said = "--cuda-graphs: updates are made one kernel after the other, since %s"
        logger.warning(said, error, exc_info=unforeseen)
        if captured:
            captured.release()
        captured = None
    known["_lightconv_captured"] = captured
    return captured


def refuse(trainer: Any) -> None:
    """Refuse what a comparison of gradients would not find, and hooks, which a graph would call once.

    Raises:
        CannotCapture: a graph could not hold this training, and why.
    """
    cfg, optimizer, task, criterion = trainer.cfg, trainer.optimizer, trainer.task, trainer.get_criterion()
    inner = optimizer.fp32_optimizer if type(optimizer) is FP16Optimizer else optimizer
    adam = type(inner) is FairseqAdam and type(inner.optimizer) is Adam and len(inner.param_groups) == 1
    several, own_step = trainer.data_parallel_world_size > 1, type(task).optimizer_step
    refusals = {
        f"the optimizer is {type(inner).__name__}, not --optimizer adam with one group of parameters": not adam,
        "--store-ema is given": cfg.ema.store_ema,
        "--ddp-backend slowmo is given": cfg.distributed_training.ddp_backend == "slowmo",
        # each process would stop by a clock of its own
        "--stop-time-hours with several processes is given": several and cfg.optimization.stop_time_hours > 0,
        f"{type(task).__name__} has an optimizer_step of its own": own_step is not FairseqTask.optimizer_step,
        f"what {type(criterion).__name__} logs cannot be summed up": not task.logging_outputs_can_be_summed(criterion),
    }
    for name, module in modules_of(trainer):
        refusals |= {
            f"{name} has hooks": any(getattr(module, kind) for kind in HOOKS),
            f"{name} changes with the number of updates": getattr(type(module), "set_num_updates", None) not in SAME,
        }
    if reason := next((sentence for sentence, holds in refusals.items() if holds), None):
        raise CannotCapture(reason)


class CapturedTraining:
    """Updates in place of a trainer's own ``train_step``: the device may be up to ``LEAD`` updates behind its numbers.

    At every update after which fairseq logs, validates, saves or stops, both are at the same place.

    Attributes:
        proven: an update of this epoch was compared with fairseq's.

    Raises:
        CannotCapture: a graph could not hold this training, and why.
    """

    def __init__(self, trainer: Any, samples: list[Any], *, capture: bool = True) -> None:
        self.trainer, cfg = trainer, trainer.cfg
        # read once, since every look into a configuration takes as long as launching some kernels
        self.last = cfg.optimization.max_update or float("inf")
        intervals = (cfg.checkpoint.save_interval_updates, cfg.dataset.validate_interval_updates)
        self.intervals = [every for every in (cfg.common.log_interval, *intervals) if every > 0]
        device, model, criterion = trainer.device, trainer.get_model(), trainer.get_criterion()
        if capture and device.type != "cuda":
            raise CannotCapture(f"the model is on a {device.type}, not on a GPU")
        refuse(trainer)
        if capture and (missing := library.load() or library.cuda_unusable()):
            raise CannotCapture(missing)
        words, dataset = trainer.task.target_dictionary, getattr(vars(trainer).get("_lightconv_epoch"), "dataset", None)
        left = (bool(getattr(dataset, f"left_pad_{side}", False)) for side in ("source", "target"))
        padding, processes = Padding(words.pad(), words.eos(), *left), trainer.data_parallel_world_size
        # of an epoch, or of these batches where a dataset does not tell its lengths
        known = getattr(dataset, "few_shapes", None) or map(shapes.shape_of, filter(None, samples))
        planned = sorted(set(known), key=shapes.room, reverse=True)
        self.updates = Updates(model, criterion, padding, planned, capture=capture, processes=processes)
        self.rates: dict[int, float] = {}
        self.proven = False
        flat = FlatModel(trainer.optimizer, self.updates.reached)
        self.scaler = getattr(trainer.optimizer, "scaler", None)
        control = dict.fromkeys(ending.CONTROL, 0.0) | {"loss_scale": 1.0, "steps": float(flat.steps)}
        if self.scaler:
            control |= {name: float(getattr(self.scaler, attribute)) for name, attribute in SCALER.items()}
        # what would average gradients holds nodes of autograd's on the stream it was made on: no capture may touch it
        trainer._wrapped_model, trainer._wrapped_criterion = model, criterion
        try:
            self.updates.begin(flat, settings_of(trainer), control)
        except Exception:
            self.release()
            raise

    def prove(self, samples: list[Any]) -> None:
        """Compare an update of these batches with fairseq's, see ``comparison``.

        Raises:
            CannotCapture: they differ, here or in another process.
        """
        self.settle()
        problem: Exception | None = None
        with metrics.aggregate(new_root=True):  # which an exception would leave in disorder
            try:
                refuse(self.trainer)
                compare(self.trainer, self.updates, [sample for sample in samples if sample])
            except Exception as error:
                problem = error
        if self.updates.processes > 1:
            found = torch.tensor(float(problem is not None), device=self.trainer.device)
            distributed.all_reduce(found)
            problem = problem or (CannotCapture("another process refuses") if found else None)
        if problem:
            raise problem
        self.proven = True

    def release(self) -> None:
        """Leave the updates to fairseq."""
        self.settle()
        self.updates.flat.release()
        self.trainer._wrapped_model = self.trainer._wrapped_criterion = None

    @metrics.aggregate("train")
    def train_step(self, samples: list[Any]) -> dict[str, Any] | None:
        """As fairseq's. What it logs is of updates that the device has made."""
        trainer = self.trainer
        trainer._set_seed()
        metrics.log_start_time("train_wall", priority=800, round=0)
        now = trainer.get_num_updates()
        rate = trainer.optimizer.get_lr()
        self.rates[now] = rate
        rates = [self.rates.get(now - skipped, rate) for skipped in range(LEAD + 1)]
        self.rates.pop(now - LEAD - 1, None)
        self.updates.update([sample or None for sample in samples], rates)
        trainer.set_num_updates(now + 1)
        logged: dict[str, Any] | None = {}
        for made in self.updates.made(0 if self._is_looked_at() else LEAD):
            logged = self._take(*made)
        if self.scaler:
            metrics.log_scalar("loss_scale", self.scaler.loss_scale, priority=700, round=4, weight=0)
        metrics.log_stop_time("train_wall")
        return logged

    def _is_looked_at(self) -> bool:
        """True if fairseq logs, validates, saves or ends after the update that has just begun."""
        now, epoch = self.trainer.get_num_updates(), vars(self.trainer).get("_lightconv_epoch")
        ends = epoch is not None and epoch._cur_epoch_itr is not None and epoch.end_of_epoch()
        return ends or now >= self.last or any(now % every == 0 for every in self.intervals)

    def _take(self, sums: Numbers, outcome: Numbers, control: Numbers) -> dict[str, Any] | None:
        """Tell the trainer what became of an update; None for one that was skipped, as fairseq's ``train_step``."""
        trainer = self.trainer
        for name, attribute in SCALER.items() if self.scaler else ():
            setattr(self.scaler, attribute, control[name] if name == "loss_scale" else int(control[name]))
        if outcome["applied"]:
            size, norm = sums.pop(SAMPLE_SIZE), torch.tensor(outcome["norm"])
            logged: dict[str, Any] = trainer._reduce_and_log_stats([sums], size, norm)
            return logged
        trainer.set_num_updates(trainer.get_num_updates() - 1)
        scale = control["loss_scale"]
        if self.scaler and not outcome["floor"]:
            logger.info("NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: %s", scale)
            return None
        trainer.set_num_updates(trainer.get_num_updates() - len(self.updates.waiting))  # which have changed nothing
        self.updates.waiting.clear()
        what = f"gradients overflow at a loss scale of {scale}" if self.scaler else "the gradient is not finite"
        path = f"{trainer.cfg.checkpoint.save_dir}/crash.pt"
        trainer.consolidate_optimizer()
        trainer.save_checkpoint(path, {})
        raise FloatingPointError(
            f"{what} in update {trainer.get_num_updates() + 1}; the parameters before it are in {path}. "
            "Train with a lower --lr or with --clip-norm; without --cuda-graphs fairseq names the module"
        )

    def settle(self) -> None:
        """Wait for the device, and bring fairseq's optimizer to where it is."""
        for made in self.updates.made(0):
            self._take(*made)
        self.updates.export()
