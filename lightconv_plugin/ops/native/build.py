"""Compiles the C++ library, once per version of its sources, torch and compiler, into a cache that processes share.

g++ (or clang++) and torch's own headers are enough: the library uses LibTorch's stable ABI alone, so one file serves
CPU and CUDA builds of torch.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "csrc"

# the kernels are compiled once for each vector width, and the widest that the machine has is taken at run time
X86_FLAGS = {
    "avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "avx512.cpp": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"],
}
COMMON_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=fast"]
COMMON_FLAGS += ["-fno-tree-loop-distribute-patterns", "-Wall", "-Wextra"]


class BuildError(RuntimeError):
    """The library could not be compiled; the message says why and what to do."""


def cache_folder() -> Path:
    """Where compiled files are kept: $LIGHTCONV_CACHE, or lightconv_plugin in the user's cache folder."""
    chosen = os.environ.get("LIGHTCONV_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightconv_plugin"


def compiler() -> str:
    """$CXX, or the first C++ compiler on the path.

    Raises:
        BuildError: there is none.
    """
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        found = shutil.which(name)
        if found:
            return found
    raise BuildError(
        "no C++ compiler was found (looked for $CXX, g++, clang++, c++). Install g++ 10 or later "
        "(Debian, Ubuntu: apt install g++; conda: conda install gxx), or set CXX"
    )


def library_path() -> Path:
    """The compiled library; compiles it if this version is not in the cache.

    Raises:
        BuildError: no compiler, or the compiler's own message.
    """
    cxx = compiler()
    path = cache_folder() / f"native-{_fingerprint(cxx)}.so"
    if not path.exists():
        _compile(cxx, path)
    return path


def sources() -> list[Path]:
    """The files that are compiled on this kind of machine; headers and CUDA sources not among them."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return sorted(path for path in SOURCES.rglob("*.cpp") if x86 or path.name not in X86_FLAGS)


def fingerprint_of_sources() -> str:
    """Changes with any file of the library."""
    digest = hashlib.sha256()
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _fingerprint(cxx: str) -> str:
    digest = hashlib.sha256(fingerprint_of_sources().encode())
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=False).stdout
    for text in (version, torch.__version__, platform.machine(), repr(COMMON_FLAGS), repr(X86_FLAGS)):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def _compile(cxx: str, path: Path) -> None:
    """Compile all sources side by side, link, and put the library in place under its final name when it is whole."""
    torch_root = Path(torch.__file__).parent
    include = [f"-I{torch_root / 'include'}", f"-I{SOURCES}", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:

            def one(source: Path) -> str:
                target = Path(folder) / (str(source.relative_to(SOURCES)).replace(os.sep, "-") + ".o")
                flags = [*COMMON_FLAGS, *X86_FLAGS.get(source.name, [])]
                _run([cxx, *flags, *include, "-c", str(source), "-o", str(target)])
                return str(target)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = list(pool.map(one, sources()))
            whole = Path(folder) / path.name
            lib = torch_root / "lib"
            _run([cxx, "-shared", *objects, "-o", str(whole), f"-L{lib}", "-ltorch_cpu", "-ldl", f"-Wl,-rpath,{lib}"])
            os.replace(whole, path)
    except OSError as error:
        raise BuildError(
            f"the library cannot be written to {path.parent} ({error}); set LIGHTCONV_CACHE to a folder that can"
        ) from error


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        raise BuildError(f"{Path(command[0]).name} failed ({lines[0] if lines else f'exit {done.returncode}'})")
