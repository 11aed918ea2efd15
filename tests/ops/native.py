"""The library's convolutions, for which no definition stands in."""

from functools import partial

from lightconv_plugin import ops

light_conv = partial(ops.light_conv, backend="native")
dynamic_conv = partial(ops.dynamic_conv, backend="native")
