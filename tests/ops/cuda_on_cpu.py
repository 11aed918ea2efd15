"""The CUDA operators, launcher and kernels on a CPU. cuda_shim/ replaces libcuda and NVRTC; all other code is real.

Compiled files are kept in the native library's cache folder, under names that change with the sources.
"""

import ctypes
import functools
import hashlib
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin.ops import backend, library

SHIM = Path(__file__).parent / "cuda_shim"
CUDA = library.SOURCES / "cuda"
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
GPU_ALONE = ("residual_norm", "residual_norm_backward", "adam_step", "update_decide")
# flags that compile the CUDA operators for CPU tensors, as a separate library
EMULATED = (
    "-w",
    "-Dlightconv=lightconv_emulated",
    "-DLIGHTCONV_ON_CPU",
    '-DLIGHTCONV_LIBCUDA=std::getenv("SHIM_LIBCUDA")',
)


def digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def folder() -> Path:
    """Return the folder of the compiled kernels and of the programs that compile and run them.

    Its name changes with the text of the kernels and of the shim, but not with that of the launcher.
    """
    kernels = [*CUDA.rglob("*.cuh"), CUDA / "args.h", CUDA / "case.h"]
    shim = (SHIM / name for name in ("shim.h", "scheduler.h", "scheduler.cpp", "nvrtc.cpp"))
    return library.cache_folder() / f"shim-{digest([*kernels, *shim, library.SOURCES / 'random.h'])}"


