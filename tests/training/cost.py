"""Cost of the comparisons of captured training: ``python -m tests.training.cost``.

A small model is trained twice on the CPU's tape, with all comparisons and with only that of the first update. The two
trainings take turns after each update.
"""

import argparse
import statistics
import time
from typing import Any

import pytest
import torch

from lightconv_plugin.training import CapturedTrainer
from tests.training.runs import batches, begin, capture_updates_on_cpu


class ComparedOnce(CapturedTrainer):
    """A captured training that compares only its first update with fairseq's."""

    def _is_compared_next(self) -> bool:
        return self._seen == 0


def measure(count: int) -> dict[str, list[float]]:
    """Return the seconds of each update, with and without comparisons, except the first one, which captures."""
    trainers: dict[str, Any] = {name: begin(True, torch.device("cpu")) for name in ("with", "without")}
    trainers["without"].__class__ = ComparedOnce
    taken: dict[str, list[float]] = {name: [] for name in trainers}
    samples = batches(8)
    for number in range(count):
        order = list(trainers) if number % 2 else list(trainers)[::-1]
        for name in order:
            start = time.perf_counter()
            trainers[name].train_step([samples[number % len(samples)]])
            taken[name].append(time.perf_counter() - start)
    assert [trainer.refusal for trainer in trainers.values()] == [None, None]
    return {name: times[1:] for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of the comparisons in captured training.")
    parser.add_argument("--updates", type=int, default=1000, help="number of updates of each training (default: 1000)")
    with pytest.MonkeyPatch.context() as monkeypatch:
        capture_updates_on_cpu(monkeypatch)
        taken = measure(parser.parse_args().updates)
    for name, times in taken.items():
        print(f"{name} comparisons: {len(times) / sum(times):.1f} updates a second")
    usual = statistics.median(taken["without"])
    compared = [seconds for number, seconds in enumerate(taken["with"], 2) if number & (number - 1) == 0]
    comparison = statistics.median(compared) - usual
    print(f"an update {1e3 * usual:.1f} ms, a comparison {1e3 * comparison:.0f} ms, {len(compared)} comparisons")


if __name__ == "__main__":
    main()
