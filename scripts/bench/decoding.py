"""``scripts.bench decode``: one decoding step with its beams re-ordered, and beam search from end to end."""

import contextlib
import copy
import statistics
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lightconv_plugin import ops
from scripts.bench import ctranslate2
from scripts.bench.operators import Shape, fairseq_layer
from scripts.bench.timing import Row, kernels_of, median_times, precisions, products_in, spread, take_turns
from scripts.common.errors import UserError
from scripts.fairseq_io.models import TaskAndModel, translation

WIDTH, BEAM = 31, 4
BASELINE = ("transformer_iwslt_de_en", "translation", "fp32")
NO_GRAPH = "pla_translation, no graph"
KERNELS = {"step_candidates": 2, "promote_types": 0, "_unsafe_view": 0}  # of an operator, where it is not one


def tables(args: Namespace, device: torch.device) -> Iterator[Iterator[Row]]:
    """Return what ``decode`` measures."""
    if args.only == "count":
        yield count_kernels(args)
        return
    peers = ctranslate2.compute_types(device)
    if args.only != "search":
        yield measure_steps(args, device)
    if args.only != "steps":
        yield measure_search(args, device, precisions(args), peers)


def measure_steps(args: Namespace, device: torch.device) -> Iterator[Row]:
    """The operator alone (kernels given) at (rows, channels), K = 31, state full, re-ordered after every step."""
    for operator, rows, channels in product(("light", "dynamic"), args.rows, args.channels):
        given: dict[str, Any] = {"device": device, "dtype": getattr(torch, args.dtype)}
        shape = Shape(1, rows, channels, channels // 64, WIDTH, causal=True)
        x = torch.randn(1, rows, channels, **given)
        logits = torch.randn(*((1, rows) if operator == "dynamic" else ()), shape.H, WIDTH, **given)
        order = torch.arange(0, rows, BEAM).repeat_interleave(BEAM) + torch.randint(BEAM, (rows,))
        cases = {
            "ours": our_step(x, logits, order.to(device)),
            "fairseq": fairseq_step(operator, shape, x, logits, order.to(device)),
        }
        with torch.no_grad():
            for _, case in product(range(WIDTH), cases.values()):
                case()
            times = median_times(cases, args.seconds)
        yield [
            ("operator", "operator", "{}", operator),
            ("rows", "rows", "{}", rows),
            ("C", "channels", "{}", channels),
            ("ours ms", "ours_ms", "{:.2f}", times["ours"] * 1e3),
            ("fairseq ms", "fairseq_ms", "{:.2f}", times["fairseq"] * 1e3),
            ("ratio", "ratio", "{:.1f}x", times["fairseq"] / times["ours"]),
            ("GB/s", "gbytes", "{:.1f}", WIDTH * x.nbytes / times["ours"] / 1e9),
        ]


def our_step(x: torch.Tensor, logits: torch.Tensor, order: torch.Tensor) -> Callable[[], None]:
    """A step of this project's operator, its beams re-ordered."""
    state: dict[str, torch.Tensor] | None = None

    def step() -> None:
        nonlocal state
        _, state = ops.conv_step(x, logits, state)
        state = ops.reorder_state(state, order)

    return step


def fairseq_step(
    operator: str, shape: Shape, x: torch.Tensor, logits: torch.Tensor, order: torch.Tensor
) -> Callable[[], None]:
    """A step of fairseq's module, its beams re-ordered."""
    module: Any = fairseq_layer(operator, shape, x, None if operator == "light" else logits)[0].eval()
    state: dict[str, Any] = {}

    def step() -> None:
        module(x, incremental_state=state)
        module.reorder_incremental_state(state, order)

    return step


class Search:
    """A model that is ready to be searched, every hypothesis being of ``length`` words."""

    def __init__(self, built: TaskAndModel, length: int, device: torch.device, precision: str) -> None:
        self.built, self.length, self.device, self.precision = built, length, device, precision
        built.model.to(device, torch.float16 if precision == "fp16" else torch.float32).eval()
        with products_in(precision, built.args.arch):
            built.model.make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)
            self.generator = self.new_generator()

    def new_generator(self) -> Any:
        options = Namespace(beam=BEAM, min_len=self.length, max_len_a=0, max_len_b=self.length)
        return self.built.task.build_generator([self.built.model], options)

    def without_graphs(self) -> "Search":
        """The same model, searched kernel by kernel."""
        other = copy.copy(self)
        other.generator = self.new_generator()
        other.generator.captures = False
        return other

    def run(self, source: torch.Tensor) -> Callable[[], None]:
        """Beam search over ``source`` (sentences, length)."""
        inputs = {"src_tokens": source, "src_lengths": torch.full((len(source),), self.length)}
        on_device = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        sample = {"id": torch.arange(len(source)), "net_input": on_device}

        def search() -> None:
            with torch.no_grad(), products_in(self.precision, self.built.args.arch):
                for hypotheses in self.generator.generate([self.built.model], sample):
                    if len(hypotheses[0]["tokens"]) != self.length + 1:
                        raise RuntimeError(
                            f"a hypothesis of {len(hypotheses[0]['tokens'])} words, not {self.length + 1}"
                        )

        return search


