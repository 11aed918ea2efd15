"""Ranges of the values of fairseq's flags for generation.

fairseq's parsers accept any number. With most values out of range, a search fails halfway or finds empty hypotheses.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Limit(NamedTuple):
    """A test of a flag's value, which may depend on the other flags, and a description of the values that pass."""

    allows: Callable[[float, Any], bool]
    expected: str


FROM_0 = Limit(lambda value, _: value >= 0, "a number from 0 on")
FROM_1 = Limit(lambda value, _: value >= 1, "a whole number from 1 on")
FROM_1_OR_OFF = Limit(lambda value, _: value == -1 or value >= 1, "a whole number from 1 on, or -1 for none")
ABOVE_0 = Limit(lambda value, _: 0 < value < math.inf, "a number above 0")
SHARE = Limit(lambda value, _: 0 <= value <= 1, "a number from 0 to 1")
SHARE_OR_OFF = Limit(lambda value, _: value == -1 or 0 < value <= 1, "a number above 0 and up to 1, or -1 for none")

LIMITS = {
    "beam": FROM_1,
    "nbest": FROM_1,
    "max_len_a": FROM_0,
    "max_len_b": Limit(lambda value, flags: value >= _least_length(flags), "at least --min-len, or 0 with --max-len-a"),
    "min_len": FROM_0,
    "no_repeat_ngram_size": FROM_0,
    "prefix_size": FROM_0,
    "temperature": ABOVE_0,
    "stepwise_length_penalty": FROM_0,
    "sampling_topk": FROM_1_OR_OFF,
    "sampling_topp": SHARE_OR_OFF,
    "diverse_beam_groups": Limit(
        lambda value, flags: _divides_beam(value, flags), "a divisor of --beam, or -1 for none"
    ),
    "max_tokens": FROM_1,
    "batch_size": FROM_1,
    "num_workers": FROM_0,
    "required_batch_size_multiple": FROM_1,
    "required_seq_len_multiple": FROM_1,
    "context_window": FROM_0,
    "softmax_batch": FROM_1,
}
"""Limits by the names of the parsed flags. A flag that is None is not tested."""


def _least_length(flags: Any) -> float:
    return 0.0 if getattr(flags, "max_len_a", 0) else float(getattr(flags, "min_len", 1))


def _divides_beam(groups: float, flags: Any) -> bool:
    return groups == -1 or (groups >= 1 and getattr(flags, "beam", 5) % groups == 0)


def refused(flags: Any, limits: Mapping[str, Limit] = LIMITS) -> tuple[str, str] | None:
    """Return the first flag whose value is out of range, and a description of the expected values; otherwise None.

    Args:
        flags: the flags as attributes; absent flags have fairseq's defaults.
    """
    for name, limit in limits.items():
        value = getattr(flags, name, None)
        try:
            allowed = value is None or limit.allows(float(value), flags)  # fairseq's parsers leave some values as text
        except ValueError:
            allowed = False
        if not allowed:
            return name, f"expected {limit.expected}"
    return None
