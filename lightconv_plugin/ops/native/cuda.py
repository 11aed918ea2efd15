"""The CUDA side of the library: finds NVRTC, and says what is missing before anything is compiled.

Kernels are compiled when first launched, for the GPU at hand, by the NVRTC that every CUDA build of torch depends on;
the system's CUDA toolkit is not needed. They are kept in the folder ``cuda`` of ``build.cache_folder()``.
"""

import functools
import importlib.util
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import torch

from lightconv_plugin.ops.native import build

logger = logging.getLogger(__name__)
SYSTEM = Path("/usr/local/cuda")  # where NVIDIA's own installer puts its toolkit
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@functools.cache
def unusable() -> str | None:
    """Return the reason why no kernel can be compiled, or None, and then the library knows where things are.

    The library is loaded.
    """
    if torch.version.hip is not None:
        return "it runs on NVIDIA GPUs; this torch is built for ROCm"
    nvrtc = choose_nvrtc(list(installed()), torch.version.cuda)
    if nvrtc is None:
        return "NVRTC is not installed; CUDA builds of torch bring it: pip install nvidia-cuda-nvrtc"
    return configure(nvrtc)


def installed() -> Iterator[Path]:
    """Return each libnvrtc: of NVIDIA's wheels, beside torch, of $CUDA_HOME and of /usr/local/cuda."""
    for root in _wheel_folders():
        for folder in sorted(root.glob("cu[0-9]*"), reverse=True):  # CUDA 13 and later: everything in one folder
            yield from _in(folder / "lib")
        yield from _in(root / "cuda_nvrtc" / "lib")
    yield from _in(Path(torch.__file__).parent / "lib")
    for home in (os.environ.get("CUDA_HOME"), SYSTEM):
        if home:
            yield from _in(Path(home) / "lib64")


def choose_nvrtc(found: list[Path], version: str | None) -> Path | None:
    """The one of torch's CUDA version, else the first."""
    major = (version or "").split(".")[0]
    return next((path for path in found if path.name.split(".so.")[-1].split(".")[0] == major), next(iter(found), None))


def configure(nvrtc: Path) -> str | None:
    """Tell the library where things are. None, or a sentence: the cache cannot be made."""
    cache = build.cache_folder() / "cuda"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return (
            f"the cache of CUDA kernels cannot be made ({error}); set LIGHTCONV_CACHE to a folder that can be written"
        )
    words = (build.SOURCES, nvrtc, cache, build.fingerprint_of_sources())
    torch.ops.lightconv.cuda_configure(*map(str, words))
    return None


@contextmanager
def compiled_together() -> Iterator[None]:
    """Compile all kernels that are launched within, at the end and side by side; within none runs.

    What operators return within is whatever memory held.
    """
    torch.ops.lightconv.cuda_gather(True)
    try:
        yield
    finally:
        began = perf_counter()
        count = torch.ops.lightconv.cuda_gather(False)
        logger.info("%d CUDA kernels are ready after %.1f seconds", count, perf_counter() - began)


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def _in(libraries: Path) -> Iterator[Path]:
    for path in sorted(libraries.glob("libnvrtc*.so*"), reverse=True):
        if re.fullmatch(r"libnvrtc(-[0-9a-f]{8})?\.so\.[0-9.]+", path.name):  # torch's own copy carries a digest
            yield path
