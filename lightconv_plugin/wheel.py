"""Build the wheel: with ``--compiled`` it holds the compiled library too, and needs no compiler where it is installed.

``pip wheel . --no-deps --no-build-isolation -C--build-option=--compiled``, or the same option of ``python -m build
--wheel --no-isolation``. torch, g++ and auditwheel must be there. Without the option a wheel serves any machine, which
compiles at first use. pyproject.toml names this class to setuptools; scripts/release.sh builds and checks both wheels.
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

# in a process of its own, which finds this checkout's package first
PATHS = "from lightconv_plugin.ops import library; print(library.library_path(), library.packaged_path(), sep='\\n')"


class Wheel(bdist_wheel):
    """Setuptools' command with one option more."""

    user_options: ClassVar = [*bdist_wheel.user_options, ("compiled", None, "put the compiled library into the wheel")]
    boolean_options: ClassVar = [*bdist_wheel.boolean_options, "compiled"]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.compiled = False

    @functools.cached_property
    def library(self) -> tuple[Path, Path]:
        """The compiled library, and its place in the package."""
        utf8 = os.environ | {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"}
        printed = subprocess.check_output([sys.executable, "-c", PATHS], env=utf8, encoding="utf-8")
        compiled, place = map(Path, printed.splitlines())
        return compiled, place

    @functools.cached_property
    def platform(self) -> str:
        """The platform of the compiled library."""
        return platform_of(self.library[0])

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag: any Python, and with the library, the machines that can load it.

        The library uses nothing of Python's.
        """
        return ("py3", "none", self.platform) if self.compiled else super().get_tag()

    def write_wheelfile(self, *args: str, **kwargs: str) -> None:
        """Add the library to what has been collected; setuptools calls this just before it packs."""
        self.root_is_pure = not self.compiled
        super().write_wheelfile(*args, **kwargs)
        if self.compiled:
            compiled, place = self.library
            assert self.bdist_dir is not None
            shutil.copy(compiled, Path(self.bdist_dir) / place.relative_to(Path.cwd()))


def platform_of(library: Path) -> str:
    """The oldest platform, such as manylinux_2_34_x86_64, whose C and C++ libraries have all that a library uses.

    auditwheel knows this of wheels, so one is made of the library alone. The building machine's C library is often
    newer than what the library needs.

    Raises:
        SystemExit: auditwheel is not installed.
    """
    if find_spec("auditwheel") is None:
        sys.exit("error: auditwheel finds out for which machines a compiled wheel is: pip install auditwheel")
    with TemporaryDirectory() as folder:
        wheel = Path(folder) / f"sample-1-py3-none-linux_{platform.machine()}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(library, "sample/library.so")
            archive.writestr("sample-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
            archive.writestr("sample-1.dist-info/RECORD", "sample/library.so,,\n")
        command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
        report = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return str(json.loads(report)["sym_tag"])
