"""Every block of a page that a reader can paste is run, in a copy of the checkout and on tiny texts.

A block with the comment ``# needs the net`` or ``# needs a GPU`` is not run; tests/layout/test_readmes.py checks its
options and paths, as it checks those of all others.
"""

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from data_prep.common import CHECKOUT
from lightconv_plugin.ops import library
from tests.end_to_end import preloaded
from tests.layout.test_readmes import PAGES

pytestmark = pytest.mark.slow

NEEDS = ("# needs the net", "# needs a GPU")
SMALL = "--encoder-layers 1 --decoder-layers 1 --encoder-kernel-size-list [3] --decoder-kernel-size-list [3] --cpu"
# words of a block -> their replacement, where a block would take more than seconds or needs files of the demo
SHORTER = {
    "--arch pla_dynamicconv_iwslt_de_en": f"--arch pla_dynamicconv_iwslt_de_en {SMALL} --num-workers 0",
    "--max-update 50000": "--max-update 2",
    "--max-epoch 5": "--max-update 2",
    "--arch pla_dynamicconv_lm_small": "--arch pla_dynamicconv_lm_small --cpu --num-workers 0",
    "-cutoff 2000,6000": "-cutoff 4,8",
    "--max-update 1500": "--max-update 2",
    " --run\n": r"""
sed -i 's/max-update: .*/max-update: 3/; s/interval-updates: .*/interval-updates: 1/' configs/manuals/dynamicconv.yaml
printf 'average: {last: 1}\ntune: {last: [best, 1]}\n' >> configs/manuals/dynamicconv.yaml
python -m scripts.reproduce configs/manuals/dynamicconv.yaml --devices 1
""",
    "configs/manuals/lightconv.yaml\npython": "configs/manuals/lightconv.yaml --devices 1\npython",
    "work/debian_en_de/dynamicconv": "work/manuals/dynamicconv",
}
ENGLISH = ["one", "two", "three", "four", "five", "six", "morning"]
LANGUAGES = {
    "en": (ENGLISH, " "),
    "de": (["eins", "zwei", "drei", "vier", "fünf", "sechs", "morgen"], " "),
    "zh": (list("一二三四五六早"), ""),
}


class Block(NamedTuple):
    """A program on a page: a block for the shell, or all Python blocks of a section, which share variables."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    blocks_of_page: list[Block] = []
    goes_on = False  # the last block is Python code of this section
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^## |^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S):
        language, code = match.groups()
        if code is None:
            goes_on = False
        elif language == "python" and goes_on:
            blocks_of_page[-1] = blocks_of_page[-1]._replace(text=blocks_of_page[-1].text + code)
        else:
            blocks_of_page.append(Block(page, text.count("\n", 0, match.start()) + 1, language, code))
            goes_on = language == "python"
    return blocks_of_page


BLOCKS = [block for page in PAGES for block in blocks(page)]


def pasted(block: Block) -> bool:
    return block.language in ("sh", "python") and not any(need in block.text for need in NEEDS)


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with preloaded.programs(tmp_path_factory.mktemp("programs") / "bin") as folder:
        yield folder


@pytest.fixture(scope="module")
def run(bin_folder: Path) -> Callable[[Path, list[str]], subprocess.CompletedProcess[str]]:
    """Run a program in a folder as its reader would, without a GPU."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "LIGHTCONV_CACHE": str(library.cache_folder()),
    }
    return lambda folder, words: subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory, run: Any) -> dict[Path, Path]:
    """A copy of the checkout for each page, with the text files that the pages mention."""
    root = tmp_path_factory.mktemp("pages")
    first = root / "first"
    first.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "RESULTS*")
    for name in ("lightconv_plugin", "configs", "scripts", "data_prep"):
        shutil.copytree(CHECKOUT / name, first / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, first)
    draw = random.Random(1)
    for folder in ("text", "other"):
        (first / folder).mkdir()
        for part, count in (("train", 60), ("valid", 9), ("test", 9)):
            write(first / folder / part, [draw.choices(ENGLISH, k=draw.randint(3, 8)) for _ in range(count)])
    write(first / "my", [[*draw.choices(ENGLISH, k=draw.randint(4, 8)), str(number)] for number in range(600)])
    copies = {page: root / str(number) for number, page in enumerate(PAGES)}
    for copy in copies.values():
        shutil.copytree(first, copy)
        (copy / "configs" / "RESULTS").symlink_to(CHECKOUT / "configs" / "RESULTS")
    binarise = "fairseq-preprocess -s de -t en --trainpref text/train --validpref text/valid --destdir data-bin/de-en"
    run(copies[CHECKOUT / "README.md"], binarise.split()).check_returncode()
    return copies


def write(path: Path, lines: list[list[str]]) -> None:
    """Write sentences in English, and in German and Chinese word for word."""
    for language, (words, space) in LANGUAGES.items():
        meaning = dict(zip(ENGLISH, words, strict=True))
        text = "".join(space.join(meaning.get(word, word) for word in line) + "\n" for line in lines)
        path.with_name(f"{path.name}.{language}").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if pasted(block)],
    ids=lambda block: f"{block.page.relative_to(CHECKOUT)}:{block.line}",
)
def test_a_block_runs(block: Block, checkouts: dict[Path, Path], run: Any) -> None:
    if block.language == "python":
        words = [sys.executable, "-c", block.text]
    else:
        text = block.text
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        words = ["bash", "-euo", "pipefail", "-c", text]
    process = run(checkouts[block.page], words)
    assert process.returncode == 0, f"{words[-1]}\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}"


def test_every_word_that_is_replaced_is_in_a_block() -> None:
    assert [words for words in SHORTER if not any(words in block.text for block in BLOCKS)] == []
