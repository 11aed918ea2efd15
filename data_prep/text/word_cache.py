"""Steps that treat each word of a line by itself: what becomes of a word is worked out once and remembered."""

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_WORDS = 250_000  # some 40 MB of BPE units
_LONGEST = 60  # characters of a word worth remembering


class WordCache(dict[str, Result]):
    """``function`` of words, remembered for as many as ``words``; then all are forgotten, so memory is bounded."""

    def __init__(self, function: Callable[[str], Result], *, words: int = _WORDS) -> None:
        super().__init__()
        self._function, self._words = function, words

    def __missing__(self, word: str) -> Result:
        result = self._function(word)
        if len(word) <= _LONGEST:
            if len(self) >= self._words:
                self.clear()
            self[word] = result
        return result
