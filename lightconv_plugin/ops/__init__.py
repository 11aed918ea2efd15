"""LightConv and DynamicConv as functions of tensors. The equations are in ``reference``.

The only third-party package that this package imports is torch.

The path of a call to its CPU kernel:

1. ``modules.conv`` predicts the kernels and calls ``api``, which checks the arguments once.
2. ``backend`` chooses native code or the reference implementation; ``sequences`` handles packed sentences and states.
3. ``autograd`` calls the operators that ``library`` has compiled and loaded, and defines their gradients.
4. ``native/csrc/cpu/conv.cpp`` splits the work into units (see ``units.inl``) and distributes them to torch's threads.
5. ``native/csrc/cpu/vectors.cpp`` computes a unit, and is compiled once for each vector width: ``weights.inl``
   normalises the convolution's kernels, and ``forward.inl`` and ``backward.inl`` convolve. ``heads.inl`` convolves for
   DynamicConv with narrow kernels and few channels per head.
"""

import os

from lightconv_plugin.ops import backend, library, reference
from lightconv_plugin.ops.api import dynamic_conv, light_conv
from lightconv_plugin.ops.backend import BACKENDS, CHOICES, FEW_ROWS, choose_backend, precision_of_products, takes
from lightconv_plugin.ops.fused.decode import (
    NEVER,
    Beams,
    BlockWeights,
    DecoderEnds,
    attend,
    attend_with_weights,
    beam_search,
    decoder_step,
    search_step,
    step_candidates,
)
from lightconv_plugin.ops.fused.linear import bf16_units, int8_units, linear, pack_weight, set_precision
from lightconv_plugin.ops.fused.train import attention, dropout, glu_mask, residual_norm, smoothed_nll
from lightconv_plugin.ops.normalization import NORMALIZATIONS, normalize_kernel
from lightconv_plugin.ops.state import conv_step, push, reorder_state

# Load the library at import: a FlopCounterMode only counts operators that were registered before it was made.
if os.environ.get(backend.VARIABLE) != "reference":
    library.load_if_compiled()

__all__ = [
    "BACKENDS",
    "CHOICES",
    "FEW_ROWS",
    "NEVER",
    "NORMALIZATIONS",
    "Beams",
    "BlockWeights",
    "DecoderEnds",
    "attend",
    "attend_with_weights",
    "attention",
    "beam_search",
    "bf16_units",
    "choose_backend",
    "conv_step",
    "decoder_step",
    "dropout",
    "dynamic_conv",
    "glu_mask",
    "int8_units",
    "light_conv",
    "linear",
    "normalize_kernel",
    "pack_weight",
    "precision_of_products",
    "push",
    "reference",
    "reorder_state",
    "residual_norm",
    "search_step",
    "set_precision",
    "smoothed_nll",
    "step_candidates",
    "takes",
]
