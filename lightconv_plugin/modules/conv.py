"""LightweightConv and DynamicConv as modules: parameters, padding, and the inputs that incremental decoding keeps."""

from typing import Any, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.modules.dropout import Dropout
from lightconv_plugin.modules.linear import apply_linear
from lightconv_plugin.modules.window import IncrementalState, StepByStep, check_heads, check_width

DROPCONNECT_PER = ("position", "kernel")


class TimeConvOptions(TypedDict, total=False):
    """Options of both convolutions, which ``TimeConv`` explains."""

    dropconnect: float
    dropconnect_per: str
    normalization: str
    batch_first: bool
    backend: str


class TimeConv(StepByStep):
    """The parts that both convolutions share: the kernel's geometry and the state of a decoder.

    Args:
        channels: C.
        kernel_size: K.
        heads: H, a divisor of C; the C / H channels of a head share a kernel.
        causal: decoders see K - 1 positions to the left and none to the right; otherwise K // 2 to both sides.
        dropconnect: probability with which a normalised weight is dropped in training, and where fairseq's
            ``--retain-dropout`` asks for it.
        dropconnect_per: "position" draws anew at each position, as the code behind the published results does;
            "kernel" draws once for all positions and sentences that a kernel serves, as the paper's text reads.
            DynamicConv has a kernel for each position, so for it both are the same.
        normalization: a name in ``ops.NORMALIZATIONS``.
        batch_first: x, the query and results are (B, T, ...), and states of whole sequences (B, K - 1, C), as in
            ``nn.LSTM``; a call's own ``batch_first`` goes before. An incremental state has one form for both.
        backend: "auto", or the one backend that may run.

    Raises:
        ValueError: heads that do not divide the channels, an even kernel that is not causal, a kernel without weights,
            a probability outside [0, 1], or an unknown dropconnect_per.
    """

    query_dim: int | None = None  # DynamicConv's

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        *,
        heads: int,
        causal: bool,
        dropconnect: float = 0.0,
        dropconnect_per: str = "position",
        normalization: str = "softmax",
        batch_first: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(causal=causal)
        check_width(kernel_size, causal=causal)
        check_heads(channels, heads)
        if dropconnect_per not in DROPCONNECT_PER:
            raise ValueError(f"dropconnect_per is {dropconnect_per!r}; expected one of: {', '.join(DROPCONNECT_PER)}")
        self.channels = channels
        self.kernel_size = kernel_size
        self.heads = heads
        self.padding_l = kernel_size - 1 if causal else kernel_size // 2
        self.weight_dropout = Dropout(dropconnect, self)
        self.dropconnect_per = dropconnect_per
        self.normalization = normalization
        self.batch_first = batch_first
        self.backend = backend

    def predict(self, query: Tensor) -> Tensor:
        """The kernels' logits: (H, K), or (T, B, H, K) from a query (T, B, Q), or however it lies."""
        raise NotImplementedError

    def kernels(self, query: Tensor) -> Tensor:
        """The kernels, normalised, of a query: x where the module has none of its own."""
        return ops.normalize_kernel(self.predict(query), self.normalization)

    def forward(
        self,
        x: Tensor,
        incremental_state: IncrementalState | None = None,
        query: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """x: (T, B, C), padding zeroed; gives (T, B, C). With a state, x are the newest positions.

        DynamicConv's kernels come from ``query``: (T, B, query_dim) where given, from x otherwise; it lies as x does.
        ``options``: batch_first, cu_seqlens, initial_state, return_state, bias, activation and residual, as
        ``ops.light_conv`` takes them; with an incremental state batch_first alone.

        Raises:
            ValueError: x of other channels.
        """
        if x.shape[-1] != self.channels:
            raise ValueError(f"{type(self).__name__} was made for {self.channels} channels; got x {tuple(x.shape)}")
        weight = self.predict(x if query is None else query)
        options.setdefault("batch_first", self.batch_first)
        normalization, dropconnect = self.normalization, self.weight_dropout.probability
        if dropconnect > 0.0:
            per_kernel = self.dropconnect_per == "kernel" and weight.ndim == 2
            if per_kernel or incremental_state is not None:  # what is left is a kernel, for any backend
                weight = ops.normalize_kernel(weight, normalization)
                weight = weight if per_kernel else weight.expand(*x.shape[:2], self.heads, self.kernel_size)
                weight, normalization, dropconnect = F.dropout(weight, dropconnect), "none", 0.0
        if incremental_state is not None:
            return self._step(x, weight, incremental_state, normalization, **options)
        operator = ops.light_conv if weight.ndim == 2 else ops.dynamic_conv
        return operator(
            x,
            weight,
            padding_l=self.padding_l,
            normalization=normalization,
            dropconnect=dropconnect,
            backend=self.backend,
            **options,
        )

    def _step(
        self, x: Tensor, weight: Tensor, incremental_state: IncrementalState, normalization: str, *, batch_first: bool
    ) -> Tensor:
        """Convolve the newest positions with those before them."""
        if batch_first:
            x, weight = x.transpose(0, 1), weight if weight.ndim == 2 else weight.transpose(0, 1)
        self.check_step()
        saved = self.get_incremental_state(incremental_state)
        out, saved = ops.conv_step(x, weight, saved, normalization=normalization, backend=self.backend)
        self.set_incremental_state(incremental_state, saved)
        return out.transpose(0, 1) if batch_first else out

    def extra_repr(self) -> str:
        return (
            f"channels={self.channels}, kernel_size={self.kernel_size}, heads={self.heads}, causal={self.causal}, "
            f"dropconnect={self.weight_dropout.p} per {self.dropconnect_per}, "
            f"normalization={self.normalization}, backend={self.backend}"
        )


class LightweightConv(TimeConv):
    """LightConv (section 3): one kernel a head, the same at every position; H * K parameters.

    Its arguments and errors are those of ``TimeConv``.
    """

    def __init__(
        self, channels: int, kernel_size: int, *, heads: int, causal: bool, **options: Unpack[TimeConvOptions]
    ) -> None:
        super().__init__(channels, kernel_size, heads=heads, causal=causal, **options)
        self.weight = nn.Parameter(torch.empty(heads, kernel_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # seen as H filters of one input channel each, (H, 1, K), as the published models were started
        nn.init.xavier_uniform_(self.weight.detach().unsqueeze(1))

    def predict(self, query: Tensor) -> Tensor:
        """The kernels' logits (H, K), whatever the query."""
        return self.weight


class DynamicConv(TimeConv):
    """DynamicConv (section 4): each position predicts its kernels; C * H * K parameters, no bias.

    Args:
        channels, kernel_size, heads, causal, ...: as for ``TimeConv``.
        query_dim: Q, the width of what the kernels are predicted from; None for x itself, C.
        query_heads: the query falls into this many groups of neighbours, and the heads likewise; a head's kernel is
            predicted from its group's Q / query_heads numbers. 1: every head sees the whole query.

    Raises:
        ValueError: as for ``TimeConv``, or query_heads that do not divide the heads and the query.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        *,
        heads: int,
        causal: bool,
        query_dim: int | None = None,
        query_heads: int = 1,
        **options: Unpack[TimeConvOptions],
    ) -> None:
        super().__init__(channels, kernel_size, heads=heads, causal=causal, **options)
        width = channels if query_dim is None else query_dim
        if not 0 < query_heads <= width or heads % query_heads or width % query_heads:
            raise ValueError(
                f"{query_heads} query heads do not divide {heads} heads and a query of {width}; "
                "choose a divisor of both"
            )
        self.query_dim, self.query_heads = query_dim, query_heads
        # nn.Linear's own start, as the published models were started
        self.weight_linear = nn.Linear(width // query_heads, heads * kernel_size, bias=False)

    def predict(self, query: Tensor) -> Tensor:
        """The kernels' logits (T, B, H, K) from a query (T, B, Q), or however it lies."""
        places = query.shape[:-1]
        if self.query_heads == 1:
            return apply_linear(self.weight_linear, query).view(*places, self.heads, self.kernel_size)
        groups = query.view(*places, self.query_heads, query.shape[-1] // self.query_heads)
        # every group through the whole map, of which its own heads are kept: the map may be an adapter's
        own = self.heads // self.query_heads * self.kernel_size
        every = self.weight_linear(groups).view(*places, self.query_heads, self.query_heads, own)
        return every.diagonal(dim1=-3, dim2=-2).movedim(-1, -2).reshape(*places, self.heads, self.kernel_size)
