"""List all commands."""

import ast
import sys

from data_prep.common import CHECKOUT
from data_prep.common.terminal import aligned


def commands() -> list[list[str]]:
    """Return each command with the first line of its docstring, without importing it."""
    listed = []
    folders = [CHECKOUT / name for name in ("data_prep", "lightconv_plugin", "scripts")]
    for path in sorted(
        path for folder in folders for pattern in ("*.py", "*/__main__.py") for path in folder.glob(pattern)
    ):
        text = path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":\n' in text:
            module = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__main__")
            listed.append([f"python -m {module}", str(ast.get_docstring(ast.parse(text))).split("\n")[0]])
    return listed


if __name__ == "__main__":
    listed = "\n".join(aligned(commands(), left=2))
    if len(sys.argv) > 1:
        sys.exit(f"error: unknown command `{sys.argv[1]}`; expected one of these, which all have --help:\n{listed}")
    print(listed)
