"""Print each folder's lines of code, and the folders that it imports, with the number of imports.

usage: python -m tests.layout
"""

from collections import Counter

from data_prep.common import CHECKOUT
from tests.layout.tree import TRACKED, imports_between_modules

CODE = {".py", ".sh", ".cpp", ".h", ".inl", ".cuh", ".cu"}


def folder_of(module: str) -> str:
    """Return the name of a module's folder, such as data_prep.common, or data_prep for a file at its top."""
    names = module.split(".")
    return ".".join((names if (CHECKOUT / module.replace(".", "/")).is_dir() else names[:-1])[:2])


def main() -> None:
    arrows = Counter(
        (folder_of(module), folder_of(name))
        for module, names in imports_between_modules().items()
        for name in names
        if folder_of(name) != folder_of(module)
    )
    lines: Counter[str] = Counter()
    for path in TRACKED:
        if path.suffix in CODE:
            lines[".".join(path.relative_to(CHECKOUT).parent.parts[:2])] += len(path.read_text().splitlines())
    for folder, count in sorted(lines.items()):
        imports = ", ".join(f"{name} ({n})" for (start, name), n in sorted(arrows.items()) if start == folder)
        print(f"{folder:28}{count:7,} lines   {imports and 'imports ' + imports}".rstrip())


if __name__ == "__main__":
    main()
