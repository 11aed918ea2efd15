"""The library's convolutions on the native backend, without a fallback to the reference implementation."""

from functools import partial

from lightconv_plugin import ops

light_conv = partial(ops.light_conv, backend="native")
dynamic_conv = partial(ops.dynamic_conv, backend="native")
