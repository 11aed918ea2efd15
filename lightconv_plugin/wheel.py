"""Build the wheel. With ``--compiled``, it includes the compiled library and needs no compiler where it is installed.

Run ``pip wheel . --no-deps --no-build-isolation -C--build-option=--compiled``, or ``python -m build --wheel
--no-isolation`` with the same option. This needs torch, g++ and auditwheel. A wheel without the library works on any
machine, which compiles it at first use. pyproject.toml registers ``Wheel`` with setuptools; scripts/release.sh builds
and checks both wheels.
"""

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from setuptools.command.bdist_wheel import bdist_wheel

# run in a new process, which finds this checkout's package first
PATHS = "from lightconv_plugin.ops import library; print(library.library_path(), library.packaged_path(), sep='\\n')"


class Wheel(bdist_wheel):
    """setuptools' ``bdist_wheel`` command with the option ``--compiled``."""

    user_options: ClassVar = [*bdist_wheel.user_options, ("compiled", None, "put the compiled library into the wheel")]
    boolean_options: ClassVar = [*bdist_wheel.boolean_options, "compiled"]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.compiled = False

    @functools.cached_property
    def library(self) -> tuple[Path, Path]:
        """The compiled library, and its path in the package."""
        utf8 = os.environ | {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"}
        printed = subprocess.check_output([sys.executable, "-c", PATHS], env=utf8, encoding="utf-8")
        compiled, packaged = map(Path, printed.splitlines())
        return compiled, packaged

    @functools.cached_property
    def platform(self) -> str:
        """The platform of the compiled library."""
        return platform_of(self.library[0])

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag: any Python, and with the library, the platform that can load it.

        The library does not use Python's API, so it works with any Python.
        """
        return ("py3", "none", self.platform) if self.compiled else super().get_tag()

    def write_wheelfile(self, *args: str, **kwargs: str) -> None:
        """Add the library to the files of the wheel. setuptools calls this just before it packs them."""
        self.root_is_pure = not self.compiled
        super().write_wheelfile(*args, **kwargs)
        if self.compiled:
            compiled, packaged = self.library
            assert self.bdist_dir is not None
            shutil.copy(compiled, Path(self.bdist_dir) / packaged.relative_to(Path.cwd()))


def platform_of(library: Path) -> str:
    """Return the oldest platform, such as manylinux_2_34_x86_64, whose C and C++ libraries suffice for ``library``.

    auditwheel finds the platform of a wheel, so this makes a temporary wheel with only the library. The platform of the
    building machine would be too strict: its C library is often newer than the library needs.

    Raises:
        SystemExit: auditwheel is not installed.
    """
    if find_spec("auditwheel") is None:
        sys.exit("error: a compiled wheel needs auditwheel, which finds its platform: pip install auditwheel")
    with TemporaryDirectory() as folder:
        wheel = Path(folder) / f"sample-1-py3-none-linux_{platform.machine()}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(library, "sample/library.so")
            archive.writestr("sample-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
            archive.writestr("sample-1.dist-info/RECORD", "sample/library.so,,\n")
        command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
        report = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return str(json.loads(report)["sym_tag"])
