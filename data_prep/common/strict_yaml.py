"""Read YAML files: configurations, datasets and the paper's tables. A repeated key is an error."""

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

from data_prep.common.errors import UserError


def read_yaml(path: Path) -> dict[Any, Any]:
    """Read a YAML file of keys and values.

    Raises:
        UserError: the file is missing, unreadable, not UTF-8 or not YAML; it repeats a key or has no keys; a value
            cannot be read.
    """
    try:
        content = copy.deepcopy(_content(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of an existing YAML file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start:,}); give a YAML file in UTF-8") from error
    except Exception as error:  # PyYAML's errors have no common class: for 2001-13-45 it raises a ValueError
        where, problem = "", " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError):
            problem = " ".join(filter(None, (error.context, error.problem)))
            mark = error.problem_mark or error.context_mark
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML: {problem[:300]}; correct the file") from error
    if not isinstance(content, dict):
        kind = "nothing" if content is None else type(content).__name__
        raise UserError(f"{path} holds {kind}, expected keys with values such as `train: ...`")
    return content


@functools.lru_cache(maxsize=256)
def _content(text: str) -> Any:
    """Parse a text, once: configurations share their bases, and parsing takes most of the time of reading them."""
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node in (key for key, _ in node.value if not key.tag.endswith(":merge")):
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                problem = f"the key {key!r} is repeated here"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)
