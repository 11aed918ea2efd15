"""Train the model of a configuration with fairseq-train, going on from where an earlier run of this command stopped.

DIR gets fairseq's checkpoints, train.log (all that fairseq said, over all resumptions) and train.json with the facts of
the run. If DIR holds checkpoints of other settings or other data, the command ends with a sentence. Where max-update or
max-epoch alone is higher than it was, the training goes on, unless its learning rate depends on how long it is to be.

Several GPUs of a machine are all used. For several machines that share DIR, run the command on each of them with
--nodes N --rendezvous HOST:PORT --node-rank K. The tokens of an update stay those of the configuration (`batch`), also
where a training goes on with another number of devices.
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
OPEN_ENDED = ("fixed", "inverse_sqrt", "reduce_lr_on_plateau")  # learning rates that do not know where they are to end


def prepare_folder(out: Path, identity: dict[str, Any]) -> None:
    """Make ``out`` the folder of this training, a new one or the one there.

    Raises:
        UserError: there are files in the way that this command did not write, or checkpoints of another training.
    """
    if found := sorted(out.glob("checkpoint*.pt")):  # without any, nothing is to be protected
        before = read_json(out / STARTED, {})
        before.pop("taken", None)  # which older versions noted beside it
        if not before:
            raise UserError(
                f"{found[0]} was not written by this command (there is no {STARTED} beside it); move the checkpoints "
                "away, or choose another folder"
            )
        if before != identity and not (raised := _raised_limits(before, identity)):
            raise UserError(
                f"the checkpoints in {out} were made with other settings or data: change these back to go on, or keep "
                f"them under another name (mv {shlex.quote(str(out))} {shlex.quote(f'{out}.old')}) to train anew"
            )
        if before != identity:
            print(f"train: the checkpoints in {out} were made with {raised}: going on", flush=True)
    check_writable(*(out / name for name in (STARTED, LOG, "train.json")))
    claim(out, "checkpoint*.pt")
    for left in out.glob(".checkpoint*.lightconv"):  # of a kill while it was written
        remove(left)


def _raised_limits(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Say with what limits a training began, if ``after`` is the same with higher ones, and can go on from there."""
    was, now = before["train"], after["train"]
    limits = [(key, was.get(key) or math.inf, now.get(key) or math.inf) for key in LIMITS]
    beside = [each | {"train": {**each["train"], **dict.fromkeys(LIMITS)}} for each in (before, after)]
    open_ended = now.get("lr-scheduler", "fixed") in OPEN_ENDED
    if not open_ended or beside[0] != beside[1] or any(old > new for _, old, new in limits):
        return None
    return " and ".join(f"{key} {old:,}" for key, old, new in limits if old < new)


class Diverged(UserError):
    """A loss, a perplexity or gradients that are not finite."""

    def __init__(self, what: str, update: int) -> None:
        super().__init__(
            f"the training diverged: {what} at update {update:,}; lower train.lr, lengthen train.warmup-updates or set "
            "train.clip-norm in the configuration"
        )


class Reporter:
    """Turns fairseq's log lines into one concise line of progress."""

    def __init__(self, max_update: int | None) -> None:
        self.max_update = max_update
        self.log = TrainLog()
        self.status = StatusLine()
        self.first: tuple[float, int] | None = None
        self.update = 0

    def __call__(self, line: str) -> None:
        told = len(self.log.told)
        progress = self.log.read(line)
        for text in self.log.told[told:]:
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
        done = progress.update - self.first[1]
        if self.max_update and done:
            text += f"  ETA {clock((now - self.first[0]) / done * (self.max_update - progress.update))}"
        return text


def summary(log: TrainLog) -> dict[str, Any]:
    """The facts of a finished training, from its log."""
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
    """The environment that gives each of several processes on a CPU its share of the cores; torchrun gives it one."""
    several = not devices.gpu and devices.count > 1
    return {"OMP_NUM_THREADS": str(max(1, available_cores() // devices.count))} if several else {}


def train_here(config: Config, seed: int, data: Path, out: Path, devices: Devices) -> None:
    """Train in the folder ``out``, as the first of the machines that take part."""
    out.parent.mkdir(parents=True, exist_ok=True)
    identity = config.training(seed) | {"data": digest_data(data)}
    prepare_folder(out, identity)
    batch = batch_per_device(config.batch, devices.total) if config.batch else config.train
    moved = checkpoints.go_on(out, devices.total, batch.get("max-tokens"))
    taken = take_training_precision(config, devices)
    for said in filter(None, (moved, taken.reason)):
        print(f"train: {said}", flush=True)
    write_json(out / STARTED, identity)
    command = train_command(config, seed, data, out, devices)
    print(f"train: on {devices} in {taken.precision}", flush=True)
    if config.batch:
        print(
            f"train: each takes at most {batch['max-tokens']:,} tokens {batch['update-freq']} times an update",
            flush=True,
        )
    reporter, log = Reporter(config.train.get("max-update")), out / LOG
    for earlier in (DIVERGED, "train.json"):  # of a training that had lower limits, say
        remove(out / earlier)
    going_on = (out / "checkpoint_last.pt").exists()  # without one, the log starts anew as the training does
    try:
        run_logged(command, log, reporter, what="fairseq-train", append=going_on, defaults=threads(devices))
    except Diverged:
        write_json(out / DIVERGED, {"update": reporter.update, "of": fingerprint(identity)})
        raise
    reporter.status.close()
    with open(log, encoding="utf-8", errors="replace") as lines:
        whole = read_log(lines)
    if whole.updates == 0 or not (out / "checkpoint_last.pt").exists():
        raise UserError(f"fairseq-train ended without an update or without a checkpoint; see {log}")
    facts = summary(whole) | {"devices": str(devices), "command": command}
    facts |= {"precision": taken.precision, "precision_reason": taken.reason}
    write_json(out / "train.json", facts)
    print(f"trained for {facts['updates']:,} updates; the losses are in {log}")
    if count := whole.validations_without_gain:
        of = f" of {reporter.max_update:,}" if reporter.max_update else ""
        print(f"ended at update {facts['updates']:,}{of}: validation was no better {count} times in succession")


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__, data=True, out="the folder for checkpoints and log")
    add, rank = parser.add_argument, int(os.environ.get("SLURM_NODEID", "0"))
    add("--seed", type=int, metavar="N", help="the seed of the training (default: the first of the CONFIG's)")
    add("--devices", type=positive, metavar="N", help="so many GPUs, or processes where there is none")
    add("--nodes", type=positive, metavar="N", default=1, help="so many machines, each started alone")
    add("--rendezvous", metavar="HOST:PORT", help="where they meet: a free port of the first machine")
    what = "which of the machines this is, from 0 (default: as SLURM says)"
    add("--node-rank", type=int, metavar="K", default=rank, help=what)
    add("--precision", choices=PRECISIONS, help="train in this (default: the CONFIG's)")
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
    else:  # the first machine has the folder, and says how it goes
        command = train_command(config, seed, arguments.data, arguments.out, devices)
        log = arguments.out.parent / f"train.node{devices.node_rank}.log"
        run_logged(command, log, lambda line: None, what="fairseq-train", defaults=threads(devices))


if __name__ == "__main__":
    run_command(main)
