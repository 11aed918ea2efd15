"""LightweightConv and DynamicConv as modules: parameters, padding, and the state of incremental decoding."""

from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.modules.dropout import Dropout
from lightconv_plugin.modules.linear import apply_linear
from lightconv_plugin.modules.window import IncrementalState, StepByStep, check_heads, check_state, check_width
from lightconv_plugin.ops.api import Activation, check_epilogue
from lightconv_plugin.ops.backend import CHOICES, Backend
from lightconv_plugin.ops.checks import check_choice, check_probability, check_whole, describe
from lightconv_plugin.ops.normalization import Normalization, check_normalization

DropconnectPer = Literal["position", "kernel"]
DROPCONNECT_PER: tuple[str, ...] = get_args(DropconnectPer)


class TimeConv(StepByStep):
    """Base class of both convolutions: checks, options, and the state of a decoder.

    ``LightweightConv`` describes the arguments.
    """

    query_dim: int | None = None  # of DynamicConv

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        *,
        heads: int,
        causal: bool,
        dropconnect: float = 0.0,
        dropconnect_per: DropconnectPer = "position",
        normalization: Normalization = "softmax",
        batch_first: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(causal=causal)
        check_width(kernel_size, causal=causal)
        check_heads(channels, heads)
        check_probability("dropconnect", dropconnect)
        check_choice("dropconnect_per", dropconnect_per, DROPCONNECT_PER)
        check_normalization(normalization)
        check_choice("backend", backend, CHOICES)
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
        """Return the kernels' logits: LightConv's (H, K), or DynamicConv's (T, B, H, K) from a query (T, B, Q)."""
        raise NotImplementedError

    def kernels(self, query: Tensor) -> Tensor:
        """Return the normalised kernels that are predicted from a query, without DropConnect.

        Args:
            query: (T, B, Q) or (B, T, Q), where Q is ``query_dim``, by default C.

        Returns:
            (T, B, H, K), or (B, T, H, K): in the query's layout.

        Raises:
            ValueError: a query of another width.
        """
        return ops.normalize_kernel(self.predict(query), self.normalization)

    def check_query(self, x: Tensor, query: Tensor) -> None:
        """Check a query that is passed in addition to x.

        Raises:
            ValueError: it does not fit x or the module.
        """
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        incremental_state: IncrementalState | None = None,
        query: Tensor | None = None,
        *,
        batch_first: bool | None = None,
        cu_seqlens: Tensor | None = None,
        initial_state: Tensor | None = None,
        return_state: bool = False,
        bias: Tensor | None = None,
        activation: Activation | None = None,
        residual: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Convolve x over time.

        Args:
            x: (T, B, C), zero at padding. With an incremental state, x holds the newest positions only.
            incremental_state: a decoder's state, an empty dict before the first step. This module stores the inputs
                that later steps need in it.
            query: (T, B, query_dim), in the layout of x, from which DynamicConv predicts its kernels; by default x.
            batch_first: the layout of x, query, residual, states and the result; by default the constructor's.
            cu_seqlens, initial_state, return_state: for whole sequences, as for ``ops.light_conv``.
            bias, activation, residual: as for ``ops.light_conv``.

        Returns:
            (T, B, C), in the layout of x; with ``return_state`` also the last K - 1 inputs.

        Raises:
            ValueError: x with a wrong number of channels, a query that does not fit, arguments for whole sequences
                together with an incremental state, or an argument that ``ops.light_conv`` or ``ops.conv_step`` rejects.
            TypeError: an incremental state that is not a dict.
        """
        if not isinstance(x, Tensor) or x.ndim == 0 or x.shape[-1] != self.channels:
            raise ValueError(f"{type(self).__name__} was made for {self.channels} channels; got x {describe(x)}")
        check_state(self, incremental_state)
        if query is not None:
            self.check_query(x, query)
        weight = self.predict(x if query is None else query)
        batch_first = self.batch_first if batch_first is None else batch_first
        normalization, dropconnect = self.normalization, self.weight_dropout.probability
        if dropconnect > 0.0:
            per_kernel = self.dropconnect_per == "kernel" and weight.ndim == 2
            # these masks are drawn here, once for all backends, which then get the remaining weights
            if per_kernel or incremental_state is not None:
                weight = ops.normalize_kernel(weight, normalization)
                weight = weight if per_kernel else weight.expand(*x.shape[:2], self.heads, self.kernel_size)
                weight, normalization, dropconnect = F.dropout(weight, dropconnect), "none", 0.0
        if incremental_state is not None:
            if cu_seqlens is not None or initial_state is not None or return_state:
                raise ValueError(
                    f"{type(self).__name__}: cu_seqlens, initial_state and return_state are for whole sequences; an "
                    "incremental state keeps a decoder's inputs by itself: leave them out"
                )
            plain = bias is activation is residual is None
            if not plain:
                check_epilogue(type(self).__name__, x, bias, activation, residual)
            out = self._step(x, weight, incremental_state, normalization, batch_first=batch_first)
            return out if plain else ops.reference.epilogue(out, bias, activation, residual)
        operator = ops.light_conv if weight.ndim == 2 else ops.dynamic_conv
        return operator(
            x,
            weight,
            padding_l=self.padding_l,
            normalization=normalization,
            dropconnect=dropconnect,
            batch_first=batch_first,
            cu_seqlens=cu_seqlens,
            initial_state=initial_state,
            return_state=return_state,
            bias=bias,
            activation=activation,
            residual=residual,
            backend=self.backend,
        )

    if TYPE_CHECKING:

        @overload
        def __call__(
            self,
            x: Tensor,
            incremental_state: IncrementalState | None = None,
            query: Tensor | None = None,
            *,
            batch_first: bool | None = None,
            cu_seqlens: Tensor | None = None,
            initial_state: Tensor | None = None,
            return_state: Literal[False] = False,
            bias: Tensor | None = None,
            activation: Activation | None = None,
            residual: Tensor | None = None,
        ) -> Tensor: ...
        @overload
        def __call__(
            self,
            x: Tensor,
            incremental_state: IncrementalState | None = None,
            query: Tensor | None = None,
            *,
            batch_first: bool | None = None,
            cu_seqlens: Tensor | None = None,
            initial_state: Tensor | None = None,
            return_state: Literal[True],
            bias: Tensor | None = None,
            activation: Activation | None = None,
            residual: Tensor | None = None,
        ) -> tuple[Tensor, Tensor]: ...
        @overload
        def __call__(
            self,
            x: Tensor,
            incremental_state: IncrementalState | None = None,
            query: Tensor | None = None,
            *,
            batch_first: bool | None = None,
            cu_seqlens: Tensor | None = None,
            initial_state: Tensor | None = None,
            return_state: bool,
            bias: Tensor | None = None,
            activation: Activation | None = None,
            residual: Tensor | None = None,
        ) -> Tensor | tuple[Tensor, Tensor]: ...
        def __call__(self, *arguments: Any, **options: Any) -> Any: ...

    def _step(
        self,
        x: Tensor,
        weight: Tensor,
        incremental_state: IncrementalState,
        normalization: Normalization,
        *,
        batch_first: bool,
    ) -> Tensor:
        """Convolve the newest positions, with the earlier inputs from the incremental state."""
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
    """LightConv (section 3): one kernel per head, the same at every position; H * K parameters.

    Args:
        channels: C.
        kernel_size: K.
        heads: H, a divisor of C; the C / H channels of a head share a kernel.
        causal: see K - 1 positions to the left and none to the right (decoders); otherwise K // 2 to both sides.
        dropconnect: probability with which a normalised weight is dropped, in training and with fairseq's
            ``--retain-dropout``.
        dropconnect_per: "position" draws a mask for each position, as the code behind the published results does.
            "kernel" draws one mask per kernel for all positions and sentences, as in the paper's text. DynamicConv has
            one kernel per position, so both are the same for it.
        normalization: normalisation of the kernels over K, a name in ``ops.NORMALIZATIONS``.
        batch_first: x, the query and results are (B, T, ...), and states of whole sequences (B, K - 1, C), as in
            ``nn.LSTM``. A call can override this. Incremental states do not depend on it.
        backend: "auto", or the name of the backend that must run.

    Raises:
        ValueError: heads that do not divide the channels, an even kernel that is not causal, a kernel size below 1,
            a dropconnect outside [0, 1), or an unknown dropconnect_per, normalisation or backend.
        TypeError: a size that is not a whole number, or a dropconnect that is not a number.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        *,
        heads: int,
        causal: bool,
        dropconnect: float = 0.0,
        dropconnect_per: DropconnectPer = "position",
        normalization: Normalization = "softmax",
        batch_first: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            channels,
            kernel_size,
            heads=heads,
            causal=causal,
            dropconnect=dropconnect,
            dropconnect_per=dropconnect_per,
            normalization=normalization,
            batch_first=batch_first,
            backend=backend,
        )
        self.weight = nn.Parameter(torch.empty(heads, kernel_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights as in the published models: Glorot-uniform for H filters of one input channel, (H, 1, K)."""
        nn.init.xavier_uniform_(self.weight.detach().unsqueeze(1))

    def predict(self, query: Tensor | None = None) -> Tensor:
        """Return the kernels' logits (H, K). They do not depend on a query."""
        return self.weight

    def kernels(self, query: Tensor | None = None) -> Tensor:
        """Return the normalised kernels (H, K), without DropConnect. They do not depend on a query."""
        return ops.normalize_kernel(self.weight, self.normalization)

    def check_query(self, x: Tensor, query: Tensor) -> None:
        raise ValueError("LightweightConv has the same kernels at every position: leave out query, or take DynamicConv")


class DynamicConv(TimeConv):
    """DynamicConv (section 4): kernels are predicted at each position; C * H * K parameters, no bias.

    The parameters are those of the linear layer that predicts the kernels, or of ``predictor``.

    Args:
        channels, kernel_size, heads, causal, dropconnect, dropconnect_per, normalization, batch_first, backend: as for
            ``LightweightConv``.
        query_dim: Q, the width of the query, from which the kernels are predicted; None if the query is x.
        query_heads: the query and the heads are split into this many groups. The kernels of a group of heads are
            predicted from the Q / query_heads values of the same group of the query. 1: each head sees the whole query.
        predictor: a module that predicts the kernels' logits in place of the linear layer, (..., H * K) from a query
            (..., Q). It must treat positions independently, since a step of decoding passes the newest ones only.

    Raises:
        ValueError: as for ``LightweightConv``; query_heads that do not divide the heads and the query, or that are
            given together with a predictor, which sees the whole query.
        TypeError: as for ``LightweightConv``, or a predictor that is not a module.
    """

    weight_linear: nn.Linear

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        *,
        heads: int,
        causal: bool,
        dropconnect: float = 0.0,
        dropconnect_per: DropconnectPer = "position",
        normalization: Normalization = "softmax",
        batch_first: bool = False,
        backend: Backend = "auto",
        query_dim: int | None = None,
        query_heads: int = 1,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__(
            channels,
            kernel_size,
            heads=heads,
            causal=causal,
            dropconnect=dropconnect,
            dropconnect_per=dropconnect_per,
            normalization=normalization,
            batch_first=batch_first,
            backend=backend,
        )
        width = channels if query_dim is None else query_dim
        check_whole("query_dim", width)
        check_whole("query_heads", query_heads)
        if not 0 < query_heads <= width or heads % query_heads or width % query_heads:
            raise ValueError(
                f"{query_heads} query heads do not divide {heads} heads and a query of {width}; "
                "choose a divisor of both"
            )
        if predictor is not None:
            if not isinstance(predictor, nn.Module):
                raise TypeError(
                    f"DynamicConv: predictor is expected as a torch.nn.Module that gives (..., {heads * kernel_size}) "
                    f"from a query (..., {width}); got {describe(predictor)}"
                )
            if query_heads != 1:
                raise ValueError(
                    f"DynamicConv: query_heads={query_heads} divides the built-in linear layer, and a predictor was "
                    "given, which sees the whole query: leave out query_heads"
                )
        self.query_dim, self.query_heads = query_dim, query_heads
        self.predictor = predictor
        if predictor is None:  # nn.Linear's own initialisation, as in the published models
            self.weight_linear = nn.Linear(width // query_heads, heads * kernel_size, bias=False)

    def predict(self, query: Tensor) -> Tensor:
        """Return the kernels' logits (T, B, H, K) from a query (T, B, Q), in the query's layout.

        Raises:
            ValueError: a query of another width, or a predictor whose result is not (T, B, H * K).
        """
        width = self.channels if self.query_dim is None else self.query_dim
        if not isinstance(query, Tensor) or query.ndim == 0 or query.shape[-1] != width:
            raise ValueError(
                f"DynamicConv predicts its kernels from a query of width {width}, which is given as query=... if it is "
                f"not x; got {describe(query)}"
            )
        positions = query.shape[:-1]
        if self.predictor is not None:
            logits = self.predictor(query)
            shape = (*positions, self.heads * self.kernel_size)
            if not isinstance(logits, Tensor) or logits.shape != shape:
                raise ValueError(
                    f"DynamicConv: predictor is expected to give H * K = {self.heads} * {self.kernel_size} numbers a "
                    f"position, {shape} from a query {tuple(query.shape)}; got {describe(logits)}. Let it end in "
                    f"torch.nn.Linear(..., {self.heads * self.kernel_size})"
                )
            return logits.unflatten(-1, (self.heads, self.kernel_size))
        if self.query_heads == 1:
            return apply_linear(self.weight_linear, query).view(*positions, self.heads, self.kernel_size)
        groups = query.view(*positions, self.query_heads, width // self.query_heads)
        # Apply the whole layer to every group, and take the logits of the group's heads. Slices of the weight would be
        # cheaper, but would bypass a layer that a tool has put in its place, such as an adapter.
        logits_of_group = self.heads // self.query_heads * self.kernel_size
        logits = self.weight_linear(groups).view(*positions, self.query_heads, self.query_heads, logits_of_group)
        return logits.diagonal(dim1=-3, dim2=-2).movedim(-1, -2).reshape(*positions, self.heads, self.kernel_size)

    def check_query(self, x: Tensor, query: Tensor) -> None:
        if not isinstance(query, Tensor) or query.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"DynamicConv: query is expected as {(*x.shape[:-1], self.query_dim or self.channels)}, in the layout "
                f"of x; got {describe(query)}"
            )
