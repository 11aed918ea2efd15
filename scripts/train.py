"""Train the model of a configuration with fairseq-train. An interrupted training resumes from its last checkpoint.

DIR gets fairseq's checkpoints, train.log (fairseq's whole output, over all resumptions) and train.json with the results
of the run. If DIR holds checkpoints of other settings or other data, the command stops with an error. If only
max-update or max-epoch is higher than before, the training continues, unless its learning rate depends on its length.

All GPUs of a machine are used. To train on several machines that share DIR, run the command on each of them with
--nodes N --rendezvous HOST:PORT --node-rank K. The number of tokens in an update is the configuration's (`batch`), also
if a training continues on another number of devices.
"""

import math
import os
import shlex
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.common.command import positive, run_command
from data_prep.common.errors import UserError
from data_prep.common.files import check_path, read_json, write_json
from data_prep.common.outputs import check_writable, claim, lock, remove
from data_prep.common.pipeline import digest_data, fingerprint
from data_prep.common.process import run_logged
from data_prep.common.provenance import available_cores
from data_prep.common.terminal import StatusLine, clock
from scripts.check import check_first
from scripts.config import PRECISIONS, Config, config_parser, given_config
from scripts.fairseq_io import checkpoints
from scripts.fairseq_io.commands import train_command
from scripts.fairseq_io.devices import Devices, batch_per_device, find_devices
from scripts.fairseq_io.inputs import check_binarised
from scripts.fairseq_io.precision import take_training_precision
from scripts.fairseq_io.trainlog import Progress, TrainLog, read_log

STARTED = "started.json"
DIVERGED = "diverged.json"
LOG = "train.log"
LIMITS = ("max-update", "max-epoch")
OPEN_ENDED = ("fixed", "inverse_sqrt", "reduce_lr_on_plateau")  # schedules that do not depend on the last update


def prepare_folder(out: Path, identity: dict[str, Any]) -> None:
    """Check that ``out`` is new or the folder of this training, and remove what an interrupted write left there.

    Raises:
        UserError: it holds files that this command did not write, or checkpoints of another training.
    """
    if existing := sorted(out.glob("checkpoint*.pt")):  # without checkpoints there is nothing to protect
        previous = read_json(out / STARTED, {})
        previous.pop("taken", None)  # a key of older versions
        if not previous:
            raise UserError(
                f"{existing[0]} was not written by this command (there is no {STARTED} beside it); move the "
                "checkpoints away, or choose another folder"
            )
        if previous != identity and not (raised := _raised_limits(previous, identity)):
            raise UserError(
                f"the checkpoints in {out} were made with other settings or data: change these back to continue, or "
                f"rename the folder (mv {shlex.quote(str(out))} {shlex.quote(f'{out}.old')}) to train from the start"
            )
        if previous != identity:
            print(f"train: the checkpoints in {out} were made with {raised}: continuing", flush=True)
    check_writable(*(out / name for name in (STARTED, LOG, "train.json")))
    claim(out, "checkpoint*.pt")
    for unfinished in out.glob(".checkpoint*.lightconv"):  # the process was killed while it wrote them
        remove(unfinished)


def _raised_limits(previous: dict[str, Any], current: dict[str, Any]) -> str | None:
    """Return the previous limits in words if only they were raised and the training can continue; else None.

    Args:
        previous: the identity of the training so far, see ``Config.training``.
        current: the identity of the training that is asked for.
    """
    old_flags, new_flags = previous["train"], current["train"]
    limits = [(key, old_flags.get(key) or math.inf, new_flags.get(key) or math.inf) for key in LIMITS]
    without_limits = [
        identity | {"train": {**identity["train"], **dict.fromkeys(LIMITS)}} for identity in (previous, current)
    ]
    open_ended = new_flags.get("lr-scheduler", "fixed") in OPEN_ENDED
    if not open_ended or without_limits[0] != without_limits[1] or any(old > new for _, old, new in limits):
        return None
    return " and ".join(f"{key} {old:,}" for key, old, new in limits if old < new)


class Diverged(UserError):
    """The loss, the perplexity or the gradients are not finite."""

    def __init__(self, reason: str, update: int) -> None:
        super().__init__(
            f"the training diverged: {reason} at update {update:,}; lower train.lr, lengthen train.warmup-updates or "
            "set train.clip-norm in the configuration"
        )


class Reporter:
    """A callback that turns fairseq's log lines into one concise line of progress."""

    def __init__(self, max_update: int | None) -> None:
        self.max_update = max_update
        self.log = TrainLog()
        self.status = StatusLine()
        self.first: tuple[float, int] | None = None
        self.update = 0

    def __call__(self, line: str) -> None:
        reported = len(self.log.notices)
        progress = self.log.read(line)
        for text in self.log.notices[reported:]:
            self.status.line(f"train: {text}")
        if self.log.exploded:
            raise Diverged(self.log.exploded, self.update)
        if progress is None:
            return
        loss, self.update = progress.values["loss"], progress.update
        for name, value in (("loss", loss), ("perplexity", progress.values.get("ppl", 1.0))):
            if not math.isfinite(value):
                raise Diverged(f"the {progress.kind} {name} became {value}", progress.update)
        if progress.kind == "train_inner":
            self.status.update(self._describe(progress))
        elif progress.kind == "valid":
            perplexity = progress.values.get("ppl", math.nan)
            self.status.line(f"update {progress.update:,}: valid loss {loss:.3f}, perplexity {perplexity:.1f}")

    def _describe(self, progress: Progress) -> str:
        now, values = time.monotonic(), progress.values
        if self.first is None:
            self.first = (now, progress.update)
        of = f"/{self.max_update:,}" if self.max_update else ""
        text = f"update {progress.update:,}{of}  loss {values['loss']:.3f}  ppl {values.get('ppl', math.nan):.1f}"
        if "wps" in values:
            text += f"  {values['wps']:,.0f} tokens/s"
        updates = progress.update - self.first[1]
        if self.max_update and updates:
            text += f"  ETA {clock((now - self.first[0]) / updates * (self.max_update - progress.update))}"
        return text


