"""Record the results that a change of the code's structure must not change.

  python -m tests.goldens --out before.json      # before the change; with --runs, three trainings too (20 minutes)
  python -m tests.goldens --out after.json       # after it, on the same machine
  diff before.json after.json

A record has the digests of: `reproduce --print` of every configuration; the parameter counts of the paper's tables; the
names and shapes in each architecture's state_dict; the operators, their gradients and masks over a grid of cases, for
each width of vectors; with --runs the prepared text, losses and hypotheses of the three small tasks, in float32.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
RUNS = ("debian_en_de/dynamicconv", "debian_lm/dynamicconv", "debian_summaries/dynamicconv")
WIDTHS = ("default", "avx2", "avx512")


def digest(content: bytes | str) -> str:
    """Return the first 16 digits of the SHA-256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def run(*module: str, **environment: str) -> str:
    """Return the output of a module, with a dot in place of the checkout's path."""
    command = [sys.executable, "-m", *module]
    process = subprocess.run(command, cwd=REPO, env=os.environ | environment, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}:\n{process.stderr[-2000:]}")
    return process.stdout.replace(str(REPO), ".")


def commands() -> Iterator[tuple[str, str]]:
    """Yield digests of the complete recipe and the commands of each configuration."""
    for path in sorted((REPO / "configs").glob("*/**/*.yaml")):
        if not path.name.startswith("base") and "about:" not in path.read_text():  # no base or comparison
            name = str(path.relative_to(REPO))
            yield f"print {name}", digest(run("scripts.reproduce", name, "--print"))


def architectures() -> Iterator[tuple[str, str]]:
    """Yield digests of the names and shapes of each architecture's weights."""
    from lightconv_plugin.models.architectures import ENCODER_DECODER, LANGUAGE_MODELS
    from tests.models.test_architectures import build, task

    for name in sorted({*ENCODER_DECODER, *LANGUAGE_MODELS}):
        state = build(name, task(name)).state_dict()
        yield f"state_dict {name}", digest(repr([(key, tuple(value.shape)) for key, value in state.items()]))


def operators() -> Iterator[tuple[str, str]]:
    """Yield digests of the operators' results, gradients and masks, with the vectors that this process may use."""
    import torch

    from lightconv_plugin import ops

    torch.set_num_threads(1)
    grid = itertools.product(
        ("light_conv", "dynamic_conv"), (torch.float32, torch.float64, torch.bfloat16), (1, 3, 31, 65), (1, 33, 129)
    )
    for name, dtype, width, time in grid:
        torch.manual_seed(width * time)
        x = torch.randn(time, 3, 32).to(dtype).requires_grad_()
        weight = torch.randn((4, width) if name == "light_conv" else (time, 3, 4, width)).to(dtype).requires_grad_()
        for p in (0.0, 0.2):
            out = getattr(ops, name)(x, weight, padding_l=width // 2, dropconnect=p, backend="native")
            results = (out, *torch.autograd.grad(out.square().sum(), (x, weight)))
            bits = b"".join(tensor.detach().view(torch.uint8).numpy().tobytes() for tensor in results)
            yield f"{name} {dtype} K {width} T {time} p {p}", digest(bits)
    torch.manual_seed(5)
    yield "dropout's mask", digest(ops.dropout(torch.ones(9, 7, 33), 0.3).numpy().tobytes())


def of_runs(work: Path) -> Iterator[tuple[str, str]]:
    """Yield digests of the prepared text, losses and hypotheses of the small tasks, and their scores."""
    for name in RUNS:
        run("scripts.reproduce", f"configs/{name}.yaml", "--precision", "fp32", "--work", str(work))
        dataset, seed = work / name.split("/")[0], work / name / "seed1"
        for path in sorted((dataset / "prepared").rglob("[!.]*.[!j]*")):
            yield f"{name} {path.relative_to(dataset)}", digest(path.read_bytes())
        losses = re.findall(r'"(?:train|valid)_loss": "([\d.]+)"', (seed / "checkpoints" / "train.log").read_text())
        yield f"{name} {len(losses)} losses", digest(repr(losses))
        for path in sorted(seed.glob("hypotheses/*.tok")):
            yield f"{name} {path.name}", digest(path.read_bytes())
        scores = json.loads((work / name / "record.json").read_text())["summary"]
        yield f"{name} scores", json.dumps(scores, sort_keys=True)


def record(*, runs: bool) -> dict[str, str]:
    """Return all results, by name."""
    results = dict(commands())
    results["params"] = digest(run("scripts.params"))
    results |= architectures()
    for width in WIDTHS:
        digests = json.loads(run("tests.goldens", "--operators", ATEN_CPU_CAPABILITY=width))
        results |= {f"{width}: {name}": value for name, value in digests.items()}
    if runs:
        with tempfile.TemporaryDirectory() as work:
            results |= of_runs(Path(work))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--out", type=Path, metavar="FILE", help="write the record to this file")
    mode.add_argument("--operators", action="store_true", help="print only the digests of the operators, as JSON")
    parser.add_argument("--runs", action="store_true", help="also train the three small tasks and record results")
    arguments = parser.parse_args()
    if arguments.operators:
        print(json.dumps(dict(operators())))
    else:
        results = record(runs=arguments.runs)
        arguments.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(f"{len(results)} results recorded in {arguments.out}")


if __name__ == "__main__":
    main()
