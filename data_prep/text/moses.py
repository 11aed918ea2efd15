"""The states of Moses's scripts that text is prepared with, and its names of languages."""

from scripts.common.errors import UserError

VERSIONS = ("2018-10", "2018-11", "2019-11")
"""Moses at the end of these months. They differ in three rules:

- 2018-10, the paper's: as it had been for years.
- 2018-11: the tokeniser always splits the final dot of a line from its word (commit 9fc964d).
- 2019-11: ``‘`` and ``‚`` normalise to ``'`` and no longer to ``"`` (f6d7add); English ``Rs.`` is an
  abbreviation (4da86c3).
"""


def check_version(moses: str) -> str:
    """The version, if there is one of that name.

    Raises:
        UserError: there is none.
    """
    if moses not in VERSIONS:
        raise UserError(f"moses: got {moses!r}, expected one of {', '.join(VERSIONS)} (quoted, in YAML)")
    return moses


def moses_language(language: str) -> str:
    """The language as Moses knows it: ``zh`` of ``zh_CN``."""
    return language.partition("_")[0]
