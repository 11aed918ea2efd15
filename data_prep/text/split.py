"""Part a corpus into train, valid and test so that the parts stay put when the corpus grows."""

import hashlib
from collections import Counter
from collections.abc import Iterable

Pair = tuple[str, str]
SPLITS = ("train", "valid", "test")


def part_of(line: str, *, valid_percent: int, test_percent: int) -> str:
    """The part to which a line belongs, from nothing but the MD5 of its lower-cased text."""
    number = int(hashlib.md5(line.lower().encode("utf-8"), usedforsecurity=False).hexdigest(), 16) % 100
    if number < valid_percent:
        return "valid"
    return "test" if number < valid_percent + test_percent else "train"


def split(
    pairs: Iterable[Pair], *, side: int, valid_percent: int, test_percent: int, dropped: Counter[str]
) -> dict[str, list[Pair]]:
    """Part the pairs by the hash of side 0 or 1; order stays. No sentence, whatever its case, is in two parts.

    The hash sees to that for one side. Of the other side, where two sentences share a translation, the pair stays in
    test before valid before train; ``dropped`` counts those left out.
    """
    parts: dict[str, list[Pair]] = {name: [] for name in SPLITS}
    for pair in pairs:
        parts[part_of(pair[side], valid_percent=valid_percent, test_percent=test_percent)].append(pair)
    taken: set[str] = set()
    for name in ("test", "valid", "train"):
        kept = [pair for pair in parts[name] if pair[1 - side].lower() not in taken]
        if len(kept) < len(parts[name]):
            dropped[f"{name}: its translation is in another part"] += len(parts[name]) - len(kept)
        taken.update(pair[1 - side].lower() for pair in kept)
        parts[name] = kept
    return parts
