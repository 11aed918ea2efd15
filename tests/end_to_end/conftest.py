"""A tiny corpus for fairseq's own commands."""

from tests.compat.conftest import corpus as corpus
