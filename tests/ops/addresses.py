"""Run the CPU kernels on random cases under AddressSanitizer: every read and write beyond a tensor is found.

  python -m tests.ops.addresses --seconds 60     # and a minute or two to compile; ATEN_CPU_CAPABILITY=avx2 as elsewhere

The library is compiled by g++ with the sanitizer, into a folder that is gone afterwards.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SANITIZED = (
    '#!/bin/sh\nunset LD_PRELOAD\nexec g++ "$@" -O1 -g1 -fsanitize=address,bounds,shift,integer-divide-by-zero\n'
)


def case(draw: random.Random) -> str:
    """Run forward and backward of one random case; return it in words."""
    import torch

    from lightconv_plugin import ops

    name, dtype = (
        draw.choice(("light_conv", "dynamic_conv")),
        draw.choice((torch.float32, torch.float64, torch.bfloat16)),
    )
    heads, ratio = draw.choice((1, 2, 3, 7, 16, 21, 35, 64)), draw.choice((1, 2, 3, 4, 8, 12, 16, 33, 64))
    width, batch_first = draw.choice((1, 2, 3, 4, 7, 8, 9, 15, 31, 65)), draw.random() < 0.3
    shape: tuple[int, ...] = draw.choice((1, 3, 9, 33, 130, 300)), draw.choice((1, 2, 5))
    layout: dict[str, Any] = {"batch_first": batch_first}
    if draw.random() < 0.3:  # packed
        lengths = [draw.choice((0, 1, 5, 17, 40, 200)) for _ in range(draw.randrange(1, 8))]
        shape, layout = (sum(lengths),), {"cu_seqlens": torch.tensor([0, *lengths]).cumsum(0)}
    x = torch.randn(*shape, heads * ratio).to(dtype).requires_grad_()
    weight = torch.randn(*(shape if name == "dynamic_conv" else ()), heads, width).to(dtype).requires_grad_()
    options = {"padding_l": draw.randrange(width), "dropconnect": draw.choice((0.0, 0.3)), **layout}
    inputs = [x, weight]
    if draw.random() < 0.4:
        sentences = len(layout["cu_seqlens"]) - 1 if "cu_seqlens" in layout else shape[1 - batch_first]
        begins = (sentences, width - 1) if layout.get("batch_first") else (width - 1, sentences)
        inputs.append(torch.randn(*begins, heads * ratio).to(dtype).requires_grad_())
        options |= {"padding_l": width - 1, "initial_state": inputs[2]}
    words = f"{name} {dtype} x {tuple(x.shape)} weight {tuple(weight.shape)} "
    words += str({key: tuple(v.shape) if key == "initial_state" else v for key, v in options.items()})
    print(words, file=sys.stderr)  # before it runs: the last one is the one that fails
    out = getattr(ops, name)(x, weight, backend="native", **options)
    torch.autograd.grad(out.float().square().sum(), inputs)
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        draw, count = random.Random(), 0
        case(draw)  # the library is compiled
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            case(draw)
            count += 1
        print(f"{count:,} cases, nothing found")
        return
    with tempfile.TemporaryDirectory() as folder:
        compiler, said = Path(folder) / "g++", Path(folder) / "said"
        compiler.write_text(SANITIZED)
        compiler.chmod(0o755)
        runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        environment = os.environ | {
            "CXX": str(compiler),
            "LIGHTCONV_CACHE": folder,
            "LD_PRELOAD": runtime.stdout.strip(),
        }
        environment |= {"ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.ops.addresses", "--here", "--seconds", str(arguments.seconds)]
        with said.open("w") as file:
            done = subprocess.run(command, env=environment, stderr=file)
        if done.returncode:
            sys.exit(said.read_text()[-6000:])


if __name__ == "__main__":
    main()
