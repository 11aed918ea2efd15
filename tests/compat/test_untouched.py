"""Importing the plugin after fairseq changes nothing in Python, numpy, torch or any other package."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path

from lightconv_plugin.compat import commands

from .conftest import REPO, Train

CONVOLUTIONAL = """
    --arch fconv --encoder-embed-dim 16 --decoder-embed-dim 16 --decoder-out-embed-dim 16 --encoder-layers [(16,3)]
    --decoder-layers [(16,3)]
"""

# Runs in a separate process. Identities are compared while all objects are alive, so that none is reused.
COMPARISON = """
import gc, json, logging, os, signal, sys, types, warnings
import fairseq, fairseq.trainer, fairseq.models.fconv, fileinput, numpy, torch, torch.utils.data
from fairseq import checkpoint_utils, options, search, sequence_generator

OURS = ("fairseq", "fairseq_cli", "lightconv_plugin", "__main__", "__mp_main__")


def is_ours(name):
    return name.split(".")[0] in OURS


def is_of_ours(pattern):
    return any(name in str(pattern) for name in OURS)


def owners():
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and not is_ours(name):
            yield name, module
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{key}", value


def settings():
    log = {name: getattr(logger, "level", None) for name, logger in logging.Logger.manager.loggerDict.items()}
    return {
        "environment": dict(os.environ),
        "filters of warnings": [str(line) for line in warnings.filters if not is_of_ours(line[3])],
        "levels of loggers": {name: level for name, level in log.items() if level and not is_ours(name)},
        "handlers of the root logger": [*logging.root.handlers, logging.root.level],
        "types that torch reads": sorted(map(str, torch.serialization.get_safe_globals())),
        "handlers of signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "hooks of Python": [*sys.meta_path, *sys.path_hooks, *gc.callbacks, *sys.path],
        "hooks of modules": [list(value.values()) for key, value in vars(torch.nn.modules.module).items()
                             if key.startswith("_global_") and isinstance(value, dict)],
        "torch": [torch.get_default_dtype(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(),
                  torch.get_float32_matmul_precision(), torch.initial_seed()],
    }


def changes(kept, previous):
    names = [name for name, value in settings().items() if value != previous[name]]
    for name, (owner, attributes) in kept.items():
        names += [f"{name}.{key}" for key, value in attributes.items() if vars(owner).get(key) is not value]
        for key in vars(owner).keys() - attributes.keys():
            # Python itself adds modules that were imported since, and notes of types
            if not isinstance(vars(owner)[key], types.ModuleType) and not key.startswith("__"):
                names.append(f"{name}.{key}")
    return names


kept, previous = {name: (owner, dict(vars(owner))) for name, owner in owners()}, settings()
import lightconv_plugin
print(json.dumps(changes(kept, previous)))
fileinput.hook_encoded = numpy.compat = torch.nn.Linear.forward = sys.excepthook = print
torch.serialization.add_safe_globals([fairseq.trainer.Trainer])
print(json.dumps(changes(kept, previous)))
"""


def test_the_plugin_changes_nothing_of_others() -> None:
    process = subprocess.run([sys.executable, "-c", COMPARISON], capture_output=True, text=True, cwd=REPO)
    assert process.returncode == 0, process.stderr
    names, control = map(json.loads, process.stdout.splitlines()[-2:])
    assert names == []
    expected = {"types that torch reads", "fileinput.hook_encoded", "numpy.compat", "sys.excepthook"}
    assert {*expected, "torch.nn.modules.linear.Linear.forward"} <= {*control}


def test_commands_print_no_warnings(train: Train, tmp_path: Path) -> None:
    """fairseq, hydra and torch warn of fairseq's calls, which users cannot change."""
    with warnings.catch_warnings(record=True) as printed:
        warnings.simplefilter("default")
        commands.ignore_deprecations()
        assert len(train(tmp_path, "--max-update", "1", "--num-workers", "1", model=CONVOLUTIONAL)) == 1
    messages = [str(warning.message) for warning in printed]
    assert [message for message in messages if "non-full backward hooks" not in message] == []
    assert logging.getLogger("fairseq.tasks.text_to_speech").level == logging.WARNING
