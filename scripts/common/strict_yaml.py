"""The one reader of YAML: configurations, datasets and the paper's tables. What YAML passes in silence is refused."""

import copy
import functools
import itertools
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from scripts.common.errors import UserError

_UNUSABLE = re.compile("[\0\ud800-\udfff]")
_DEEPEST = 50
_MOST = 100_000
"""Values of a file. Aliases of aliases make billions of a few lines, and messages that quote them fill the memory."""


def read_yaml(path: Path) -> dict[Any, Any]:
    """The keys and values of a file.

    Raises:
        UserError: the file is missing, unreadable, not UTF-8 or not YAML; it gives a key twice, or no keys at all; a
            value cannot be read, or there are too many.
    """
    try:
        content = copy.deepcopy(_content(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of an existing YAML file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start:,}); give a YAML file in UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        where, problem = "", " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError):
            problem = " ".join(filter(None, (error.context, error.problem)))
            mark = error.problem_mark or error.context_mark
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        elif isinstance(error, RecursionError):
            problem = f"values within one another more than {_DEEPEST} deep"
        raise UserError(f"{path}{where}: not valid YAML: {problem}; mend the file") from error
    if not isinstance(content, dict):
        held = "nothing" if content is None else type(content).__name__
        raise UserError(f"{path} holds {held}, expected keys with values such as `train: ...`")
    return content


@functools.lru_cache(maxsize=256)
def _content(text: str) -> Any:
    """The values of a text. A suite's configurations share their bases, and parsing is what takes time."""
    loader = _Loader(text)
    node = loader.get_single_node()
    _check(loader, node)
    return None if node is None else loader.construct_document(node)


class _Loader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # which fails beyond some thousand digits, and messages quote values
            return value
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # 2001-13-45, !!int x
            tag = node.tag.rpartition(":")[2]
            _refuse(node, f"{str(node.value)[:50]!r} cannot be read as {tag}; quote it if it is text", error)


def _refuse(node: yaml.Node, problem: str, cause: Exception | None = None) -> None:
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from cause


def _check(loader: _Loader, root: yaml.Node | None) -> None:
    """Walk through all values, an alias as what it stands for."""
    waiting: list[tuple[yaml.Node, int]] = [] if root is None else [(root, 1)]
    for count in itertools.count(1):
        if not waiting:
            return
        node, depth = waiting.pop()
        if depth > _DEEPEST or count > _MOST:
            _refuse(node, f"more than {_MOST:,} values, or one within another more than {_DEEPEST} deep")
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            _check_keys(loader, [key for key, _ in inner if not key.tag.endswith(":merge")])
            inner = [each for pair in inner for each in pair]
        elif isinstance(node, yaml.ScalarNode) and _UNUSABLE.search(node.value):
            _refuse(node, "an escape that no text can hold: NUL, or half of a character")
        waiting += [(each, depth + 1) for each in inner]


def _check_keys(loader: _Loader, keys: list[yaml.Node]) -> None:
    seen = set()
    for key in keys:
        value = loader.construct_object(key) if isinstance(key, yaml.ScalarNode) else []
        if not isinstance(value, Hashable):
            _refuse(key, "a list or keys with values as a key, expected a word")
        if value in seen:
            _refuse(key, f"the key {value!r} stands here a second time")
        seen.add(value)
