"""The non-separable convolution of Table 3 ("CNN"): every output channel reads every input channel."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin.modules.window import IncrementalState, InputWindow, check_call, check_width
from lightconv_plugin.ops.checks import check_whole


class StandardConv(InputWindow):
    """A convolution of C to C channels without projections around it: C * C * K + C parameters.

    Args:
        channels: C.
        kernel_size: K, odd unless causal.
        causal: pad K - 1 on the left (decoder) instead of K // 2 on both sides.

    Raises:
        ValueError: a kernel size that is even and not causal, or below 1.
        TypeError: a size that is not a whole number.
    """

    def __init__(self, channels: int, kernel_size: int, *, causal: bool) -> None:
        check_whole("channels", channels)
        check_width(kernel_size, causal=causal)
        super().__init__(kernel_size, causal=causal)
        self.channels, self.kernel_size = channels, kernel_size
        self.padding = (kernel_size - 1, 0) if causal else (kernel_size // 2, kernel_size // 2)
        self.weight = nn.Parameter(torch.empty(channels, channels, kernel_size))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.xavier_uniform_(self.weight)

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, incremental_state: IncrementalState | None = None
    ) -> Tensor:
        """Convolve x (T, B, C) with padding mask (B, T). Return (T, B, C). With a state, x holds the newest positions.

        Raises:
            ValueError: x or the mask has a wrong shape or type; or in a step there is a mask, the state is of other
                inputs, or the module is not causal.
            TypeError: the incremental state is not a dict.
        """
        check_call(self, self.channels, x, padding_mask, incremental_state)
        if incremental_state is not None:
            self.check_step(padding_mask)

            def step(newest: Tensor) -> Tensor:
                window = self.push(newest, incremental_state)
                latest = self.weight[..., self.kernel_size - len(window) :]
                return F.conv1d(window.permute(1, 2, 0), latest, self.bias).permute(2, 0, 1)

            return self.each_position(step, x)
        if padding_mask is not None:
            x = x.masked_fill(padding_mask.t().unsqueeze(-1), 0)
        is_empty = x.shape[0] == 0
        padding = (self.padding[0], self.padding[1] + is_empty)  # conv1d takes no input shorter than its kernel
        out = F.conv1d(F.pad(x.permute(1, 2, 0), padding), self.weight, self.bias).permute(2, 0, 1)
        return out[:0] if is_empty else out

    if TYPE_CHECKING:

        def __call__(
            self, x: Tensor, padding_mask: Tensor | None = None, incremental_state: IncrementalState | None = None
        ) -> Tensor: ...
