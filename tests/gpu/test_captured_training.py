"""Updates as CUDA graphs, against fairseq's trainer on the same batches. On a CPU they run without graphs."""

import json
import weakref

import pytest
import torch
from fairseq.logging import metrics
from torch import distributed, multiprocessing

from tests.tolerances import TOLERANCES
from tests.training.runs import batches, begin, make_updates_on_cpu, parameters, train

PRECISIONS = {"float32": [], "bfloat16": ["--bf16"], "float16": ["--fp16", "--fp16-init-scale", "128"]}
SAME = ("ntokens", "nsentences", "wpb", "bsz", "num_updates", "lr", "clip", "loss_scale")


@pytest.fixture(autouse=True)
def rehearsed(device, monkeypatch):
    """On a CPU, make the updates without graphs."""
    if device.type == "cpu":
        make_updates_on_cpu(monkeypatch, graphs=False)


@pytest.fixture(params=PRECISIONS)
def precision(request, device):
    if device.type == "cpu" and request.param == "float16":
        pytest.skip("fairseq's float16 needs a GPU")
    return request.param


def compare(got, want, dtype):
    rtol, atol = TOLERANCES[dtype]
    assert len(got.logged) == len(want.logged) > 0
    assert not any(getattr(run.trainer, "refusal", None) for run in (got, want))
    for mine, theirs in zip(got.logged, want.logged, strict=True):
        assert mine.keys() >= theirs.keys() - {"gb_free", "by_graphs"}
        for name in theirs.keys() & set(SAME):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-6), name
        for name in theirs.keys() & {"loss", "nll_loss", "gnorm"}:
            # errors accumulate over 20 updates; fairseq rounds to three decimals
            assert mine[name] == pytest.approx(theirs[name], rel=10 * rtol, abs=10 * atol + 1e-3), name


@pytest.mark.parametrize(
    "arch", ["pla_dynamicconv_iwslt_de_en", "pla_lightconv_iwslt_de_en", "transformer", "lightconv"]
)
def test_updates_are_fairseqs(arch, precision, device, record_property):
    """Losses, norms, schedules and clipping are equal, with batches of many lengths padded to one shape."""
    runs = [
        train(begin(captured, device, *PRECISIONS[precision], arch=arch), batches(20)) for captured in (True, False)
    ]
    compare(runs[0], runs[1], getattr(torch, precision))
    got, want = (parameters(run.trainer) for run in runs)
    record_property("captured", json.dumps([f"{arch}, {precision}", f"{(got - want).abs().max():.2e}"]))
    assert runs[0].logged[-1]["loss"] < runs[0].logged[0]["loss"]


@pytest.mark.parametrize("dropout", ["0", "0.2"])
def test_a_graph_is_what_it_was_captured_from(dropout, device, monkeypatch, record_property):
    """300 updates on the same padded batches, as graphs and kernel by kernel, with an overflow in the middle."""
    count = 300 if device.type == "cuda" else 10
    flags = ["--dropout", dropout, "--attention-dropout", dropout, *PRECISIONS["float16" if count > 10 else "float32"]]
    runs = []
    for graphs in (True, False):
        if not graphs:
            make_updates_on_cpu(monkeypatch, graphs=False)
        runs.append(train(begin(True, device, *flags, "--fp16-scale-window", "100"), batches(count)))
    losses = [[logged.get("loss") for logged in run.logged] for run in runs]
    pairs = [(a, b) for a, b in zip(*losses, strict=True) if a is not None or b is not None]
    same = sum(a == b for a, b in pairs)
    record_property("graphs", json.dumps([f"dropout {dropout}", f"{same} of {len(pairs)}"]))
    compare(runs[0], runs[1], torch.float16 if count > 10 else torch.float32)


def test_update_freq(precision, device):
    flags = ["--update-freq", "3", *PRECISIONS[precision]]
    runs = [train(begin(captured, device, *flags), batches(12), update_freq=3) for captured in (True, False)]
    compare(runs[0], runs[1], getattr(torch, precision))


NAMES = ("loss", "gnorm", "wpb", "bsz", "num_updates")


