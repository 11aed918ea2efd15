"""``--cuda-graphs``: fairseq-train makes its updates as CUDA graphs, see ``updates``.

Losses, norms, the loss scale, schedules, validation and checkpoints are those of a training without it. What cannot be
captured is trained as fairseq does it, and the log says once why.
"""

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq import metrics
from fairseq.dataclass.configs import OptimizationConfig
from fairseq.dataclass.initialize import hydra_init
from fairseq.models import BaseFairseqModel, FairseqEncoder, lightconv
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LayerDropModuleList
from fairseq.optim.adam import Adam, FairseqAdam
from fairseq.optim.fp16_optimizer import FP16Optimizer
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import Tensor, distributed, nn

from lightconv_plugin.compat.shim import Original, shim
from lightconv_plugin.models.encoder_decoder import LightConvEncoder
from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.training import shapes
from lightconv_plugin.training.comparison import changes, compare, constants, restore
from lightconv_plugin.training.flat import FlatModel
from lightconv_plugin.training.updates import LEAD, CannotCapture, Padding, UpdateResult, Updates

logger = logging.getLogger(__name__)

GLOBAL_HOOKS = [f"_global_{when}_hooks" for when in ("forward", "forward_pre", "backward", "backward_pre")]

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
    def remember(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
        with _few_shapes(self):
            self._lightconv_epoch = original(self, *args, **kwargs)
        return self._lightconv_epoch

    @shim(Trainer, "begin_epoch")
    def begin_epoch(original: Original, self: Any, epoch: int) -> None:
        original(self, epoch)
        if (captured := self.__dict__.get("_lightconv_captured")) is not None:
            captured.proven = False

    @shim(Trainer, "train_step")
    def train_step(original: Original, self: Any, samples: Any, raise_oom: bool = False) -> Any:
        captured = captured_training(self, samples)
        return original(self, samples, raise_oom) if captured is None else captured.train_step(samples)

    @shim(Trainer, "begin_valid_epoch")
    @shim(Trainer, "state_dict")
    def settled(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
        settle(self)
        return original(self, *args, **kwargs)

    @shim(Trainer, "load_checkpoint")
    def before_loading(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
        settle(self)
        if (captured := self.__dict__.pop("_lightconv_captured", None)) is not None:
            captured.release()
        return original(self, *args, **kwargs)


@contextmanager
def _few_shapes(trainer: Any) -> Iterator[None]:
    """Have the task of a trainer with the flag batch what it is given in few shapes."""
    task = trainer.task
    if not getattr(trainer.cfg.optimization, OPTION, False):
        yield
        return
    original = task.get_batch_iterator

    def get_batch_iterator(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        if "batch_by_size" not in vars(dataset):
            shapes.batch_in_few_shapes(dataset)
        return original(dataset, *args, **kwargs)

    task.get_batch_iterator = get_batch_iterator
    try:
        yield
    finally:
        del task.get_batch_iterator


def settle(trainer: Any) -> None:
    """Bring a trainer and its optimizer to where the device is."""
    captured = trainer.__dict__.get("_lightconv_captured")
    if captured is not None:
        captured.settle()


def captured_training(trainer: Any, samples: list[Any]) -> "CapturedTraining | None":
    """Return what makes this trainer's updates, of these batches first; None for fairseq.

    Decided at the first update, and at the first of each epoch. What has changed by then is captured anew.
    """
    known = trainer.__dict__
    if "_lightconv_captured" not in known and not getattr(trainer.cfg.optimization, OPTION, False):
        return None
    captured: CapturedTraining | None = known.get("_lightconv_captured")
    if "_lightconv_captured" in known and (captured is None or captured.proven):
        return captured
    before = constants(trainer)
    try:
        if captured is not None and (changed := captured.changed()):
            logger.info("--cuda-graphs: graphs are captured anew: %s", changed)
            captured = captured.release()
        if captured is None:
            captured = CapturedTraining(trainer, samples)
        captured.prove(samples)
    except Exception as error:  # which fairseq meets too, if it is the training's
        reason = error if isinstance(error, CannotCapture) else f"{type(error).__name__}: {error}"
        logger.warning("--cuda-graphs: updates are made one kernel after the other, since %s", reason)
        if captured is not None:
            captured.release()
        captured = None
        restore(trainer, before)
    known["_lightconv_captured"] = captured
    return captured


def refuse(trainer: Any) -> None:
    """Save the trial where it can be told beforehand.

    Raises:
        CannotCapture: a graph could not hold this training, and why.
    """
    cfg, optimizer, task, criterion = trainer.cfg, trainer.optimizer, trainer.task, trainer.get_criterion()
    ddp, several = cfg.distributed_training.ddp_backend, trainer.data_parallel_world_size > 1
    inner = optimizer.fp32_optimizer if type(optimizer) is FP16Optimizer else optimizer
    adam = type(inner) is FairseqAdam and type(inner.optimizer) is Adam and len(inner.optimizer.param_groups) == 1
    own_updates = any(
        getattr(getattr(task, name), "__func__", None) is not getattr(FairseqTask, name)
        for name in ("train_step", "optimizer_step")
    )
    params = list(getattr(optimizer, "fp16_params", None) or optimizer.params)
    hooks = [hook for name in GLOBAL_HOOKS for hook in getattr(nn.modules.module, name).values()]
    steps = (inner.optimizer._optimizer_step_pre_hooks, inner.optimizer._optimizer_step_post_hooks)
    refusals = {
        "--amp is given": cfg.common.amp,
        "--tpu is given": cfg.common.tpu,
        "--memory-efficient-fp16 is given": cfg.common.memory_efficient_fp16,
        "--memory-efficient-bf16 is given": cfg.common.memory_efficient_bf16,
        "--model-parallel-size is given": cfg.common.model_parallel_size > 1,
        "--pipeline-model-parallel is given": cfg.distributed_training.pipeline_model_parallel,
        "--quantization-config-path is given": trainer.quantizer is not None,
        "--use-bmuf is given": cfg.optimization.use_bmuf,
        "--store-ema is given": cfg.ema.store_ema,
        # each process would stop by a clock of its own
        "--stop-time-hours with several processes is given": several and cfg.optimization.stop_time_hours > 0,
        f"--ddp-backend {ddp} is given": ddp in ("fully_sharded", "slowmo"),
        f"the optimizer is {type(inner).__name__}, not --optimizer adam with one group of parameters": not adam,
        f"{type(task).__name__} makes updates in a way of its own": own_updates,
        f"what {type(criterion).__name__} logs cannot be summed up": not task.logging_outputs_can_be_summed(criterion),
        "the parameters are of several types or on several devices": len({(p.dtype, p.device) for p in params}) != 1,
        "parameters in 16 bits are frozen": inner is not optimizer and not all(p.requires_grad for p in params),
        "all modules have hooks, which a graph would call once": hooks,
        "the optimizer has hooks, which a graph would not call": any(steps),
        "a parameter has hooks on its gradient, which a graph would call once": any(
            p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in params
        ),
    }
    for sentence, holds in refusals.items():
        if holds:
            raise CannotCapture(sentence)
    for root in (trainer.get_model(), criterion):
        for name, module in root.named_modules():
            _refuse_module(name or type(module).__name__, module)


def _refuse_module(name: str, module: nn.Module) -> None:
    hooks = [module._forward_hooks, module._backward_hooks, module._backward_pre_hooks]
    before = [hook for hook in module._forward_pre_hooks.values() if type(hook).__name__ != "WeightNorm"]
    own = getattr(type(module), "set_num_updates", None)
    known = (None, BaseFairseqModel.set_num_updates, FairseqEncoder.set_num_updates)
    refusals = {
        "has hooks, which a graph would call once": any(hooks) or before,
        "leaves out layers at random (--encoder-layerdrop, --decoder-layerdrop)": isinstance(
            module, LayerDropModuleList
        ),
        "changes with the number of updates": own not in known,
        "is computed twice (--checkpoint-activations, --offload-activations)": hasattr(module, "precheckpoint_forward"),
    }
    for sentence, holds in refusals.items():
        if holds:
            raise CannotCapture(f"{name} {sentence}")


@contextmanager
def without_questions(model: Any) -> Iterator[None]:
    """Have fairseq's Transformer mask padding without asking the device if there is any; the results are the same."""
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for module in model.modules():
        kind, own = type(module), vars(module)
        if isinstance(module, TransformerEncoderBase) and (
            kind.forward_scriptable is TransformerEncoderBase.forward_scriptable
        ):
            changed.append((own, "forward_scriptable", LightConvEncoder.forward_scriptable.__get__(module)))
        if kind is lightconv.LightConvEncoder:
            changed.append((own, "forward", _encode.__get__(module)))
        if isinstance(module, TransformerDecoderBase):
            changed.append(
                (own, "cross_self_attention", True)
            )  # it hands on the mask of padding, as where there is some
    before = [(own, name, own[name]) for own, name, _ in changed if name in own]
    for own, name, value in changed:
        own[name] = value
    try:
        yield
    finally:
        for own, name, _ in changed:
            del own[name]
        for own, name, value in before:
            own[name] = value


def _encode(self: Any, src_tokens: Tensor, src_lengths: Tensor | None = None) -> dict[str, list[Tensor]]:
    """``forward`` of the encoder of fairseq's own ``lightconv``: tokens (B, S); the output is (S, B, C)."""
    x = self.embed_scale * self.embed_tokens(src_tokens)
    if self.embed_positions is not None:
        x = x + self.embed_positions(src_tokens)
    x, padding = self.dropout_module(x).transpose(0, 1), src_tokens.eq(self.padding_idx)
    for layer in self.layers:
        x = layer(x, padding)
    if self.layer_norm is not None:
        x = self.layer_norm(x)
    return {"encoder_out": [x], "encoder_padding_mask": [padding]}


class CapturedTraining:
    """Updates in place of a trainer's own ``train_step``: the device may be up to ``LEAD`` updates behind its numbers.

    At every update after which fairseq logs, validates, saves or stops, both are at the same place.

    Raises:
        CannotCapture: a graph could not hold this training, and why.
    """

    def __init__(self, trainer: Any, samples: list[Any], *, capture: bool = True) -> None:
        self.trainer, cfg = trainer, trainer.cfg
        # every look into a configuration takes as long as launching some kernels
        self.common, self.checkpoint, self.dataset, self.optimization = (
            cfg[name] for name in ("common", "checkpoint", "dataset", "optimization")
        )
        device = trainer.device
        if capture and device.type != "cuda":
            raise CannotCapture(f"the model is on a {device.type}, not on a GPU")
        refuse(trainer)
        if lost := {name for sample in samples if sample for name in shapes.lost(sample)}:
            raise CannotCapture(f"batches have what no graph is given: {', '.join(sorted(lost))}")
        if capture and (missing := library.load() or library.cuda_unusable()):
            raise CannotCapture(missing)
        model, criterion = trainer.get_model(), trainer.get_criterion()
        words = trainer.task.target_dictionary
        epoch = trainer.__dict__.get("_lightconv_epoch")
        dataset = getattr(epoch, "dataset", None)
        padding = Padding(
            words.pad(),
            words.eos(),
            bool(getattr(dataset, "left_pad_source", False)),
            bool(getattr(dataset, "left_pad_target", False)),
        )
        self.proven = False
        self.updates = Updates(
            model,
            criterion,
            padding,
            device,
            capture=capture,
            processes=trainer.data_parallel_world_size,
            patched=without_questions,
        )
        self.rates: dict[int, float] = {}
        self._start(self._plan(epoch, dataset, samples))

    def _plan(self, epoch: Any, dataset: Any, samples: list[Any]) -> list[shapes.Shape]:
        """The shapes of all batches of an epoch; those of ``samples`` where a dataset does not tell its lengths."""
        counted = shapes.shapes_of(dataset, getattr(epoch, "frozen_batches", ()))
        if not counted:
            return sorted({shapes.shape_of(sample) for sample in samples if sample}, key=shapes.places, reverse=True)
        planned = sorted(counted, key=shapes.places, reverse=True)
        sizes = shapes.sizes_of(dataset)
        assert sizes is not None
        words = sum(int(sizes[list(batch)].sum()) for batch in epoch.frozen_batches)
        logger.info(
            "--cuda-graphs: %d batches in %d shapes, the largest %s (sentences x lengths); words fill %.1f%% of them",
            counted.total(), len(planned), " x ".join(map(str, planned[0])),
            100 * words / sum(count * shapes.places(shape) for shape, count in counted.items()),
        )  # fmt: skip
        return planned

    def _start(self, planned: list[shapes.Shape]) -> None:
        trainer, optimizer = self.trainer, self.trainer.optimizer
        self.updates.prepare(planned)
        self._constants, self._settings = constants(trainer), settings_of(trainer)
        # what would average gradients holds nodes of autograd's on the stream it was made on: no capture may touch it
        trainer._wrapped_model, trainer._wrapped_criterion = trainer.get_model(), trainer.get_criterion()
        flat = FlatModel(optimizer, self.updates.reached)
        scaler = getattr(optimizer, "scaler", None)
        control = dict.fromkeys(ending.CONTROL, 0.0) | {"loss_scale": 1.0, "steps": float(flat.steps)}
        if scaler is not None:
            control |= {name: float(getattr(scaler, attribute)) for name, attribute in SCALER.items()}
        try:
            self.updates.begin(flat, self._settings, control)
        except Exception:
            self.release()
            raise
        if self.updates.capture:
            logger.info(
                "--cuda-graphs: %.1f GiB of the device in use with the largest graph",
                torch.cuda.memory_reserved(trainer.device) / 2**30,
            )

    def changed(self) -> str:
        """Return what has become of the numbers that graphs hold for ever, in a sentence; empty where nothing has."""
        for part in (self.trainer.get_model(), self.trainer.get_criterion()):
            part.train()  # as fairseq before every update
        now = constants(self.trainer) | vars(settings_of(self.trainer))
        return changes(self._constants | vars(self._settings), now)

    def prove(self, samples: list[Any]) -> None:
        """Compare an update of these batches with fairseq's, see ``comparison``.

        Raises:
            CannotCapture: it differs, here or in another process.
        """
        self.settle()
        problem: Exception | None = None
        try:
            refuse(self.trainer)
            if real := [sample for sample in samples if sample]:
                compare(self.trainer, self.updates, real, self._set_seed)
        except Exception as error:
            problem = error
        if self.updates.processes > 1:
            found = torch.tensor(float(problem is not None), device=self.trainer.device)
            distributed.all_reduce(found)
            if found and problem is None:
                problem = CannotCapture("another process refuses")
        if problem is not None:
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
        self._set_seed()
        metrics.log_start_time("train_wall", priority=800, round=0)
        batches = [sample or None for sample in samples]
        now = trainer.get_num_updates()
        rate = trainer.optimizer.get_lr()
        self.rates[now] = rate
        rates = [self.rates.get(now - skipped, rate) for skipped in range(LEAD + 1)]
        self.rates.pop(now - LEAD - 1, None)
        self.updates.update(batches, rates)
        trainer.set_num_updates(now + 1)
        logged: dict[str, Any] | None = {}
        for made in self.updates.made(0 if self._is_looked_at() else LEAD):
            logged = self._take(made)
        if scaler := getattr(trainer.optimizer, "scaler", None):
            metrics.log_scalar("loss_scale", scaler.loss_scale, priority=700, round=4, weight=0)
        if self.updates.uncaptured:
            metrics.log_scalar("uncaptured", self.updates.uncaptured, priority=710, weight=0)
        metrics.log_stop_time("train_wall")
        return logged

    def _set_seed(self) -> None:
        """As fairseq's. PyTorch's own notes for each kind of device that is not there who asked, which takes 0.7 ms."""
        seed = self.common.seed + self.trainer.get_num_updates()
        torch.default_generator.manual_seed(seed)
        if self.trainer.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _is_looked_at(self) -> bool:
        """True if fairseq logs, validates, saves or ends after the update that has just begun."""
        now = self.trainer.get_num_updates()
        every = (
            self.common.log_interval,
            self.checkpoint.save_interval_updates,
            self.dataset.validate_interval_updates,
        )
        epoch = self.trainer.__dict__.get("_lightconv_epoch")
        return (
            any(interval > 0 and now % interval == 0 for interval in every)
            or now >= (self.optimization.max_update or float("inf"))
            or (epoch is not None and epoch._cur_epoch_itr is not None and epoch.end_of_epoch())
        )

    def _take(self, made: UpdateResult) -> dict[str, Any] | None:
        """Tell the trainer what became of an update; None for one that was skipped, as fairseq's ``train_step``."""
        trainer = self.trainer
        scaler = getattr(trainer.optimizer, "scaler", None)
        if scaler is not None:
            for name, attribute in SCALER.items():
                value = made.control[name]
                setattr(scaler, attribute, value if name == "loss_scale" else int(value))
        if made.outcome["applied"]:
            norm = torch.tensor(made.outcome["norm"], dtype=torch.float32)
            logged: dict[str, Any] = trainer._reduce_and_log_stats([made.logged], made.sample_size, norm)
            return logged
        ends = scaler is None or made.outcome["floor"]
        trainer.set_num_updates(trainer.get_num_updates() - 1 - (self.updates.forget() if ends else 0))
        if ends:
            self._give_up(made, scaler)
        logger.info(
            "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: %s", made.control["loss_scale"]
        )
        return None

    def _give_up(self, made: UpdateResult, scaler: Any) -> None:
        trainer = self.trainer
        path = f"{trainer.cfg.checkpoint.save_dir}/crash.pt"
        trainer.consolidate_optimizer()
        trainer.save_checkpoint(path, {})
        if scaler is None:
            what = f"the gradient of update {trainer.get_num_updates() + 1} is not finite"
        else:
            what = f"the loss scale is down at {made.control['loss_scale']}, and gradients still overflow"
        raise FloatingPointError(
            f"{what}; the parameters, which it has not changed, are in {path}. Train with a lower --lr, with "
            "--clip-norm, or with larger batches; without --cuda-graphs fairseq names the module in which it happens."
        )

    def settle(self) -> None:
        """Wait for the device, and bring fairseq's optimizer to where it is."""
        for made in self.updates.made(0):
            self._take(made)
        self.updates.flat.export(self.updates.steps())


def settings_of(trainer: Any) -> ending.Settings:
    """The numbers of fairseq's optimizer and loss scale that stay the same in all updates."""
    optimizer = trainer.optimizer
    (group,), scaler = optimizer.param_groups, getattr(optimizer, "scaler", None)
    scale: dict[str, Any] = {"scaled": scaler is not None}
    if scaler is not None:
        scale |= {
            "tolerance": scaler.tolerance,
            "least": scaler.threshold or 0.0,
            "lowest": scaler.min_loss_scale,
            "window": scaler.scale_window,
        }
    clip, betas = float(trainer.cfg.optimization.clip_norm), tuple(group["betas"])
    return ending.Settings(clip=clip, betas=betas, eps=group["eps"], weight_decay=group["weight_decay"], **scale)


# the numbers of ``ending.CONTROL`` that are fairseq's DynamicLossScaler's
SCALER = {
    "loss_scale": "loss_scale",
    "iteration": "_iter",
    "last_overflow": "_last_overflow_iter",
    "last_rescale": "_last_rescale_iter",
    "overflows": "_overflows_since_rescale",
}
