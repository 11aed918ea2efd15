"""Preparation on a disk that is full says so, and with more room ends with the same bytes."""

import re
import sys
from pathlib import Path

import pytest

from scripts.common import ownership
from tests.data_prep.samples import ROOT
from tests.end_to_end.small_disk import small_disk

pytestmark = pytest.mark.usefixtures("forks")

DATASET = """\
kind: text
source: en
target: de
steps: [{split_by_hash: {by: en, valid_percent: 5, test_percent: 5}}, {save_raw: {}}, {bpe: {merges: 30}}]
"""
LINES = 3000


def contents(out: Path) -> dict[str, bytes]:
    """All that was made, but for logs and what has times in it."""
    left_out = re.compile(r".*(timings\.json|preprocess\.log|stamp\.json)|(.*/)?\..*|report\.md")
    named = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in named.items() if not left_out.fullmatch(name)}


@pytest.mark.slow
def test_preparation_recovers_from_a_full_disk(tmp_path):
    for language in ("en", "de"):
        text = "".join(f"{language} line {n} of {n * n % 97} and {n % 13}\n" for n in range(LINES))
        (tmp_path / f"my.{language}").write_text(text)
    (tmp_path / "own.yaml").write_text(DATASET)
    sides = ["--src", str(tmp_path / "my.en"), "--tgt", str(tmp_path / "my.de"), "--workers", "1"]
    command = [sys.executable, "-m", "data_prep", str(tmp_path / "own.yaml"), *sides, "--out"]
    paths = {"PYTHONPATH": str(ROOT)}
    with small_disk(tmp_path / "whole") as disk:
        done = disk.run([*command, str(disk.path / "out")], 64 << 20, **paths)
        assert done.returncode == 0, done.stdout + done.stderr
        expected = contents(disk.path / "out")
    full = 0
    with small_disk(tmp_path / "small") as disk:
        out = disk.path / "out"
        for room in (8 << 10, 100 << 10, 200 << 10, 200 << 10, 300 << 10):
            done = disk.run([*command, str(out)], room, **paths)
            if done.returncode == 0:
                break
            full += 1
            assert "Traceback" not in done.stderr, done.stderr
            assert re.search("No space left on device|File too large|has room for|is full", done.stderr), done.stderr
            assert str(disk.path) in done.stderr
        done = disk.run([*command, str(out)], 64 << 20, **paths)
        assert done.returncode == 0, done.stdout + done.stderr
        assert full >= (3 if disk.mounted else 1)
        assert contents(out) == expected
        assert [path for path in disk.path.rglob("*") if ownership.scratch_for(path) is not None] == []
