"""The pages: paths and commands exist, every option is in its command's --help, and no page is forgotten."""

import functools
import importlib.util
import io
import re
import shlex
import subprocess
from contextlib import redirect_stdout

import pytest

from data_prep.common import CHECKOUT

PAGES = [
    CHECKOUT / name
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "configs/README.md",
        "data_prep/README.md",
        "lightconv_plugin/README.md",
        "lightconv_plugin/SPEED.md",
        "scripts/README.md",
        "tests/README.md",
    )
]
SUBCOMMANDS = ("scripts.bench", "scripts.plot", "scripts.pretrained")
MADE = (
    *("work", ".venv", "raw", "prepared", "binarised", "seed", "report.md"),
    *("DATASET", "MODEL", "DIR", "OUT", "IN.", "OUT.", "VENV"),
)
"""Beginnings of paths that commands write, and placeholders: such paths are not in the checkout."""


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(CHECKOUT)))


def spans(text: str) -> list[str]:
    """Return the lines of code blocks, without comments, and the inline code."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.S | re.M)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [*lines, *inline]


def paths(text: str) -> list[str]:
    """Return the names of files and folders in the code of a page."""
    return [
        span
        for span in spans(text)
        if re.fullmatch(r"[\w.{},*/-]+", span) and ("/" in span or re.search(r"\.(py|sh|md|yaml|cff|toml)$", span))
    ]


def expanded(path: str) -> list[str]:
    """Expand the braces of a path such as ``a/{b,c}/d``."""
    braces = re.search(r"\{([^{}]*)\}", path)
    if braces is None:
        return [path]
    return [
        expanded_path
        for choice in braces[1].split(",")
        for expanded_path in expanded(path[: braces.start()] + choice + path[braces.end() :])
    ]


def commands(text: str) -> list[tuple[tuple[str, ...], list[str]]]:
    """Return the calls of this project's modules and scripts: the command, with its subcommand, and the options."""
    calls = []
    for span in spans(text):
        called = re.search(r"(?:python -m ((?:scripts|data_prep|lightconv_plugin)[\w.]*)|^(scripts/\w+\.sh))(.*)", span)
        if called:
            rest = shlex.split(called[3].replace("<", " ").replace("|", " "), comments=True)
            command, *subcommand = called[1] or called[2], *rest[:1]
            named = subcommand if command in SUBCOMMANDS else []
            calls.append(((command, *named), [word.partition("=")[0] for word in rest if word.startswith("--")]))
    return calls


@functools.cache
def help_of(command: str, *subcommand: str) -> str:
    if command.endswith(".sh"):
        return subprocess.run(["bash", command, "--help"], capture_output=True, text=True, cwd=CHECKOUT).stdout
    module = importlib.import_module(command)
    main = module if hasattr(module, "main") else importlib.import_module(f"{command}.__main__")
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit, match=r"^0$"):
        main.main([*subcommand, "--help"])
    return printed.getvalue()


@each_page
def test_every_path_exists(page):
    named = [
        name
        for path in paths(page.read_text())
        for name in expanded(path)
        if not name.startswith(MADE) and "NAME" not in name
    ]
    for path in named:
        # from the checkout, or anywhere in the page's folder
        exists = any(CHECKOUT.glob(path.rstrip("/")))
        assert exists or any(page.parent.rglob(path.rstrip("/"))), f"{page}: {path}"


@each_page
def test_every_command_has_the_options_given(page):
    for command, options in commands(page.read_text()):
        module = command[0]
        assert (CHECKOUT / module).is_file() if module.endswith(".sh") else importlib.util.find_spec(module), module
        # demo.sh passes options to reproduce
        help_texts = [help_of(*(word.split("|")[0] for word in command))] if options else []
        help_texts += [help_of("scripts.reproduce")] if options and module.endswith("demo.sh") else []
        for option in options:
            assert any(option in text for text in help_texts), f"{page}: {command} {option}"


def test_every_page_is_listed():
    assert {*CHECKOUT.glob("[!.]*/README.md"), *CHECKOUT.glob("README.md")} <= set(PAGES)
