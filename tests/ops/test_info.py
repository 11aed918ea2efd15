"""``python -m lightconv_plugin.info``: when all works, without a compiler, and with a backend that computes wrongly."""

import os
import signal
import subprocess
import sys

import pytest

from lightconv_plugin import info, ops

# first call both convolutions, as any program does
CODE = """
import logging, torch
from lightconv_plugin import info, ops
logging.basicConfig()
for _ in range(2):
    ops.light_conv(torch.ones(7, 2, 6), torch.ones(3, 4, requires_grad=True), padding_l=1).sum().backward()
    ops.dynamic_conv(torch.ones(7, 2, 6), torch.ones(7, 2, 3, 4), padding_l=1)
info.main([])
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CODE], env=os.environ | environment, capture_output=True, text=True)


def test_it_ends_without_a_traceback_when_nobody_reads_on():
    command = f"{sys.executable} -m lightconv_plugin.info | head -n 1"
    process = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (128 + signal.SIGPIPE, "")


def test_vectors_are_no_wider_than_torchs():
    printed = run(ATEN_CPU_CAPABILITY="default").stdout
    assert "native, cpu  ready: vectors of 128 bits" in printed
    assert printed.count(", ok") >= 6
    assert "none" in printed.split("units for products in bfloat16")[1].splitlines()[0]


def test_without_a_compiler_the_reference_runs_with_one_warning(tmp_path):
    process = run(CXX="/nonexistent", PATH=str(tmp_path), LIGHTCONV_CACHE=str(tmp_path / "cache"))
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("WARNING") == process.stderr.count("no C++ compiler was found") == 1
    assert "reference  ready" in process.stdout
    assert "native, cpu  not available" in process.stdout
    assert "apt install g++" in process.stdout


def test_a_backend_that_computes_wrongly_is_detected(monkeypatch, capsys):
    right = ops.light_conv
    monkeypatch.setattr(ops, "light_conv", lambda *args, **options: 1.01 * right(*args, **options))
    with pytest.raises(SystemExit, match="do not train with this backend"):
        info.main([])
    assert "light_conv, K = 31, float32: largest error" in capsys.readouterr().out
