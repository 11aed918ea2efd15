import logging

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops import dispatch

X = torch.randn(5, 2, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.light_conv(X, torch.zeros(4, 3), padding_l=1), "4 heads do not divide the 6 channels"),
        (lambda: ops.light_conv(X, torch.zeros(2, 3), padding_l=3), "padding_l is 3; a kernel of width 3 takes 0..2"),
        (lambda: ops.light_conv(X, torch.zeros(2, 3), padding_l=-1), "padding_l is -1"),
        (lambda: ops.light_conv(X[0], torch.zeros(2, 3), padding_l=1), r"expected x \(T, B, C\) .* got x \(2, 6\)"),
        (lambda: ops.light_conv(X[:0], torch.zeros(2, 3), padding_l=1), "the sequence is empty"),
        (lambda: ops.light_conv(X.long(), torch.zeros(2, 3), padding_l=1), "floating-point.*torch.int64"),
        (lambda: ops.dynamic_conv(X, torch.zeros(2, 3), padding_l=1), r"weight \(T, B, H, K\)"),
        (lambda: ops.dynamic_conv(X, torch.zeros(5, 1, 2, 3), padding_l=1), r"\(5, 2\) as in x; got .*\(5, 1, 2, 3\)"),
        (
            lambda: ops.conv_step(X, torch.zeros(2, 3), None),
            r"one position is expected, x \(1, B, C\); got \(5, 2, 6\)",
        ),
        (lambda: ops.conv_step(X[:1], torch.zeros(2, 2, 2, 9), None), r"\(1, 2, H, K\); got \(2, 2, 2, 9\)"),
        (lambda: ops.conv_step(X[:1], torch.zeros(9), None), r"weight \(H, K\) or \(1, B, H, K\); got \(9,\)"),
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
    monkeypatch.setattr(dispatch, "_announced", set())
    with caplog.at_level(logging.INFO, logger="lightconv_plugin"):
        for _ in range(3):
            ops.light_conv(X, torch.zeros(2, 3), padding_l=1, backend="reference")
    assert [r.getMessage() for r in caplog.records] == ["lightconv_plugin: light_conv runs on the reference backend"]


def test_public_operators_agree_with_the_definition():
    w = torch.randn(5, 2, 3, 4)
    assert torch.equal(
        ops.dynamic_conv(X, w, padding_l=1, backend="reference"), ops.reference.dynamic_conv(X, w, padding_l=1)
    )
