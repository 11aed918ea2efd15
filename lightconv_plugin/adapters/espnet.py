"""ESPnet's LightConv and DynamicConv modules, with its names of parameters, so that its weights load.

Three things differ from the paper's: channel c of LightConv has the kernel of head c % H; DynamicConv's kernels are
normalised over the inputs within the (padded) sentence alone; dropout falls on logits. The kernels that ESPnet keeps
for plots (``attn``, ``attn_t``, ``attn_f``) are not kept.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lightconv_plugin import ops


class _Convolution(nn.Module, ABC):
    """The parts that all have: linear map, gate, convolution over time, mask, linear map.

    Args:
        wshare: H.
        n_feat: C.
        dropout_rate: of the kernels' logits.
        kernel_size: K.
        use_kernel_mask: hide the positions to the right; ``mask`` is not used then, as in ESPnet.
        use_bias: add a bias after the convolution.

    Raises:
        ValueError: heads that do not divide the channels, a width that is no whole number from 1 on, or an even one
            where ESPnet cannot take it.
    """

    outputs = 1  # of C numbers each, which the last map reads
    takes_even = False

    def __init__(
        self,
        wshare: int,
        n_feat: int,
        dropout_rate: float,
        kernel_size: int,
        use_kernel_mask: bool = False,
        use_bias: bool = False,
    ) -> None:
        super().__init__()
        if wshare < 1 or n_feat % wshare:
            raise ValueError(f"wshare={wshare} does not divide n_feat={n_feat}; choose a divisor")
        if not hasattr(kernel_size, "__index__") or kernel_size < 1:
            raise ValueError(f"kernel_size is {kernel_size!r}; a whole number from 1 on is expected")
        if kernel_size % 2 == 0 and not self.takes_even:
            raise ValueError(f"kernel_size={kernel_size} is even; {type(self).__name__} takes odd ones")
        self.wshare = wshare
        self.kernel_size = kernel_size
        self.use_kernel_mask = use_kernel_mask
        self.dropout = nn.Dropout(dropout_rate)
        self.linear1 = nn.Linear(n_feat, n_feat * 2)
        self.linear2 = nn.Linear(n_feat * self.outputs, n_feat)
        self.bias = nn.Parameter(torch.zeros(n_feat)) if use_bias else None

    def forward(self, query: Tensor, key: Tensor | None, value: Tensor | None, mask: Tensor | None) -> Tensor:
        """query: (B, T, C); mask: (B, 1, T), zero at padding, or None; gives (B, T, C). key and value are not used.

        Raises:
            ValueError: a mask of another shape, where it is used.
        """
        mask = None if self.use_kernel_mask else mask
        expected = (len(query), 1, query.shape[1])
        if mask is not None and mask.shape not in (expected, (1, *expected[1:])):
            raise ValueError(f"mask is expected as (B, 1, T) = {expected}; got {tuple(mask.shape)}")
        x = ops.glu_mask(self.linear1(query), None)
        out = self.over_time(x)
        if self.bias is not None:
            out = out + self.bias
        if (features := self.over_features(x)) is not None:
            out = torch.cat([out, features], dim=-1)
        if mask is not None:
            out = out.masked_fill(mask.transpose(-1, -2) == 0, 0)
        return self.linear2(out)

    @abstractmethod
    def over_time(self, x: Tensor) -> Tensor:
        """Convolve (B, T, C) over T."""

    def over_features(self, x: Tensor) -> Tensor | None:
        """Convolve (B, T, C) over C, in the modules that do."""
        return None


def _over_features(x: Tensor, weight: Tensor, width: int) -> Tensor:
    """Convolve (B, T, C) over C, kernels (1, K) or (B * T, K): a position is a channel, and a feature a position."""
    rows = x.flatten(0, 1).t().unsqueeze(1)
    out = ops.light_conv(rows, weight, padding_l=width // 2, normalization="none")
    return out.squeeze(1).t().view_as(x)


class LightweightConvolution(_Convolution):
    """LightConv; see ``_Convolution`` for the arguments."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.weight = nn.Parameter(torch.rand(self.wshare, 1, self.kernel_size))

    def over_time(self, x: Tensor) -> Tensor:
        half, logits = self.kernel_size // 2, self.dropout(self.weight).squeeze(1)
        logits = logits[:, : half + 1] if self.use_kernel_mask else logits
        each = logits.repeat(x.shape[-1] // self.wshare, 1)  # a kernel a channel: heads are interleaved
        return ops.light_conv(x, each, padding_l=half, batch_first=True)


class LightweightConvolution2D(LightweightConvolution):
    """LightConv over time, and beside it over features, with one kernel for all positions."""

    outputs = 2

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.weight_f = nn.Parameter(torch.rand(1, 1, self.kernel_size))

    def over_features(self, x: Tensor) -> Tensor:
        return _over_features(x, self.dropout(ops.normalize_kernel(self.weight_f)).squeeze(1), self.kernel_size)


class DynamicConvolution(_Convolution):
    """DynamicConv; see ``_Convolution`` for the arguments."""

    takes_even = True

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.linear_weight = nn.Linear(self.linear1.in_features, self.wshare * self.kernel_size)
        nn.init.xavier_uniform_(self.linear_weight.weight)

    def over_time(self, x: Tensor) -> Tensor:
        before, time = (self.kernel_size - 1) // 2, x.shape[1]
        logits = self.dropout(self.linear_weight(x)).unflatten(-1, (self.wshare, self.kernel_size))
        logits = logits[..., : before + 1] if self.use_kernel_mask else logits
        taps = torch.arange(logits.shape[-1], device=x.device) - before
        read = torch.arange(time, device=x.device).unsqueeze(1) + taps  # (T, K), the inputs by position and tap
        logits = logits.masked_fill(((read < 0) | (read >= time)).unsqueeze(1), float("-inf"))
        return ops.dynamic_conv(x, logits, padding_l=before, batch_first=True)


class DynamicConvolution2D(DynamicConvolution):
    """DynamicConv over time, and beside it over features, with a kernel a position that is not normalised."""

    outputs = 2
    takes_even = False

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.linear_weight_f = nn.Linear(self.linear1.in_features, self.kernel_size)
        nn.init.xavier_uniform_(self.linear_weight_f.weight)

    def over_features(self, x: Tensor) -> Tensor:
        return _over_features(x, self.linear_weight_f(x).flatten(0, 1), self.kernel_size)
