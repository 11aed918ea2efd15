"""Models and gradients on a pretended GPU: of every architecture, for which nothing waits, and of each operator."""

import pytest
import torch

from lightconv_plugin import ops
from tests.cuda_build.autograd import backward
from tests.cuda_build.test_models import DROPOUT, PRECISIONS, of_one_type, precise
from tests.cuda_build.test_operators import DTYPES
from tests.models import test_architectures as small
from tests.waits import waits


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("arch", small.ARCHITECTURES)
def test_architectures(arch, precision, gpu):
    with precise(precision):
        task = small.task(arch)
        model, batch = of_one_type(small.build(arch, task, **DROPOUT)), small.toy_batch(arch, task)
        with waits("cuda") as met, torch.no_grad():
            for training in (False, True):
                model.train(training)(**batch["net_input"])
        assert met == []
        loss, _, _ = small.criterion(model, task)(model, batch)
        found = backward(loss)
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert [name for name, p in wanted.items() if p not in found] == []
    for parameter in wanted.values():
        assert found[parameter].shape == parameter.shape
        assert found[parameter].device.type == "cuda"
    expected = {"lightweight": "light_conv", "dynamic": "dynamic_conv"}
    for kind, operator in expected.items():
        if f"'decoder_conv_type': '{kind}'" in str(small.ENCODER_DECODER.get(arch)):
            assert {operator, "conv_backward"} <= gpu.met


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalization", ["softmax", "none"])
@pytest.mark.parametrize("dropconnect", [0.0, 0.3])
def test_convolutions(dtype, normalization, dropconnect, gpu):
    for shape, operator in (((2, 3), ops.light_conv), ((5, 2, 2, 3), ops.dynamic_conv)):
        for leaves in ("x", "weight", "both"):
            x = torch.ones(5, 2, 8, dtype=dtype, requires_grad=leaves != "weight")
            weight = torch.ones(shape, dtype=dtype, requires_grad=leaves != "x")
            out = operator(x, weight, padding_l=1, normalization=normalization, dropconnect=dropconnect)
            found = backward(out)
            assert set(found) == {t for t in (x, weight) if t.requires_grad}
            assert all(g.shape == t.shape and g.dtype == t.dtype == dtype for t, g in found.items())
    assert gpu.met == {"light_conv", "dynamic_conv", "conv_backward"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_beside_the_convolutions(dtype, gpu):
    x = torch.ones(5, 2, 8, dtype=dtype, requires_grad=True)
    for mask in (None, torch.zeros(2, 5, dtype=torch.bool)):
        assert backward(ops.glu_mask(x, mask))[x].shape == x.shape
    assert backward(ops.dropout(x, 0.1))[x].dtype == dtype
    logits = torch.ones(10, 9, dtype=dtype, requires_grad=True)
    loss, _ = ops.smoothed_nll(logits, torch.full((10,), 4), 0.1, 1)
    assert backward(loss)[logits].dtype == dtype
    weight, bias = (torch.ones(8, dtype=dtype, requires_grad=True) for _ in range(2))
    for p in (0.0, 0.3):
        found = backward(ops.residual_norm(x, x.detach().requires_grad_(), weight, bias, p, 1e-5))
        assert sorted((g.shape, g.dtype) for g in found.values()) == [((5, 2, 8), dtype)] * 2 + [((8,), dtype)] * 2
    matrix = torch.ones(6, 8, dtype=dtype, requires_grad=True)
    vector = torch.ones(6, dtype=dtype, requires_grad=True)
    found = backward(ops.linear(x, matrix, vector))
    assert {g.shape for g in found.values()} == {x.shape, matrix.shape, vector.shape}
    forward = {"glu_mask", "residual_norm", "smoothed_nll"}
    assert gpu.met == forward | {f"{name}_backward" for name in forward}
