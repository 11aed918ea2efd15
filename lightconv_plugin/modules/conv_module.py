"""The LightConv and DynamicConv modules of Figure 2: project, gate, convolve, project."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.modules.conv import TimeConv
from lightconv_plugin.modules.dropout import Dropout
from lightconv_plugin.modules.linear import apply_linear, linear
from lightconv_plugin.modules.window import IncrementalState, check_call
from lightconv_plugin.ops.checks import check_whole


class ConvModule(nn.Module):
    """Linear(C_in -> 2C), GLU, convolution, Linear(C -> C_in); without GLU the first linear layer is C_in -> C.

    It replaces self-attention in a block (section 5.1).

    Args:
        embed_dim: C_in, the width of the block.
        conv: the convolution, of C channels. If it has a ``query_dim``, its kernels are predicted from a separate
            projection C_in -> query_dim of the input (a variant from a review of the paper).
        glu: gate the projected input.
        input_dropout: probability of dropout for the module's input.

    Raises:
        ValueError: an input_dropout outside [0, 1].
        TypeError: an embed_dim that is not a whole number, or an input_dropout that is not a number.
    """

    def __init__(self, embed_dim: int, conv: TimeConv, *, glu: bool, input_dropout: float = 0.0) -> None:
        super().__init__()
        check_whole("embed_dim", embed_dim)
        self.embed_dim, self.glu = embed_dim, glu
        self.input_dropout = Dropout(input_dropout, self)
        self.in_proj = linear(embed_dim, conv.channels * (2 if glu else 1))
        self.query_proj = linear(embed_dim, conv.query_dim) if conv.query_dim is not None else None
        self.conv = conv
        self.out_proj = linear(conv.channels, embed_dim)

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, incremental_state: IncrementalState | None = None
    ) -> Tensor:
        """Mix x (T, B, C_in) with padding mask (B, T). Return (T, B, C_in). With a state, x holds the newest positions.

        Padding is set to zero before the convolution.

        Raises:
            ValueError: x or the mask has a wrong shape or type, or in a step the convolution is not causal.
            TypeError: the incremental state is not a dict.
        """
        check_call(self, self.embed_dim, x, padding_mask, incremental_state)
        x = self.input_dropout(x)
        query = None if self.query_proj is None else apply_linear(self.query_proj, x)
        x = apply_linear(self.in_proj, x)
        if self.glu:
            x = ops.glu_mask(x, padding_mask)
        elif padding_mask is not None:
            x = x.masked_fill(padding_mask.t().unsqueeze(-1), 0)
        mixed = self.conv(x, incremental_state=incremental_state, query=query, batch_first=False)
        return apply_linear(self.out_proj, mixed)

    if TYPE_CHECKING:

        def __call__(
            self, x: Tensor, padding_mask: Tensor | None = None, incremental_state: IncrementalState | None = None
        ) -> Tensor: ...
