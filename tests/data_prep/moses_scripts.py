"""Run Moses's Perl scripts, from the development package mosestokenizer, as they were from October 2018 on.

The package has copies of about 2015. The few changes that Moses made since are applied here; all other lines are
Moses's own.
"""

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from data_prep.text.moses import VERSIONS
from data_prep.text.punctuation import punctuation_normaliser
from data_prep.text.tokenise import tokeniser

_COMMA_AT_END = r"""$text =~ s/([\p{IsN}]),$/$1 ,/g;"""
_DOT_BEFORE_FINAL_APOSTROPHE = r"""$text =~ s/\.' ?$/ . ' /;"""
_LAST_DOT = r"""if ($i == $#words) { $word = "$pre ."; } elsif (($pre =~ /\./"""


def comparisons(language: str, moses: str) -> Iterator[tuple[list[str], Callable[[str], str]]]:
    """Yield pairs: a script with its options, and the step that must give the same lines."""
    yield ["normalize-punctuation.perl", "-l", language], punctuation_normaliser(language=language, moses=moses)
    for aggressive, escape in product((False, True), repeat=2):
        options = ["-q", "-l", language, *["-a"] * aggressive, *["-no-escape"] * (not escape)]
        step = tokeniser(language=language, moses=moses, aggressive=aggressive, escape=escape)
        yield ["tokenizer.perl", *options], step


class Scripts:
    """A folder with the scripts; each turns lines into lines."""

    def __init__(self, folder: Path, moses: str) -> None:
        assert moses in VERSIONS
        spec = importlib.util.find_spec("mosestokenizer")
        assert spec is not None, "mosestokenizer, of the dev extra, is not installed"
        assert spec.origin is not None
        package = Path(spec.origin).parent
        self._folder = folder
        shutil.copytree(package / "nonbreaking_prefixes", folder / "nonbreaking_prefixes")
        self._change_prefixes("en", without=["Inc"], add=["Rs"] if moses >= "2019-11" else [])
        self._change_prefixes("de", without=["a"], add=[])
        tokenizer = (package / "tokenizer-v1.1.perl").read_text(encoding="utf-8")
        changes = [
            ("    # turn `into '\n", f"    {_COMMA_AT_END}\n"),
            ("    # restore protected\n", f"    {_DOT_BEFORE_FINAL_APOSTROPHE}\n    # restore protected\n"),
        ]
        if moses >= "2018-11":
            changes.append((r"if (($pre =~ /\./", _LAST_DOT))
        for old, new in changes:
            assert old in tokenizer
            # the script has two tokenisers; the plain one, which is changed, comes first
            tokenizer = tokenizer.replace(old, new, 1)
        (folder / "tokenizer.perl").write_text(tokenizer, encoding="utf-8")
        normaliser = (package / "normalize-punctuation.perl").read_text(encoding="utf-8")
        if moses >= "2019-11":
            for quote in "‘‚":
                assert f's/{quote}/\\"/g' in normaliser
                normaliser = normaliser.replace(f's/{quote}/\\"/g', f"s/{quote}/\\'/g")
        (folder / "normalize-punctuation.perl").write_text(normaliser, encoding="utf-8")

    def _change_prefixes(self, language: str, *, without: list[str], add: list[str]) -> None:
        path = self._folder / "nonbreaking_prefixes" / f"nonbreaking_prefix.{language}"
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line not in without]
        path.write_text("\n".join(lines + add) + "\n", encoding="utf-8")

    def run(self, script: str, *options: str, lines: Sequence[str]) -> list[str]:
        return run_perl([str(self._folder / script), *options], lines)


def run_perl(arguments: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Run Perl with these lines as input; return the lines of its output."""
    text = "".join(f"{line}\n" for line in lines).encode()
    result = subprocess.run(["perl", *arguments], input=text, capture_output=True, check=True, timeout=120)
    *printed, end = result.stdout.decode().split("\n")
    assert end == ""
    assert len(printed) == len(lines)
    return printed
