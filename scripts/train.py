"""Train the model of a configuration with fairseq-train, going on from where an earlier run of this command stopped.

DIR gets fairseq's checkpoints, train.log (all that fairseq said, over all resumptions), loss.png, and train.json with
the facts of the run. If DIR holds checkpoints of other settings or other data, the folder is renamed to DIR.1.old (or
.2.old, ...), never deleted and never gone on from; when the settings return to those of such a folder, it is taken
back.
"""

import argparse
import hashlib
import itertools
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import checkpoints
from scripts.common.config import Config, flags, load_config
from scripts.common.errors import UserError, run_command
from scripts.common.fairseq import check_binarised, device_flags, user_dir
from scripts.common.files import read_json, write_json
from scripts.common.process import interruptible, python_module, run_logged
from scripts.common.terminal import StatusLine, clock
from scripts.common.trainlog import Progress, TrainLog, read_log
from scripts.plot_loss import plot_loss

STARTED = "started.json"
LINES_OF_PROGRESS = 80  # in the log of a whole run, unless the configuration gives log-interval


def digest_data(data: Path) -> str:
    """A fingerprint of a binarised folder: dictionaries and indices in full, the data files by name and size."""
    digest = hashlib.sha256()
    for path in sorted(data.iterdir()):
        if path.suffix == ".bin":
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        elif path.suffix == ".idx" or path.name.startswith("dict."):
            digest.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def settle_folder(out: Path, identity: dict[str, Any]) -> str | None:
    """Make ``out`` the folder of this training: a new one, the one there, or one that was put aside earlier.

    Returns:
        what was done with an older folder, as a sentence, or None.
    """
    said = []
    current = _identity(out)
    if current != identity:
        earlier = next(
            (old for old in sorted(out.parent.glob(f"{out.name}.*.old")) if _identity(old) == identity), None
        )
        if out.exists() and (current is not None or earlier is not None):
            aside = next(
                path for n in itertools.count(1) if not (path := out.with_name(f"{out.name}.{n}.old")).exists()
            )
            out.rename(aside)
            if current is not None:
                said.append(f"the checkpoints in {out} were made with other settings or data: kept as {aside.name}")
        if earlier is not None:
            earlier.rename(out)
            said.append(f"{earlier.name} was made with just these settings and data: taken back as {out.name}")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / STARTED, identity)
    return "; ".join(said) or None


def _identity(folder: Path) -> dict[str, Any] | None:
    """What the checkpoints of a folder were made from; None if it has none (then there is nothing to protect)."""
    if not any(folder.glob("checkpoint*.pt")):
        return None
    started = folder / STARTED
    return read_json(started) if started.exists() else {}


class Reporter:
    """Turns fairseq's log lines into one concise line of progress."""

    def __init__(self, max_update: int | None) -> None:
        self.max_update = max_update
        self.log = TrainLog()
        self.status = StatusLine()
        self.first: tuple[float, int] | None = None

    def __call__(self, line: str) -> None:
        progress = self.log.read(line)
        if progress is None:
            return
        loss = progress.values["loss"]
        if not math.isfinite(loss):
            raise UserError(
                f"the {progress.kind} loss became {loss} at update {progress.update:,}; "
                "lower train.lr or lengthen train.warmup-updates in the configuration"
            )
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


def command(config: Config, data: Path, out: Path) -> list[str]:
    """The fairseq-train command of a configuration."""
    max_update = config.train.get("max-update")
    interval = max(1, max_update // LINES_OF_PROGRESS) if max_update else 100
    return [
        *python_module("fairseq_cli.train"),
        str(data.resolve()),
        f"--user-dir={user_dir()}",
        f"--save-dir={out.resolve()}",
        f"--seed={config.seed}",
        "--log-format=json",
        *flags({"log-interval": interval} | config.train),
        *device_flags(config.train),
    ]


def summary(out: Path) -> dict[str, Any]:
    """The facts of a finished training, from its log.

    Raises:
        UserError: fairseq ended without having trained.
    """
    with open(out / "train.log", encoding="utf-8", errors="replace") as f:
        log = read_log(f)
    updates = max([*log.train_loss, *log.valid_loss], default=0)
    if updates == 0 or not (out / "checkpoint_last.pt").exists():
        raise UserError(f"fairseq-train ended without an update or without a checkpoint; see {out / 'train.log'}")
    return {
        "updates": updates,
        "parameters": log.parameters,
        "trained_parameters": log.trained_parameters,
        "backend": log.backend or None,
        "seconds": log.seconds,
        "tokens_per_second": round(statistics.median(log.tokens_per_second)) if log.tokens_per_second else None,
        "train_loss": log.train_loss[max(log.train_loss)] if log.train_loss else None,
        "valid_loss": log.valid_loss[max(log.valid_loss)] if log.valid_loss else None,
        "best_valid_loss": min(log.valid_loss.values(), default=None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="BINARISED", help="what data_prep/binarise.py wrote"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder for checkpoints, log and curve"
    )
    arguments = parser.parse_args()
    interruptible()
    config = load_config(arguments.config)
    check_binarised(arguments.data)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    identity = {"train": config.train, "seed": config.seed, "data": digest_data(arguments.data)}
    for said in (settle_folder(arguments.out, identity), checkpoints.repair_last(arguments.out)):
        if said:
            print(f"train: {said}", flush=True)
    reporter = Reporter(config.train.get("max-update"))
    log = arguments.out / "train.log"
    going_on = (arguments.out / "checkpoint_last.pt").exists()  # without one, the log starts anew as the training does
    run_logged(command(config, arguments.data, arguments.out), log, reporter, what="fairseq-train", append=going_on)
    reporter.status.close()
    facts = summary(arguments.out)
    plot_loss(log, arguments.out / "loss.png")
    write_json(arguments.out / "train.json", facts)
    print(f"trained for {facts['updates']:,} updates; the loss curve is {arguments.out / 'loss.png'}")


if __name__ == "__main__":
    run_command(main)