def work(rank, folder, device):
    """Train on every second batch, and save the logged values and the final parameters."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", world_size=2, rank=rank)
    trainer = begin(True, device, "--distributed-world-size", "2")
    replaced = weakref.ref(trainer.model.module)
    run = train(trainer, batches(12)[rank::2])
    assert replaced() is None
    assert trainer.refusal is None
    torch.save(
        ([{name: logged[name] for name in NAMES} for logged in run.logged], parameters(trainer)), folder / str(rank)
    )
    distributed.destroy_process_group()


def test_two_processes_are_one_that_accumulates(device, tmp_path):
    """Two processes on one device equal one of fairseq's own that accumulates gradients.

    gloo averages their gradients, since NCCL needs a device for each process.
    """
    start = "spawn" if device.type == "cuda" else "fork"  # CUDA does not work in a forked process
    multiprocessing.start_processes(work, (tmp_path, device), nprocs=2, start_method=start)
    alone = train(begin(False, device), batches(12), update_freq=2)
    for rank in "01":
        logged, trained = torch.load(tmp_path / rank)
        assert len(logged) == len(alone.logged) == 6
        for mine, theirs in zip(logged, alone.logged, strict=True):
            want = {name: theirs[name] for name in NAMES}
            assert mine == pytest.approx(want, rel=1e-3, abs=1e-3)  # fairseq rounds to three decimals
        torch.testing.assert_close(trained, parameters(alone.trainer), rtol=0, atol=1e-4)


def test_an_overflow_is_skipped_as_fairseq_does(device):
    """The scale starts far too large, and rises again after four updates."""
    if device.type == "cpu":
        pytest.skip("fairseq's float16 needs a GPU")
    flags = ["--fp16", "--fp16-init-scale", str(2**24), "--fp16-scale-window", "4"]
    runs = [train(begin(captured, device, *flags), batches(24)) for captured in (True, False)]
    assert [logged == {} for logged in runs[0].logged] == [logged == {} for logged in runs[1].logged]
    assert any(logged == {} for logged in runs[0].logged)
    compare(runs[0], runs[1], torch.float16)
    scalers = [vars(run.trainer.optimizer.scaler) for run in runs]
    assert scalers[0] == scalers[1]


def test_overflows_that_the_host_reads_late(device):
    """Updates, loss scale and Adam's steps are counted as when the host waits after each update."""
    if device.type == "cpu":
        pytest.skip("fairseq's float16 needs a GPU")
    flags = ["--fp16", "--fp16-init-scale", str(2**22), "--fp16-scale-window", "4"]
    ends = []
    for interval in (1, 1000):
        trainer = begin(True, device, *flags, "--log-interval", str(interval))
        metrics.reset()
        for sample in batches(24):
            trainer.train_step([sample])
        state = trainer.state_dict()
        (moments,) = state["last_optimizer_state"]["state"].values()
        ends.append((trainer.get_num_updates(), vars(trainer.optimizer.scaler), moments["step"], parameters(trainer)))
    assert ends[0][:3] == ends[1][:3]
    assert ends[0][0] == ends[0][2] < 24
    torch.testing.assert_close(ends[0][3], ends[1][3], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("first", [False, True])
def test_training_resumes_with_and_without_graphs(first, precision, device, tmp_path):
    """Half the updates captured and half not, in either order, end as updates of one kind do."""
    samples, flags = batches(16), PRECISIONS[precision]
    whole = train(begin(not first, device, *flags), samples)
    half = train(begin(first, device, *flags), samples[:8])
    path = str(tmp_path / "checkpoint.pt")
    half.trainer.save_checkpoint(path, {"train_iterator": {"epoch": 1}})
    resumed = begin(not first, device, *flags)
    resumed.load_checkpoint(path)
    assert resumed.get_num_updates() == 8
    rest = train(resumed, samples[8:])
    rest.logged = half.logged + rest.logged
    compare(rest, whole, getattr(torch, precision))
    saved = torch.load(path, weights_only=False)["last_optimizer_state"]
    assert all(state["step"] == 8 for state in saved["state"].values())
