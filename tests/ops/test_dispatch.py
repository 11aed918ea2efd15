import logging

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops import backend
from tests.tolerances import assert_close

X = torch.randn(5, 2, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.light_conv(X, torch.zeros(4, 3), padding_l=1), "4 heads do not divide the 6 channels"),
        (lambda: ops.light_conv(X, torch.zeros(0, 3), padding_l=1), "0 heads do not divide the 6 channels"),
        (lambda: ops.light_conv(X, torch.zeros(2, 3), padding_l=3), "padding_l is 3; a kernel of width 3 takes 0..2"),
        (lambda: ops.light_conv(X, torch.zeros(2, 3), padding_l=-1), "padding_l is -1"),
        (
            lambda: ops.light_conv(X, torch.zeros(2, 3), padding_l=1, dropconnect=1.0),
            "light_conv: dropconnect is 1.0; expected 0 <= p < 1",
        ),
        (
            lambda: ops.dynamic_conv(X, torch.zeros(5, 2, 2, 3), padding_l=1, dropconnect=-0.1, backend="reference"),
            "dynamic_conv: dropconnect is -0.1; expected 0 <= p < 1",
        ),
        (lambda: ops.light_conv(X[0], torch.zeros(2, 3), padding_l=1), r"expected x \(T, B, C\) .* got x \(2, 6\)"),
        (lambda: ops.light_conv(X.long(), torch.zeros(2, 3), padding_l=1), "floating-point.*torch.int64"),
        (lambda: ops.dynamic_conv(X, torch.zeros(2, 3), padding_l=1), r"weight \(T, B, H, K\)"),
        (lambda: ops.dynamic_conv(X, torch.zeros(5, 1, 2, 3), padding_l=1), r"\(5, 2\) as in x; got .*\(5, 1, 2, 3\)"),
        (
            lambda: ops.conv_step(X[:0], torch.zeros(2, 3), None),
            r"a position is expected, x \(T, B, C\); got \(0, 2, 6\)",
        ),
        (lambda: ops.conv_step(X[:1], torch.zeros(2, 2, 2, 9), None), r"\(1, 2, H, K\); got \(2, 2, 2, 9\)"),
        (lambda: ops.conv_step(X[:1], torch.zeros(9), None), r"weight \(H, K\) or \(T, B, H, K\); got \(9,\)"),
        (
            lambda: ops.light_conv(X, torch.zeros(2, 3), padding_l=1, normalization="max"),
            "unknown kernel normal.*'max'",
        ),
        (
            lambda: ops.light_conv(X, torch.zeros(2, 3), padding_l=1, backend="fpga"),
            "'fpga' is not available; expected",
        ),
    ],
)
def test_refusals_say_what_was_got_and_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_backend_that_runs_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(backend, "_announced", set())
    with caplog.at_level(logging.INFO, logger="lightconv_plugin"):
        for _ in range(3):
            ops.light_conv(X, torch.zeros(2, 3), padding_l=1)
    assert [r.getMessage() for r in caplog.records] == ["lightconv_plugin: light_conv runs on the native backend"]


@pytest.mark.parametrize(
    ("setting", "argument", "expected"),
    [
        (None, "auto", "native"),
        ("auto", "auto", "native"),
        ("reference", "auto", "reference"),
        ("native", "auto", "native"),
        ("reference", "native", "native"),
        ("native", "reference", "reference"),
    ],
)
def test_the_argument_goes_before_the_environment(monkeypatch, setting, argument, expected):
    if setting is None:
        monkeypatch.delenv(backend.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(backend.VARIABLE, setting)
    assert ops.choose_backend("light_conv", argument, X) == expected


def test_a_backend_unknown_to_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "fpga")
    with pytest.raises(ValueError, match="backend 'fpga' is not available; expected one of: auto"):
        ops.light_conv(X, torch.zeros(2, 3), padding_l=1)


def test_a_named_backend_is_never_replaced():
    with pytest.raises(ValueError, match=r"backend 'native' was asked for, and cannot run light_conv: .*torch.float16"):
        ops.light_conv(X.half(), torch.zeros(2, 3).half(), padding_l=1, backend="native")


def test_what_native_refuses_runs_on_the_reference_with_one_warning(caplog, monkeypatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    monkeypatch.setattr(backend, "_announced", set())
    monkeypatch.setattr(backend, "_refusals", set())
    w = torch.zeros(5, 2, 2, 3).half()
    for _ in range(2):
        out = ops.dynamic_conv(X.half(), w, padding_l=1)
        ops.light_conv(X.half(), w[0, 0], padding_l=1)
    assert torch.equal(out, ops.reference.dynamic_conv(X.half(), w, padding_l=1))
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("lightconv_plugin: the native backend is passed over, ")
    assert "3 to 12 times as long" in warnings[0]
    assert "float16" in warnings[0]


def test_public_operators_agree_with_the_definition():
    w = torch.randn(5, 2, 3, 4)
    assert_close(ops.dynamic_conv(X, w, padding_l=1), ops.reference.dynamic_conv(X, w, padding_l=1))
