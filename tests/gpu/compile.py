"""Compile the kernels of tests/gpu/test_operators.py and of the benches together, on all processors at once.

usage: python -m tests.gpu.compile [DEVICE]     cuda (default), cuda:N; on a CPU there is nothing to compile

Compiled one by one, when they are first launched, they take half a second each.
"""

import itertools
import logging
import sys

import torch

from lightconv_plugin.ops import library

TYPES = (torch.float32, torch.float16, torch.bfloat16)
# K, channels per head, T: those of test_convolutions, then those of `scripts.bench kernels`, `ops` and `train`
SIZES = [
    *itertools.product((1, 2, 3, 7, 15, 31, 32, 63, 65, 130, 300), (1, 3, 16, 64, 80), (31, 129)),
    *itertools.product((3, 7, 15, 31, 63, 255), (64,), (8, 32, 512)),
]


def main(argv: list[str]) -> None:
    device = torch.device(argv[0] if argv else "cuda")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if reason := library.load() or (library.cuda_unusable() if device.type == "cuda" else None):
        sys.exit(f"error: the kernels cannot be compiled: {reason}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with library.compiled_together():
        for dtype, (K, R, time) in itertools.product(TYPES, SIZES):
            if device.type == "cpu" and (dtype == torch.float16 or K > 3 or R > 3):
                continue
            x = torch.zeros(time, 2, 3 * R, device=device, dtype=dtype)
            for weight in (x.new_zeros(3, K), x.new_zeros(time, 2, 3, K)):
                options = (K - 1, True, 0.0, None)
                operator = torch.ops.lightconv.light_conv if weight.ndim == 2 else torch.ops.lightconv.dynamic_conv
                operator(x, weight, *options)
                for need in ((True, True), (True, False), (False, True)):
                    torch.ops.lightconv.conv_backward(x, x, weight, *options, *need, False, None, None)


if __name__ == "__main__":
    main(sys.argv[1:])