def compile_shared(target: Path, sources: list[Path], *flags: str) -> Path:
    """Compile C++ sources to a shared object, unless it exists."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(f".{os.getpid()}")
        command = [library.compiler(), "-std=c++20", "-O0", "-fPIC", "-shared", f"-I{library.SOURCES}", *flags]
        subprocess.run([*command, *map(str, sources), "-o", str(draft), "-ldl"], check=True)
        os.replace(draft, target)
    return target


def fake_driver() -> Path:
    return compile_shared(folder() / f"libcuda-{digest([SHIM / 'libcuda.cpp'])}.so", [SHIM / "libcuda.cpp"])


CHECKS = {
    "plain": "-O1",
    "checked": "-O0 -fsanitize=address,undefined -fno-sanitize-recover=all",
    "races": "-O1 -fsanitize=thread -nodefaultlibs",  # scheduler.cpp receives every access
}


def fake_nvrtc(check: str = "plain") -> Path:
    """Return an NVRTC that compiles kernels for the CPU; ``check``: one of CHECKS.

    It uses a precompiled shim.h, which halves the time of a kernel.
    """
    check_folder = folder() / check
    flags = f"{library.compiler()} -std=c++20 -w -fPIC -fvisibility=hidden {CHECKS[check]}"
    compiled = check_folder / "shim.h.gch"
    if not compiled.exists():
        compiled.parent.mkdir(parents=True, exist_ok=True)
        draft = compiled.with_suffix(f".{os.getpid()}")
        subprocess.run([*flags.split(), "-x", "c++-header", str(SHIM / "shim.h"), "-o", str(draft)], check=True)
        os.replace(draft, compiled)
    machine = compile_shared(folder() / "libshim.so", [SHIM / "scheduler.cpp"], "-O2")
    flags += f" -Wl,--no-as-needed {machine}"
    command = f'-DSHIM_COMMAND="{flags} -I{compiled.parent} -I{SHIM}"'
    return compile_shared(check_folder / "libnvrtc.so", [SHIM / "nvrtc.cpp"], command)


def empty_nvrtc() -> Path:
    """Return an NVRTC that compiles nothing: its images have no code, and their launches do nothing."""
    return compile_shared(folder() / "libnvrtc-empty.so", [SHIM / "nvrtc.cpp"])


@functools.cache
def emulated() -> ctypes.CDLL:
    """Load ``torch.ops.lightconv_emulated``: the CUDA operators, which take CPU tensors."""
    path = library.cache_folder() / f"emulated-{digest([*library.SOURCES.rglob('*'), SHIM / 'emulated.cpp'])}.so"
    root = Path(torch.__file__).parent
    flags = [
        *EMULATED,
        f"-I{root / 'include'}",
        "-DTORCH_TARGET_VERSION=0x020a000000000000",
        "-fvisibility-inlines-hidden",
    ]
    sources = [*CUDA.rglob("*.cpp"), library.SOURCES / "library.cpp", SHIM / "emulated.cpp"]
    lib = root / "lib"
    compile_shared(path, sources, *flags, f"-L{lib}", f"-Wl,-rpath,{lib}", "-Wl,--no-as-needed", "-ltorch_cpu")
    torch.ops.load_library(str(path))
    loaded = ctypes.CDLL(str(path))
    loaded.compile_only.restype = ctypes.c_char_p
    return loaded


class Machine:
    """Emulated GPU: its attributes are the CUDA operators of ``torch.ops.lightconv``, which here take CPU tensors.

    Memory that an operator allocates is filled with NaN, which shows elements that are never written.

    Attributes:
        capability: compute capability, 90 for sm_90; also the number of the device in the emulated driver.
        alignment: in bytes; an operand's address is a multiple of it and of no larger power of two.
        stream: CUDA stream of the launches.
    """

    def __init__(self, capability: int = 90, cache: Path | None = None) -> None:
        self.library, self.capability, self.alignment, self.stream = emulated(), capability, 16, 0
        self.driver = ctypes.CDLL(str(fake_driver()))
        os.environ.setdefault("SHIM_LIBCUDA", str(fake_driver()))
        self.set_up(cache or folder() / "kernels")

    def set_up(self, cache: Path, nvrtc: Path | None = None, sources: Path = library.SOURCES) -> None:
        """Start with no kernel loaded; kernels in the folder ``cache`` are read from there."""
        cache.mkdir(parents=True, exist_ok=True)
        torch.ops.lightconv_emulated.cuda_configure(*map(str, (sources, nvrtc or fake_nvrtc(), cache)))

    def place(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to memory that ends with its last element; accesses before its first one are guarded too."""
        size = tensor.element_size()
        offset = max(self.alignment, size) // size
        storage = torch.empty(offset + tensor.numel(), dtype=tensor.dtype)  # torch aligns its memory to 64 bytes
        self.guard(storage, offset * size)
        return storage[offset:].view(tensor.shape).copy_(tensor)

    def guard(self, storage: Tensor, size: int) -> None:
        """Forbid access to the first ``size`` bytes of a tensor; only machines with checks do this."""

    def numbers(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return self.place(torch.randn(shape, dtype=torch.float64).to(dtype))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator = getattr(torch.ops.lightconv_emulated, name)

        def run(*args: Any) -> Any:
            self.library.emulate(self.capability, ctypes.c_void_p(self.stream))
            deterministic = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(True)
            try:
                return operator(*args)
            finally:
                torch.use_deterministic_algorithms(deterministic)

        return run

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        padding_l: int,
        softmax: bool = True,
        p: float = 0.0,
        seed: Tensor | None = None,
    ) -> Tensor:
        """Run LightConv, or DynamicConv if ``weight`` has four dimensions."""
        return (self.dynamic_conv if weight.ndim == 4 else self.light_conv)(x, weight, padding_l, softmax, p, seed)

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        padding_l: int,
        softmax: bool = True,
        p: float = 0.0,
        seed: Tensor | None = None,
        wanted: tuple[bool, bool] = (True, True),
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and of the weight; a gradient that is not wanted has no elements."""
        return self.conv_backward(grad, x, weight, padding_l, softmax, p, seed, *wanted, False, None, None)[:2]

    def kernels(self) -> list[str]:
        """Names of the kernels that the machines of this process have loaded."""
        self.driver.shim_function.restype = ctypes.c_char_p
        return [self.driver.shim_function(i).decode() for i in range(self.driver.shim_functions())]

    def launches(self) -> list[tuple[int, int, int, int, int]]:
        """Return (device, stream, blocks, threads, shared bytes) of each launch since the last call."""
        facts = (ctypes.c_longlong * 5)()
        launches = []
        for i in range(self.driver.shim_launches()):
            self.driver.shim_launch(i, facts)
            launches.append((facts[0], facts[1], facts[2], facts[3], facts[4]))
        self.driver.shim_forget()
        return launches


@contextmanager
def kernels_for_cpu_tensors(names: Iterable[str] = GPU_ALONE) -> Iterator[None]:
    """Run operators on CPU tensors with the emulated CUDA kernels, where a CPU has no kernel for them."""
    machine = Machine()
    with torch.library._scoped_library("lightconv", "IMPL") as added:
        for name in names:
            added.impl(name, getattr(machine, name), "CPU")
        backend._cached_reason_of_kind.cache_clear()
        yield
    backend._cached_reason_of_kind.cache_clear()