def measure_search(args: Namespace, device: torch.device, precisions: list[str], peers: list[str]) -> Iterator[Row]:
    """Beam 4 with the IWSLT architectures and random weights; every model writes ``args.length`` words.

    ``precisions``: fp32 first; of the products of fairseq's Transformer and of our own search. fp16, for a GPU, is that
    of whole models, fairseq's LightConv too, and is compared with its own Transformer. On a GPU our search is measured
    without graphs instead of our models in fairseq's search. ``peers``: types that CTranslate2 computes in.
    """
    length, whole = args.length, [name for name in precisions if name in ("fp32", "fp16")]
    lightweight = ["--encoder-conv-type", "lightweight", "--decoder-conv-type", "lightweight"]
    entries = [(*BASELINE[:2], [], precisions), ("lightconv_iwslt_de_en", "translation", lightweight, whole)]
    for arch in ("pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"):
        entries += [(arch, "translation", [], ["fp32"])] if device.type == "cpu" else []
        entries += [(arch, "pla_translation", [], precisions)]
    searches = {
        (arch, task, precision): Search(translation(arch, args.vocab_size, flags, task=task), length, device, precision)
        for arch, task, flags, several in entries
        for precision in several
    }
    if device.type == "cuda":
        searches |= {
            (arch, NO_GRAPH, precision): search.without_graphs()
            for (arch, task, precision), search in searches.items()
            if task == "pla_translation"
        }
    built = searches[BASELINE].built
    translators = {name: ctranslate2.Translator(built, device, name) for name in peers}
    words = built.task.source_dictionary
    for sentences in args.sentences:
        source = torch.randint(
            words.nspecial, len(words), (sentences, length), generator=torch.Generator().manual_seed(1)
        )
        source[:, -1] = words.eos()
        cases = {key: search.run(source) for key, search in searches.items()}
        for name, peer in translators.items():
            cases[BASELINE[0], "CTranslate2", name] = peer.run(source, beam=BEAM, length=length)
        turns = take_turns(cases, args.seconds)
        for (arch, task, precision), times in turns.items():
            taken = statistics.median(times)
            baseline = statistics.median(turns[*BASELINE[:2], "fp16" if precision == "fp16" else "fp32"])
            own = (arch, task, precision) in searches  # others launch kernels in a process of their own
            found = kernels_of(cases[arch, task, precision], device) if own else None
            kernels, kernel_seconds = (each / (length + 1) for each in found) if found else (None, None)
            yield [
                ("model", "model", "{}", arch),
                ("task", "task", "{}", task),
                ("products", "precision", "{}", precision),
                ("sentences", "sentences", "{}", sentences),
                ("sentences/s", "sentences_a_second", "{:.2f}", sentences / taken),
                ("+-", "spread", "{:.0%}", spread(times)),
                ("ms a token", "token_ms", "{:.1f}", taken / (length + 1) * 1e3),
                ("to fairseq's transformer", "to_transformer", "{:.2f}x", baseline / taken),
                ("kernels a token", "kernels", "{:.0f}", kernels),
                ("their ms", "kernels_ms", "{:.2f}", kernel_seconds and kernel_seconds * 1e3),
            ]


class _Launches(TorchDispatchMode):
    """Count the operators that launch kernels: no views, and no memory without content."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        returned = [each.alias_info for each in function._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in returned)
        nothing = is_view or "empty" in name or function.namespace == "prim"
        self.count[name] += 0 if nothing else KERNELS.get(name, 1)
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def pretended_gpu(dtype: torch.dtype) -> Iterator[None]:
    """Have all tensors made on a GPU that is not there, of ``dtype`` unless told: shapes without data."""
    # parameters are of the class of pretended tensors, and else as plain as on a GPU; the package's attribute of that
    # name is a function
    linear = sys.modules["lightconv_plugin.modules.linear"]
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with (
            mock.patch.object(linear, "_is_plain_tensor", lambda p: p is None or type(p) is FakeTensor),
            # fairseq asks so for a shape, and torch for the data
            mock.patch("torch.onnx.operators.shape_as_tensor", lambda x: x.shape),
            FakeTensorMode(allow_non_fake_inputs=True),
            torch.device("cuda"),
        ):
            yield
    finally:
        torch.set_default_dtype(default)


def count_kernels(args: Namespace) -> Iterator[Row]:
    """Kernels of a captured search, by operator, without a GPU: of a step, and of what is done once a batch.

    A product, a sort and a choice of the best may be several kernels on a GPU; here they count as one.

    Raises:
        UserError: this torch is no CUDA build, which alone knows tensors on a GPU.
    """
    from lightconv_plugin.tasks.device_search import DeviceSearch, Rules

    if torch.version.cuda is None:
        raise UserError(f"--only count takes a CUDA build of torch, with a GPU or without; this is {torch.__version__}")
    rules = Rules(beam=BEAM, pad=1, eos=2, unk=3, unk_penalty=0.0, temperature=1.0, stepwise=None)
    for arch in ("pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"):
        dtype = getattr(torch, args.dtype)
        with pretended_gpu(dtype), torch.no_grad():
            model = translation(arch, args.vocab_size, [], task="pla_translation").model.eval()
            for module in model.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    if buffer.is_floating_point():
                        module.register_buffer(name, buffer.to(dtype))
            sizes = {"sentences": args.sentences[0], "length": args.length, "longest": args.length + 1}
            search = DeviceSearch([model], rules, **sizes, device="cuda")
            with _Launches() as batch:
                search.begin()
            with _Launches() as step:
                search.step()
        counts = step.count | batch.count  # the larger of both, for the names alone
        names = sorted(filter(counts.get, counts), key=lambda name: (-step.count[name], -batch.count[name]))
        found = [(name, step.count[name], batch.count[name]) for name in names]
        for name, of_step, of_batch in [*found, ("all", step.count.total(), batch.count.total())]:
            yield [
                ("model", "model", "{}", arch),
                ("operator", "operator", "{}", name),
                ("kernels a step", "step", "{}", of_step),
                ("a batch", "batch", "{}", of_batch),
            ]
