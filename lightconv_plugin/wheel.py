"""Build the wheel: with ``--compiled`` it holds the compiled library too, and needs no compiler where it is installed.

``pip wheel . --no-deps --no-build-isolation -C--build-option=--compiled``, or the same option of ``python -m build
--wheel --no-isolation``. torch and g++ must be there. Without the option a wheel serves any machine, which compiles at
first use. pyproject.toml names this class to setuptools.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools.command.bdist_wheel import bdist_wheel

# in a process of its own, which finds this checkout's package first
PATHS = "from lightconv_plugin.ops import library; print(library.library_path(), library.packaged_path(), sep='\\n')"


class Wheel(bdist_wheel):
    """Setuptools' command with one option more."""

    user_options: ClassVar = [*bdist_wheel.user_options, ("compiled", None, "put the compiled library into the wheel")]
    boolean_options: ClassVar = [*bdist_wheel.boolean_options, "compiled"]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.compiled = False

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag: any Python, and, with the library, this kind of machine with this C library or a later one.

        The library uses nothing of Python's.
        """
        if not self.compiled:
            return super().get_tag()
        return "py3", "none", f"manylinux_{platform.libc_ver()[1].replace('.', '_')}_{platform.machine()}"

    def write_wheelfile(self, *args: str, **kwargs: str) -> None:
        """Add the library to what has been collected; setuptools calls this just before it packs."""
        self.root_is_pure = not self.compiled
        super().write_wheelfile(*args, **kwargs)
        if self.compiled:
            utf8 = os.environ | {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"}
            said = subprocess.check_output([sys.executable, "-c", PATHS], env=utf8, encoding="utf-8")
            compiled, place = map(Path, said.splitlines())
            assert self.bdist_dir is not None
            shutil.copy(compiled, Path(self.bdist_dir) / place.relative_to(Path.cwd()))
