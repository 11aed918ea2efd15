"""The sections of scripts/first_gpu.sh: a command each, with its time limit, and smaller sizes for a rehearsal."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scripts.common.process import python_module
from scripts.common.provenance import available_cores

REHEARSAL_MINUTES = 15
MOST_PROCESSES = 8  # each has a CUDA context of half a gigabyte
# of the convolutions: the kernels of each kind, in both sizes of type
CHECKED = " or ".join(
    f"[{dtype}-{width}-{kernel}]"  # of a type, a width of the heads, a kernel
    for dtype in ("float32", "float16")
    for width in (1, 64)
    for kernel in ("31-30", "65-64")
)


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str  # of its record and log
    title: str  # on the page
    minutes: float  # after which its command is ended
    command: tuple[str, ...] = ()  # to run; empty where it cannot be
    begins: str = ""  # the first words of its results, among all that the command prints
    tests: bool = False  # the command is pytest
    absent: str | None = None  # the reason why it cannot be run here


def sections(device: str) -> list[Section]:
    """List the sections for a device, cuda, cuda:N or cpu, in the order in which they run."""
    found = list(_sections(device, rehearsal=device == "cpu"))
    # of a rehearsal nobody waits for the figures, but other work may have the cores too
    return [replace(section, minutes=REHEARSAL_MINUTES) for section in found] if device == "cpu" else found


def _sections(device: str, rehearsal: bool) -> Iterator[Section]:
    yield Section("info", "Self-test", 3, (*python_module("lightconv_plugin.info"),), "Python ")
    processes = min(MOST_PROCESSES, available_cores())
    tests = _pytest("tests/gpu", device, f"--numprocesses={processes}", "--dist=worksteal")
    yield Section("tests", "Tests", 8, tests, tests=True)
    for tool in ("memcheck", "racecheck"):
        yield _sanitizer(tool, device)
    sizes = ["--channels=64", "--heads=2", "--lengths=16,64", "--tokens=128"]
    if not rehearsal:
        sizes = ["--channels=1024", "--heads=16", "--lengths=32,128,512,2048", "--tokens=16384"]
    for dtype in ("float32", "bfloat16") if rehearsal else ("float32", "float16", "bfloat16"):
        yield _bench(f"ops {dtype}", "ops", device, f"--dtype={dtype}", *sizes, minutes=2)
    # the widest kernel that causal-conv1d has
    narrow = ["--operators=light", "--kernel=4", "--causal", "--dtype=float32" if rehearsal else "--dtype=bfloat16"]
    yield _bench("ops narrow", "ops", device, *narrow, *sizes, minutes=1)
    yield _bench("kernels", "kernels", device, *(["--tokens=256", "--channels=64"] if rehearsal else []), minutes=1)
    precision = ["--precisions=fp32"]  # a GPU's tables have no rows of products in bfloat16
    train = ["--widths=512", "--layers=6,6", "--tokens=4096", "--flags=--fp16", "--models=transformer,conv 31"]
    if rehearsal:
        train = ["--tokens=64", "--vocab-size=60", *precision]
    yield _bench("train", "train", device, *train, minutes=2)
    decode = ["--sentences=128,32,1"]
    if rehearsal:
        decode = ["--sentences=2,1", "--length=3", "--vocab-size=60", "--rows=128", "--channels=64", *precision]
    yield _bench("decode", "decode", device, *decode, minutes=3)


def _pytest(what: str, device: str, *options: str) -> tuple[str, ...]:
    # -Wdefault: a device brings warnings of torch's that no other machine has
    quiet = ("-q", "-p", "no:cacheprovider", "--disable-warnings", "-m", "gpu", f"--device={device}")
    return ("env", "OMP_NUM_THREADS=1", *python_module("pytest"), what, *quiet, "-Wdefault", *options)


def _bench(name: str, what: str, device: str, *options: str, minutes: float) -> Section:
    effort = ("--seconds=0.01", "--threads=1") if device == "cpu" else ("--seconds=0.3",)
    command = (*python_module("scripts.bench"), what, f"--device={device}", *effort, *options)
    return Section(name.replace(" ", "_"), f"scripts.bench {name}", minutes, command, begins=f"{what} on ")


def _sanitizer(tool: str, device: str) -> Section:
    title = f"compute-sanitizer --tool {tool}"
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = os.pathsep.join([os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home)])
    found = shutil.which("compute-sanitizer", path=places)
    if found is None:
        return Section(tool, title, 3, absent="compute-sanitizer is not on PATH, nor in CUDA_HOME or /usr/local/cuda")
    # without the allocator's cache, in whose blocks it would see no read past a tensor's end
    start = ("env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", found, "--tool", tool, "--error-exitcode=1", "--")
    return Section(tool, title, 3, (*start, *_pytest("tests/gpu/test_operators.py", device, "-k", CHECKED)), tests=True)
