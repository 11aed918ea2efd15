"""The only table of numerical tolerances: (rtol, atol) by the type that the tested code computes in."""

import torch
from torch import Tensor

TOLERANCES = {
    torch.float64: (1e-10, 1e-10),
    torch.float32: (1e-5, 1e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


def assert_close(got: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> None:
    """Compare in float64 with the tolerance of ``got``'s type, or of ``dtype`` where a result was cast on the way."""
    rtol, atol = TOLERANCES[dtype or got.dtype]
    torch.testing.assert_close(got.double(), expected.double(), rtol=rtol, atol=atol)
