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

# prefixes of variables that change what programs do: tests start without a user's own
OWN = (
    *("ATEN_", "COLUMNS", "DNNL_", "FAIRSEQ_", "GIT_", "HF_", "LANG", "LC_", "LIGHTCONV_BACKEND", "LIGHTCONV_MATMUL"),
    *("MASTER_", "MPL", "ONEDNN_", "PIP_", "PYTHONIOENCODING", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "RANK", "SLURM_"),
    *("TZ", "WORLD_SIZE"),
)
for _name in [name for name in os.environ if name.startswith(OWN)]:
    del os.environ[_name]
os.environ |= {"LC_ALL": "C.UTF-8", "MPLBACKEND": "Agg", "PIP_CONFIG_FILE": os.devnull}
os.environ |= {"OMP_NUM_THREADS": "1"}  # tests run in several processes, and a fork does not have OpenMP's threads
os.environ |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "commit.gpgsign", "GIT_CONFIG_VALUE_0": "false"}

os.environ.update(environment())  # tests start modules of this project as commands, from any folder

# variables that limit torch and our kernels, MKL and oneDNN to the vectors of an older processor
CAPABILITIES = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}

os.fsync = lambda fd: None  # fsync protects files from a power failure, which no test has, and is slow

# a shell's background jobs ignore it, and the programs that tests interrupt would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)  # no time limits: the machine may be busy
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put all temporary files of this run into a folder that is removed at its end: killed programs leave theirs."""
    os.environ.update(CAPABILITIES.get(config.getoption("--cpu-capability"), {}))  # before anything imports torch
    if hasattr(config, "workerinput"):
        return  # a worker inherits the variables
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest's folders stay, for inspection
    folder = tempfile.TemporaryDirectory(prefix="lightconv-tests-", ignore_cleanup_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = folder.name
    config.add_cleanup(folder.cleanup)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device for tests/gpu; on cpu, the first case of each test runs")
    parser.addoption("--cpu-capability", choices=CAPABILITIES, help="limit vectors to those of this instruction set")


def pytest_report_header(config: pytest.Config) -> list[str]:
    cases = "the first case of each test; --device cuda runs all" if config.getoption("--device") == "cpu" else "all"
    vectors = config.getoption("--cpu-capability") or "this processor's own"
    return [
        f"instruction set: {vectors} (--cpu-capability)",
        f"tests/gpu: {cases}",
        "tests/cuda_build: runs with a CUDA build of torch only (scripts/test.sh --cuda-build)",
    ]


# folders with the slowest files come first, so that at the end no worker has a slow file while the others are idle
LONG = ("end_to_end", "scripts", "export", "ops", "models", "compat", "configs", "data_prep")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch  # here, since the process that only distributes tests to workers does not need it

    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    is_selected = {
        "gpu": lambda item: config.getoption("--device") != "cpu" or first[item.nodeid.partition("[")[0]] is item,
        "cuda_build": lambda item: torch.version.cuda is not None,
    }
    items[:] = [item for item in items if is_selected.get(item.path.parent.name, bool)(item)]
    items.sort(key=lambda item: LONG.index(item.path.parent.name) if item.path.parent.name in LONG else len(LONG))


def pytest_collection_finish() -> None:
    parse_flags_once()
    gc.freeze()  # garbage collections skip all objects that exist now


def parse_flags_once() -> None:
    """Make Hydra parse each of fairseq's 300 flags once and copy no repository: a third of a command line's time."""
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
    """Reset the log levels that commands of this project set; outside the tests, each command has its own process."""
    for name in ("fairseq", "hydra", "lightconv_plugin"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def environment_as_new() -> Iterator[None]:
    """Restore the environment variables, which commands change; outside the tests, each has its own process."""
    original = dict(os.environ)
    yield
    if os.environ != original:
        os.environ.clear()
        os.environ.update(original)


@pytest.fixture(scope="module")
def forks() -> Iterator[None]:
    """Fork commands in Python from this process instead of starting them (forks.py)."""
    from tests.forks import Popen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Popen)
        yield