def summary(log: TrainLog) -> dict[str, Any]:
    """Return the results of a finished training, from its log."""
    return {
        "updates": log.updates,
        "parameters": log.parameters,
        "trained_parameters": log.trained_parameters,
        "backend": log.backend or None,
        "seconds": log.seconds,
        "tokens_per_second": round(statistics.median(log.tokens_per_second)) if log.tokens_per_second else None,
        "train_loss": log.train_loss[max(log.train_loss)] if log.train_loss else None,
        "valid_loss": log.valid_loss[max(log.valid_loss)] if log.valid_loss else None,
        "best_valid_loss": min(log.valid_loss.values(), default=None),
    }


def threads(devices: Devices) -> dict[str, str]:
    """Return the environment that gives each of several CPU processes its share of the cores (torchrun: one core)."""
    several = not devices.gpu and devices.count > 1
    return {"OMP_NUM_THREADS": str(max(1, available_cores() // devices.count))} if several else {}


def train_here(config: Config, seed: int, data: Path, out: Path, devices: Devices) -> None:
    """Train in the folder ``out``, on the only machine or the first of several."""
    out.parent.mkdir(parents=True, exist_ok=True)
    identity = config.training(seed) | {"data": digest_data(data)}
    prepare_folder(out, identity)
    batch = batch_per_device(config.batch, devices.total) if config.batch else config.train
    position = checkpoints.adjust_position(out, devices.total, batch.get("max-tokens"))
    precision = take_training_precision(config, devices)
    for sentence in filter(None, (position, precision.reason)):
        print(f"train: {sentence}", flush=True)
    write_json(out / STARTED, identity)
    command = train_command(config, seed, data, out, devices)
    print(f"train: on {devices} in {precision.precision}", flush=True)
    if config.batch:
        print(
            f"train: each takes at most {batch['max-tokens']:,} tokens in a batch; batches in an update: "
            f"{batch['update-freq']}",
            flush=True,
        )
    reporter, log = Reporter(config.train.get("max-update")), out / LOG
    for earlier in (DIVERGED, "train.json"):  # of an earlier run, such as one with lower limits
        remove(out / earlier)
    resumes = (out / "checkpoint_last.pt").exists()  # otherwise the training and its log start from the beginning
    try:
        run_logged(command, log, reporter, what="fairseq-train", append=resumes, defaults=threads(devices))
    except Diverged:
        write_json(out / DIVERGED, {"update": reporter.update, "of": fingerprint(identity)})
        raise
    reporter.status.close()
    with open(log, encoding="utf-8", errors="replace") as lines:
        content = read_log(lines)
    if content.updates == 0 or not (out / "checkpoint_last.pt").exists():
        raise UserError(f"fairseq-train ended without an update or without a checkpoint; see {log}")
    facts = summary(content) | {"devices": str(devices), "command": command}
    facts |= {"precision": precision.precision, "precision_reason": precision.reason}
    write_json(out / "train.json", facts)
    print(f"trained for {facts['updates']:,} updates; the losses are in {log}")
    if count := content.validations_without_gain:
        of = f" of {reporter.max_update:,}" if reporter.max_update else ""
        print(f"ended at update {facts['updates']:,}{of}: validation did not improve {count} times in succession")


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__, data=True, out="the folder for checkpoints and log")
    add, rank = parser.add_argument, int(os.environ.get("SLURM_NODEID", "0"))
    add("--seed", type=int, metavar="N", help="the seed of the training (default: the first of the CONFIG's)")
    add("--devices", type=positive, metavar="N", help="number of GPUs, or of CPU processes if there is no GPU")
    add("--nodes", type=positive, metavar="N", default=1, help="number of machines; start the command on each")
    add("--rendezvous", metavar="HOST:PORT", help="where the machines connect: a free port of the first one")
    add("--node-rank", type=int, metavar="K", default=rank, help="index of this machine, from 0 (default: SLURM's)")
    add("--precision", choices=PRECISIONS, help="precision of the training (default: the CONFIG's)")
    arguments = parser.parse_args(argv)
    config = given_config(arguments, precision=arguments.precision)
    check_binarised(arguments.data)
    check_path(arguments.out)
    devices = find_devices(
        arguments.devices,
        cpu_processes=config.cpu_processes,
        nodes=arguments.nodes,
        node_rank=arguments.node_rank if arguments.nodes > 1 else 0,
        rendezvous=arguments.rendezvous,
    )
    seed = config.seeds[0] if arguments.seed is None else arguments.seed
    if devices.node_rank == 0:
        print("train: checking the settings and the lengths of lines", flush=True)
        check_first(config, arguments.data, devices)
        with lock(arguments.out):
            train_here(config, seed, arguments.data, arguments.out, devices)
    else:  # the first machine writes the folder and prints the progress
        command = train_command(config, seed, arguments.data, arguments.out, devices)
        log = arguments.out.parent / f"train.node{devices.node_rank}.log"
        run_logged(command, log, lambda line: None, what="fairseq-train", defaults=threads(devices))


if __name__ == "__main__":
    run_command(main)
