"""Fixtures that several tests of the operators share."""

import pytest
import torch

from lightconv_plugin import ops


@pytest.fixture(params=[128, 256, 512])
def vector_bits(request):
    """Kernels of one vector width, where this machine has it."""
    ops.native.library.load()
    widest = torch.ops.lightconv.cpu_vector_bits(0)
    if torch.ops.lightconv.cpu_vector_bits(request.param) != request.param:
        torch.ops.lightconv.cpu_vector_bits(widest)
        pytest.skip(f"this machine has vectors of {widest} bits")
    yield
    torch.ops.lightconv.cpu_vector_bits(widest)
