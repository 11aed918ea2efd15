"""The compiled library: built once per version of its sources, and loaded once per process.

Building needs g++ 11 or later and torch's own headers. The library only uses LibTorch's stable ABI, so one file serves
CPU and CUDA builds of every torch from 2.10 on. The file is in a cache that processes share, or is part of a wheel.
CUDA kernels are compiled when they are first launched, for the GPU in use, by the NVRTC that every CUDA build of torch
contains. They are cached in the folder ``cuda`` of the same cache.
"""

import contextlib
import fcntl
import functools
import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import torch

from lightconv_plugin.ops import fakes, flops
from lightconv_plugin.ops.files import whole_file

logger = logging.getLogger(__name__)
_lock = threading.Lock()

SOURCES = Path(__file__).parent / "native" / "csrc"
CORE_SECONDS = 90  # time to compile all sources on one core of a Xeon at 2.5 GHz

AVX2 = ["-mavx2", "-mfma"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"]
# Sources that use instructions which not every x86-64 processor has, with the flags of each of their compilations. The
# variant to run is chosen at run time. vectors.cpp comes first, since it takes longest to compile.
X86_VARIANTS = {
    "vectors.cpp": [
        ["-DLIGHTCONV_TABLE=avx512_kernels", "-DLIGHTCONV_BITS=512", *AVX512],
        ["-DLIGHTCONV_TABLE=avx2_kernels", "-DLIGHTCONV_BITS=256", *AVX2],
    ],
    "bf16.cpp": [[*AVX512, "-mavx512bf16"]],
    "int8.cpp": [
        ["-DLIGHTCONV_INT8=avx2_int8", *AVX2],
        ["-DLIGHTCONV_INT8=avx_vnni_int8", *AVX2, "-mavxvnni"],
        ["-DLIGHTCONV_INT8=avx512_int8", *AVX512],
        ["-DLIGHTCONV_INT8=avx512_vnni_int8", *AVX512, "-mavx512vnni"],
    ],
}
# Flags of the same sources on every machine: vectors.cpp is also compiled without special instructions, the others are
# not.
ANY_VARIANT = {
    "vectors.cpp": [["-DLIGHTCONV_TABLE=baseline_kernels", "-DLIGHTCONV_BITS=128"]],
    "bf16.cpp": [],
    "int8.cpp": [],
}
COMMON_FLAGS = [
    *("-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"),
    # -O3 makes compilation take 1.5 times as long, for optimisations that are already written out in the kernels
    *("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fno-tree-loop-distribute-patterns"),
    *("-fno-math-errno", "-ffp-contract=fast"),
    # by default g++ stops inlining in a source as large as vectors.cpp, which costs up to 30 % of a kernel's time
    "--param=large-unit-insns=1000000",
]

# The environment variables that limit the instructions of torch's and oneDNN's kernels also limit the library's.
# ATEN_LIMITS: bits of the widest vectors. ONEDNN_LIMITS: those bits, and the best units for products in bfloat16 and of
# 8-bit integers, as indices of BF16_UNITS and INT8_UNITS in fused/linear.py.
ATEN_LIMITS = {"default": 128, "avx2": 256}
ONEDNN_LIMITS = {
    **dict.fromkeys(("SSE41", "AVX"), (128, 0, 0)),
    "AVX2": (256, 0, 1),
    **dict.fromkeys(("AVX2_VNNI", "AVX2_VNNI_2"), (256, 0, 3)),
    "AVX512_CORE": (512, 0, 2),
    "AVX512_CORE_VNNI": (512, 0, 4),
    **dict.fromkeys(("AVX512_CORE_BF16", "AVX512_CORE_FP16"), (512, 1, 4)),
}


def load() -> str | None:
    """Make ``torch.ops.lightconv`` available. Return None, or the reason why it is not available.

    The library is compiled first if there is no compiled one.
    """
    with _lock:  # several threads may call their first operators at the same time
        return _load()


def load_if_compiled() -> None:
    """Load the library if it is compiled already.

    A ``FlopCounterMode`` of PyTorch only counts operators that were registered before it was made.
    """
    if os.path.exists(packaged_path()) or os.path.exists(cached_path()):  # False for an unreadable folder
        load()


@functools.cache
def _load() -> str | None:
    try:
        path = library_path()
    except BuildError as error:
        return f"its library could not be compiled: {error}"
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        return (
            f"its library cannot be loaded: {error}{cause}; remove {path} to have it compiled again, or set "
            "LIGHTCONV_CACHE to a folder on a file system from which programs may be run"
        )
    fakes.register()
    flops.register()
    _limit_instructions()
    return None


def _limit_instructions() -> None:
    onednn = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    bits, bf16, int8 = ONEDNN_LIMITS.get(onednn.upper(), (512, -1, -1))
    torch.ops.lightconv.cpu_vector_bits(min(bits, ATEN_LIMITS.get(os.environ.get("ATEN_CPU_CAPABILITY", ""), bits)))
    torch.ops.lightconv.cpu_bf16_units(bf16)
    torch.ops.lightconv.cpu_int8_units(int8)


class BuildError(RuntimeError):
    """The library could not be compiled. The message gives the reason and the remedy."""


def cache_folder() -> Path:
    """Return the folder of compiled files: $LIGHTCONV_CACHE, or lightconv_plugin in the user's cache folder."""
    if chosen := os.environ.get("LIGHTCONV_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightconv_plugin"


def compiler() -> str:
    """Return the path of $CXX, or of the first C++ compiler in $PATH.

    Raises:
        BuildError: there is no compiler.
    """
    for name in filter(None, (os.environ.get("CXX"), "g++", "c++")):
        if path := shutil.which(name):
            return path
    raise BuildError(
        "no C++ compiler was found (looked for $CXX, g++, c++). Install g++ 11 or later "
        "(Debian, Ubuntu: apt install g++; conda: conda install gxx), or set CXX"
    )


def library_path() -> Path:
    """Return the path of the compiled library.

    It is in the package (see ``lightconv_plugin.wheel``), or in the cache, where it is compiled if needed.

    Raises:
        BuildError: there is no compiler, the compiler failed, or the cache cannot be written.
    """
    if (packaged := packaged_path()).exists():
        return packaged
    path = cached_path()
    cache = path.parent
    if path.exists():
        return path
    cxx = compiler()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "build.lock", "ab") as lock:  # a process that waits here uses what the other built
            with contextlib.suppress(OSError):  # a file system without locks: at worst both processes compile
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                library = _compile(cxx, cache)
                with whole_file(path) as file:
                    file.write(library)
    except OSError as error:
        raise BuildError(
            f"the library cannot be written to {cache} ({error}); set LIGHTCONV_CACHE to a folder that can be written"
        ) from error
    return path


def cached_path() -> Path:
    """Return the path in the cache of a library compiled from these sources. The file may not exist."""
    digest = hashlib.sha256(fingerprint_of_sources().encode())
    # a container's C library may be older than that of the machine with which it shares the cache
    for text in (platform.machine(), repr(platform.libc_ver()), repr((COMMON_FLAGS, X86_VARIANTS, ANY_VARIANT))):
        digest.update(text.encode() + b"\0")
    return cache_folder() / f"native-{digest.hexdigest()[:16]}.so"


def packaged_path() -> Path:
    """Return the path in the package of a library compiled from these sources. The file may not exist."""
    return SOURCES.parent / f"native-{fingerprint_of_sources()}.so"


def compilations() -> list[tuple[Path, list[str]]]:
    """Return pairs of a source and its flags on this kind of machine, those that compile longest first."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    sources = sorted(SOURCES.rglob("*.cpp"), key=lambda path: path.name not in X86_VARIANTS)
    return [
        (path, flags)
        for path in sources
        for flags in [*(X86_VARIANTS.get(path.name, []) if x86 else []), *ANY_VARIANT.get(path.name, [[]])]
    ]


def fingerprint_of_sources() -> str:
    """Return a digest of the names and contents of all source files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _print_notice(text: str) -> None:
    """Print to stderr, where a user who waits for a compiler sees it without configuring a logger."""
    print(f"lightconv_plugin: {text}", file=sys.stderr, flush=True)


def _compile(cxx: str, cache: Path) -> bytes:
    """Compile all sources in parallel, link and return the library. A killed build leaves nothing in the cache."""
    sources, cores = compilations(), min(8, len(os.sched_getaffinity(0)))
    _print_notice(
        f"compiling its C++ into {cache}, once; about {max(30, CORE_SECONDS // cores)} seconds on {cores} idle cores "
        "(python -m lightconv_plugin.info does it beforehand)"
    )
    torch_root = Path(torch.__file__).parent
    include = [f"-I{torch_root / 'include'}", f"-I{SOURCES}", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    with tempfile.TemporaryDirectory(prefix="lightconv-build-") as folder:

        def compile_source(number: int, source: Path, flags: list[str]) -> str:
            target = f"{folder}/{number}.o"
            _run([cxx, *COMMON_FLAGS, *flags, *include, "-c", str(source), "-o", target])
            return target

        # each of the three largest compilations takes up to half a gigabyte of memory
        with ThreadPoolExecutor(cores) as pool:
            objects = list(pool.map(compile_source, itertools.count(), *zip(*sources, strict=True)))
        linked = Path(folder) / "native.so"  # needs no rpath: the process has loaded its torch's libtorch_cpu already
        _run([cxx, "-shared", *objects, "-o", str(linked), f"-L{torch_root / 'lib'}", "-ltorch_cpu", "-ldl"])
        return linked.read_bytes()


def _run(command: Sequence[str]) -> None:
    """Run a compiler.

    Raises:
        BuildError: the compiler failed; the message has its first error.
    """
    result = subprocess.run(command, capture_output=True, encoding="utf-8", errors="backslashreplace", check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "error" in line.lower()] or result.stderr.splitlines()
        message = lines[0] if lines else f"exit {result.returncode}"
        raise BuildError(f"{Path(command[0]).name} failed ({message}); set CXX to GNU g++ 11 or later")


@functools.cache
def cuda_unusable() -> str | None:
    """Return the reason why CUDA kernels cannot be compiled, or None.

    If they can be compiled, pass the library the paths of its sources, of NVRTC and of the cache. The library must be
    loaded.
    """
    if torch.version.cuda is None:
        return "it runs on NVIDIA GPUs; this torch is built without CUDA"
    cache = cache_folder() / "cuda" / fingerprint_of_sources()
    try:
        if not cache.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            _print_notice(
                f"CUDA kernels are compiled into {cache} when they are first launched, once, in half a second each; "
                "the first training takes up to a minute longer"
            )
    except OSError as error:
        return (
            f"the cache of CUDA kernels cannot be created ({error}); "
            "set LIGHTCONV_CACHE to a folder that can be written"
        )
    # torch's stub: it loads NVRTC from wherever that is installed, and has pointers to NVRTC's functions
    nvrtc = Path(torch.__file__).parent / "lib" / "libcaffe2_nvrtc.so"
    torch.ops.lightconv.cuda_configure(str(SOURCES), str(nvrtc), str(cache))
    return None


@contextlib.contextmanager
def compiled_together() -> Iterator[None]:
    """Collect the kernels that are launched within the block, and compile them in parallel at its end.

    No kernel runs within the block, so operators return uninitialised memory there.
    """
    torch.ops.lightconv.cuda_gather(True)
    try:
        yield
    finally:
        start = perf_counter()
        count = torch.ops.lightconv.cuda_gather(False)
        logger.info("%d CUDA kernels are ready after %.1f seconds", count, perf_counter() - start)
