"""The one reader of YAML: configurations, datasets and the paper's tables. A key that stands twice is refused."""

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

from data_prep.common.errors import UserError


def read_yaml(path: Path) -> dict[Any, Any]:
    """The keys and values of a file.

    Raises:
        UserError: the file is missing, unreadable, not UTF-8 or not YAML; it gives a key twice, or no keys at all; a
            value cannot be read.
    """
    try:
        content = copy.deepcopy(_content(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of an existing YAML file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start:,}); give a YAML file in UTF-8") from error
    except Exception as error:  # PyYAML has no one error: of 2001-13-45 it is a ValueError
        where, problem = "", " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError):
            problem = " ".join(filter(None, (error.context, error.problem)))
            mark = error.problem_mark or error.context_mark
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML: {problem[:300]}; mend the file") from error
    if not isinstance(content, dict):
        held = "nothing" if content is None else type(content).__name__
        raise UserError(f"{path} holds {held}, expected keys with values such as `train: ...`")
    return content


@functools.lru_cache(maxsize=256)
def _content(text: str) -> Any:
    """The values of a text. Configurations share their bases, and parsing takes most of the time."""
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for place in (key for key, _ in node.value if not key.tag.endswith(":merge")):
            key = self.construct_object(place, deep=True)
            if key in seen:
                problem = f"the key {key!r} stands here a second time"
                raise yaml.constructor.ConstructorError(None, None, problem, place.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)
