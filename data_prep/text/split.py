"""Split a corpus into train, valid and test so that the splits stay put when the corpus grows."""

import hashlib


def split_of(line: str, *, valid_percent: int, test_percent: int) -> str:
    """The split to which a line belongs, from nothing but the MD5 of its lower-cased text."""
    number = int(hashlib.md5(line.lower().encode("utf-8"), usedforsecurity=False).hexdigest(), 16) % 100
    if number < valid_percent:
        return "valid"
    return "test" if number < valid_percent + test_percent else "train"
