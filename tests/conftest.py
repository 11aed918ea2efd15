"""The state that every test starts from, whichever ran before it in the same process."""

import copy
import functools
import gc
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from data_prep.common.process import environment

# a user's own settings, which change what programs say and do: tests set what they depend on
OWN = (
    *("ATEN_", "COLUMNS", "DNNL_", "FAIRSEQ_", "GIT_", "HF_", "LANG", "LC_", "LIGHTCONV_BACKEND", "LIGHTCONV_MATMUL"),
    *("MASTER_", "MPL", "ONEDNN_", "PIP_", "PYTHONIOENCODING", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "RANK", "SLURM_"),
    *("TZ", "WORLD_SIZE"),
)
for _name in [name for name in os.environ if name.startswith(OWN)]:
    del os.environ[_name]
os.environ |= {"LC_ALL": "C.UTF-8", "MPLBACKEND": "Agg", "PIP_CONFIG_FILE": os.devnull}
os.environ |= {"OMP_NUM_THREADS": "1"}  # there are as many processes, and threads of OpenMP are not in a fork
os.environ |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "commit.gpgsign", "GIT_CONFIG_VALUE_0": "false"}

os.environ.update(environment())  # commands of this project are modules, and tests start them from any folder

# what a processor with narrower vectors leaves to torch and our kernels, to MKL and to oneDNN
CAPABILITIES = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}

os.fsync = lambda fd: None  # that files outlive the machine's own end: no test waits for it, and disks are slow at it

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # under nohup: the programs that tests interrupt would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)  # nothing is timed: machines are busy
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give the temporary files of this run, of killed programs above all, a folder that goes with it."""
    os.environ.update(CAPABILITIES.get(config.getoption("--cpu-capability"), {}))  # before anything imports torch
    if hasattr(config, "workerinput"):
        return  # a worker inherits it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest's own folders stay, for a look
    folder = tempfile.TemporaryDirectory(prefix="lightconv-tests-", ignore_cleanup_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = folder.name
    config.add_cleanup(folder.cleanup)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="of tests/gpu; cpu rehearses the first case of each test")
    parser.addoption("--cpu-capability", choices=CAPABILITIES, help="use no wider vectors than this instruction set's")


def pytest_report_header(config: pytest.Config) -> list[str]:
    of_gpu = "the first case of each test; --device cuda takes all" if config.getoption("--device") == "cpu" else "all"
    vectors = config.getoption("--cpu-capability") or "this processor's own"
    return [
        f"instruction set: {vectors} (--cpu-capability)",
        f"tests/gpu: {of_gpu}",
        "tests/cuda_build: on a CUDA build of torch alone (scripts/test.sh --cuda-build)",
    ]


# the folders with the longest files come first, so that no worker ends with one while the others have nothing to do
LONG = ("end_to_end", "scripts", "export", "ops", "models", "compat", "configs", "data_prep")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch  # the process that only hands out the tests goes without it

    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    kept = {
        "gpu": lambda item: config.getoption("--device") != "cpu" or first[item.nodeid.partition("[")[0]] is item,
        "cuda_build": lambda item: torch.version.cuda is not None,
    }
    items[:] = [item for item in items if kept.get(item.path.parent.name, bool)(item)]
    items.sort(key=lambda item: LONG.index(item.path.parent.name) if item.path.parent.name in LONG else len(LONG))


def pytest_collection_finish() -> None:
    parse_flags_once()
    gc.freeze()  # garbage collections leave out what is there now


def parse_flags_once() -> None:
    """Have Hydra parse each of fairseq's 300 flags once and copy no repository: a third of a command line's time."""
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra.core.override_parser.overrides_parser import OverridesParser

    def take(self: Any, delegate: Any) -> None:
        self.delegate, self.cache = delegate, {}

    parse = functools.cache(OverridesParser.create().parse_rule)
    OverridesParser.parse_rule = lambda self, text, rule: copy.copy(parse(text, rule))
    CachingConfigRepository.__init__ = take


@pytest.fixture(autouse=True)
def loggers_as_new() -> None:
    reset_loggers()


def reset_loggers() -> None:
    """Undo what commands of this project do to loggers: they are processes of their own otherwise."""
    for name in ("fairseq", "hydra", "lightconv_plugin"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def environment_as_new() -> Iterator[None]:
    """Undo what commands and libraries do to the environment of this process, which elsewhere is theirs alone."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def forks() -> Iterator[None]:
    """Have commands of Python forked from this process rather than started (forks.py)."""
    from tests.forks import Popen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Popen)
        yield
