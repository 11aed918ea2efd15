"""A search whose steps are one graph finds the hypotheses of fairseq's search on the CPU, batch after batch."""

import gc
from itertools import product

import pytest
import torch
from fairseq.tasks.translation import TranslationTask

from lightconv_plugin import ops
from lightconv_plugin.tasks.translation import FastTranslationTask
from tests.gpu.test_decoding import models, to_device
from tests.gpu.test_operators import make
from tests.ops.test_fused_decode import begun
from tests.tasks import test_beam_search as search
from tests.tasks.test_beam_search import captured
from tests.tolerances import assert_close

ARCHITECTURES = ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"]
BATCHES = [[7, 5, 4, 1, 6, 2], [3], [9, 17], [2, 6, 6, 1, 7]]  # the first and the last share a graph


@pytest.mark.parametrize(
    ("archs", "options"),
    [
        *product(
            ([arch] for arch in ARCHITECTURES),
            (
                {"beam": 1},
                {"beam": 4, "max_len_b": 60},
                {"beam": 5, "min_len": 3, "unkpen": 1.5, "temperature": 0.6, "lenpen": 0.6, "max_len_a": 0.5},
            ),
        ),
        (ARCHITECTURES, {"no_repeat_ngram_size": 2, "min_len": 4, "temperature": 0.6}),
        (ARCHITECTURES[1:], {"alpha": 0.6, "max_len_b": 12}),  # by our own search on the CPU
    ],
    ids=str,
)
@torch.no_grad()
def test_hypotheses_are_fairseqs(archs, options, device):
    pairs = [models(arch, types=60) for arch in archs]
    built, moved = [on_cpu for on_cpu, _ in pairs], [copied.to(device) for _, copied in pairs]
    theirs = search.generator(built, **options, task=FastTranslationTask if "alpha" in options else TranslationTask)
    ours = search.generator(moved, **options)
    for lengths in BATCHES:
        batch = search.sample(lengths, types=60, seed=len(lengths))
        search.assert_same(captured(ours, to_device(batch, device)), theirs.generate([], batch))
    assert len(ours._captured._sizes) == 3
    if device.type == "cuda":
        generated = ours.generate([], to_device(batch, device))  # uses the graphs by itself
        search.assert_same(generated, theirs.generate([], batch))


@torch.no_grad()
def test_weights_that_move_or_change_are_read(device):
    on_cpu, moved = models(ARCHITECTURES[0], types=60)
    theirs, ours = search.generators([on_cpu])[0], search.generators([moved.to(device)])[1]
    batch = search.sample([4, 6], types=60)
    for change in (lambda built: built, lambda built: built.double().float(), halved):
        change(on_cpu), change(moved)
        search.assert_same(captured(ours, to_device(batch, device)), theirs.generate([], batch))


def halved(built):
    for weight in built.decoder.layers.parameters():
        weight.mul_(0.5)


@torch.no_grad()
def test_memory_is_freed_with_the_generator(device):
    if device.type == "cpu":
        pytest.skip("PyTorch does not count the memory of a CPU")
    _, moved = models(ARCHITECTURES[1], types=60)
    moved.to(device)
    batch = to_device(search.sample([4, 6], types=60), device)
    allocated = []
    for _ in range(4):
        ours = search.generators([moved])[1]
        captured(ours, batch)
        del ours
        gc.collect()
        allocated.append(torch.cuda.memory_allocated())
    assert allocated[1] == allocated[-1]


@pytest.mark.parametrize(("stepwise", "beam"), [*product((False, True), (4, 5))])
def test_the_end_of_a_step(stepwise, beam, device):
    """Its kernel equals the reference implementation on the CPU, for more steps than the rings have slots."""
    generator = torch.Generator().manual_seed(beam)
    want = begun(37, beam, 12, 9, 0, generator)
    got = ops.Beams(*(tensor.to(device, copy=True) for tensor in want))
    for _ in range(11):
        values = torch.randn(37, 2 * beam, generator=generator).sort(descending=True).values
        words = torch.randint(2, 7, values.shape, generator=generator)
        words[:, beam:].clamp_(min=3)  # no more ends than hypotheses
        parents = torch.randint(beam, values.shape, generator=generator)
        for beams, target in ((want, "cpu"), (got, device)):
            ops.search_step(values.to(target), words.to(target), parents.to(target), beams, eos=2, stepwise=stepwise)
    for name, a, b in zip(ops.Beams._fields, got, want, strict=True):
        assert torch.equal(a.cpu(), b), name


@torch.no_grad()
def test_relu_within_a_product(dtype, device):
    x, weight, bias = (make(device, *shape, dtype=dtype) for shape in ((1, 12, 64), (96, 64), (96,)))
    got = ops.linear(x / 8, weight, bias, relu=True)
    assert_close(got, torch.relu(torch.nn.functional.linear(x.double() / 8, weight.double(), bias.double())), dtype)
    assert got.min() == 0
