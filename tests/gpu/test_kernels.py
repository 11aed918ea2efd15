"""Small calls of every CUDA kernel on the device, which compute-sanitizer runs (scripts/first_gpu.sh).

The cases are those of the emulation (tests/ops/cuda_cases.py), which compares results between orders of threads. Here
two calls must give the same bits, without NaN.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv_plugin.ops import library
from tests.ops import cuda_cases
from tests.ops.cuda_on_cpu import Machine


class Device(Machine):
    """A GPU with the interface of the emulated one; an operand ends where its memory ends."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.alignment = device, 16
        self.capability = 10 * (numbers := torch.cuda.get_device_capability(device))[0] + numbers[1]

    def place(self, tensor: Tensor) -> Tensor:
        unaligned = 0 if self.alignment >= 16 else max(1, self.alignment // tensor.element_size())
        storage = torch.empty(unaligned + tensor.numel(), dtype=tensor.dtype, device=self.device)
        return storage[unaligned:].view(tensor.shape).copy_(tensor)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator: Callable[..., Any] = getattr(torch.ops.lightconv, name)
        return operator


# a GPU cannot run the cases of another architecture
CASES = [name for name in cuda_cases.CASES if "sm75" not in name]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="tests/ops/test_cuda_checked.py runs these cases on a CPU")
@pytest.mark.parametrize("case", CASES)
def test_a_kernel(case, device):
    assert library.load() is None
    assert library.cuda_unusable() is None
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        results.append(cuda_cases.CASES[case](Device(device)))
    for first, second in zip(*results, strict=True):
        assert not first.isnan().any()
        assert torch.equal(first, second)
