"""Cut lines that are longer than a model is to read."""

from collections.abc import Callable

from scripts.common.errors import UserError


def truncater(*, tokens: int) -> Callable[[str], str]:
    """The first ``tokens`` tokens of a tokenised line: 400 of a news article in the paper (section 6.4).

    Raises:
        UserError: not one would be left.
    """
    if tokens < 1:
        raise UserError(f"truncate: tokens: got {tokens}, expected a number above 0")

    def truncate(line: str) -> str:
        return " ".join(line.split(" ")[:tokens])

    return truncate
