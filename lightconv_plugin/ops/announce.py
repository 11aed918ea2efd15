"""The log of which backend runs which operator: each choice is said once a process."""

import logging

logger = logging.getLogger(__name__)

PASSED_OVER = "lightconv_plugin: the native backend is passed over"  # scripts look for these words
# scripts.bench's sizes on two cores of a virtual machine; two small models of 3,000 and 10,000 types
COST = "so convolutions take 3 to 12 times as long and a training update 1.5 to 2 times (measured on two CPU cores)"

_announced: set[tuple[str, str]] = set()
_refusals: set[str] = set()


def announce(operator: str, name: str, refused: str | None = None) -> None:
    """Log which backend runs an operator; with ``refused``, warn why the library does not."""
    if (operator, name) in _announced:
        return
    _announced.add((operator, name))
    logger.info("lightconv_plugin: %s runs on the %s backend", operator, name)
    if refused is not None and refused not in _refusals:
        _refusals.add(refused)
        logger.warning("%s, %s: %s", PASSED_OVER, COST, refused)
