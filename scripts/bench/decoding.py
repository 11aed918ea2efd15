"""``scripts.bench decode``: the time of one decoding step with reordering of the beams, and of a whole search."""

from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest.mock import patch

import torch

from lightconv_plugin import ops
from lightconv_plugin.ops import backend
from scripts.bench import ctranslate2
from scripts.bench.operators import Shape, fairseq_layer
from scripts.bench.timing import (
    Row,
    clock_of,
    median_times,
    precisions,
    products_in,
    spread,
    take_turns,
    typical_of,
)
from scripts.fairseq_io.models import TaskAndModel, translation

WIDTH, BEAM = 31, 4
ROWS, CHANNELS = (128, 1024), (512, 1024)  # sizes at which a single step is timed
BASELINE = ("transformer_iwslt_de_en", "translation", "fp32")
SEARCH_OPERATORS = ("attend", "step_candidates", "search_step", "beam_search")  # those that only searches use
BY_REFERENCE = "pla_translation, reference"  # its rows: the search with the reference implementations of these


def tables(args: Namespace, device: torch.device) -> Iterator[Iterator[Row]]:
    """Yield the tables of ``decode``: of single steps, then of whole searches."""
    yield measure_steps(args, device)
    yield measure_search(args, device, precisions(args), ctranslate2.compute_types(device))


def measure_steps(args: Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each operator and size: the time of one step, with K = 31 and a full state.

    The beams are reordered after every step. The kernels' logits are given, so the operator alone is timed.
    """
    for operator, rows, channels in product(("light", "dynamic"), ROWS, CHANNELS):
        options: dict[str, Any] = {"device": device, "dtype": getattr(torch, args.dtype)}
        shape = Shape(1, rows, channels, channels // 64, WIDTH, causal=True)
        x = torch.randn(1, rows, channels, **options)
        logits = torch.randn(*((1, rows) if operator == "dynamic" else ()), shape.H, WIDTH, **options)
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
            ("operator", "{}", operator),
            ("rows", "{}", rows),
            ("C", "{}", channels),
            ("ours ms", "{:.2f}", times["ours"] * 1e3),
            ("fairseq ms", "{:.2f}", times["fairseq"] * 1e3),
            ("ratio", "{:.1f}x", times["fairseq"] / times["ours"]),
            ("GB/s", "{:.1f}", WIDTH * x.nbytes / times["ours"] / 1e9),
        ]


def our_step(x: torch.Tensor, logits: torch.Tensor, order: torch.Tensor) -> Callable[[], None]:
    """Return a function that runs a step of this project's operator and reorders the beams."""
    state: dict[str, torch.Tensor] | None = None

    def step() -> None:
        nonlocal state
        _, state = ops.conv_step(x, logits, state)
        state = ops.reorder_state(state, order)

    return step


def fairseq_step(
    operator: str, shape: Shape, x: torch.Tensor, logits: torch.Tensor, order: torch.Tensor
) -> Callable[[], None]:
    """Return a function that runs a step of fairseq's module and reorders the beams."""
    module: Any = fairseq_layer(operator, shape, x, logits)[0].eval()
    state: dict[str, Any] = {}

    def step() -> None:
        module(x, incremental_state=state)
        module.reorder_incremental_state(state, order)

    return step


@contextmanager
def by_reference(operators: Collection[str]) -> Iterator[None]:
    """Run the reference implementations of these operators within the block."""
    if not operators:  # nothing in between, so that no time is added to the other searches
        yield
        return
    choose = backend.choose_backend

    def chosen(operator: str, *arguments: Any) -> str:
        return "reference" if operator in operators else choose(operator, *arguments)

    with patch.object(backend, "choose_backend", chosen):
        yield


class Search:
    """A model and its beam search, in which every hypothesis has ``length`` words.

    The operators in ``reference`` run as their reference implementations.
    """

    def __init__(
        self, built: TaskAndModel, length: int, device: torch.device, precision: str, reference: Collection[str] = ()
    ) -> None:
        self.built, self.length, self.device, self.precision = built, length, device, precision
        self.reference = reference
        built.model.to(device, torch.float16 if precision == "fp16" else torch.float32).eval()
        with products_in(precision, built.args.arch):
            built.model.make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)
            options = Namespace(beam=BEAM, min_len=length, max_len_a=0, max_len_b=length)
            self.generator = built.task.build_generator([built.model], options)

    def made_by(self) -> str:
        """Return how the last search ran, see ``BeamSearchGenerator``."""
        return getattr(self.generator, "searched_by", "fairseq")

    def run(self, source: torch.Tensor) -> Callable[[], None]:
        """Return a function that runs beam search over ``source`` (sentences, length)."""
        inputs = {"src_tokens": source, "src_lengths": torch.full((len(source),), self.length)}
        on_device = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        sample = {"id": torch.arange(len(source)), "net_input": on_device}

        def search() -> None:
            with torch.no_grad(), products_in(self.precision, self.built.args.arch), by_reference(self.reference):
                for best, *_ in self.generator.generate([self.built.model], sample):
                    assert len(best["tokens"]) == self.length + 1, "all hypotheses must have the same length"

        return search


def measure_search(args: Namespace, device: torch.device, precisions: list[str], peers: list[str]) -> Iterator[Row]:
    """Measure beam 4 with the IWSLT architectures and random weights; every model writes ``args.length`` words.

    Args:
        args: the command's arguments.
        device: where the searches run.
        precisions: fp32 first. All of them apply to our own search, all except int8 to fairseq's Transformer, and fp32
            and fp16 to fairseq's LightConv. fp16, on a GPU, is the type of the whole model, and is compared with
            fairseq's Transformer in fp16; all others are compared with fairseq's Transformer in fp32.
        peers: the types in which CTranslate2 is timed.
    """
    length, whole = args.length, [name for name in precisions if name in ("fp32", "fp16")]
    lightweight = ["--encoder-conv-type", "lightweight", "--decoder-conv-type", "lightweight"]
    theirs = [name for name in precisions if name != "int8"]
    entries = [(*BASELINE[:2], [], theirs), ("lightconv_iwslt_de_en", "translation", lightweight, whole)]
    for arch in ("pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"):
        entries += [(arch, "translation", [], ["fp32"])] if device.type == "cpu" else []
        entries += [(arch, "pla_translation", [], precisions)]
        entries += [(arch, BY_REFERENCE, [], precisions)] if args.reference else []
    searches = {}
    for arch, task, flags, several in entries:
        for precision in several:
            model = translation(arch, args.vocab_size, flags, task=task.split(",")[0])
            reference = SEARCH_OPERATORS if task == BY_REFERENCE else ()
            searches[arch, task, precision] = Search(model, length, device, precision, reference)
    built = searches[BASELINE].built
    translators = {name: ctranslate2.Translator(built, device, name) for name in peers}
    words = built.task.source_dictionary
    for sentences in args.sentences:
        source = torch.randint(
            words.nspecial, len(words), (sentences, length), generator=torch.Generator().manual_seed(1)
        )
        source[:, -1] = words.eos()
        cases = {key: search.run(source) for key, search in searches.items()}
        made_by = {key: search.made_by for key, search in searches.items()}
        for name, peer in translators.items():
            cases[BASELINE[0], "CTranslate2", name] = peer.run(source, beam=BEAM, length=length)
            made_by[BASELINE[0], "CTranslate2", name] = lambda: "CTranslate2"
        turns = take_turns(cases, args.seconds, clock_of(args, [peer.pid for peer in translators.values()]))
        for (arch, task, precision), times in turns.items():
            taken = typical_of(args, times)
            baseline = typical_of(args, turns[*BASELINE[:2], "fp16" if precision == "fp16" else "fp32"])
            yield [
                ("model", "{}", arch),
                ("task", "{}", task),
                ("products", "{}", precision),
                ("made by", "{}", made_by[arch, task, precision]()),
                ("sentences", "{}", sentences),
                ("sentences/s", "{:.2f}", sentences / taken),
                ("+-", "{:.0%}", spread(times)),
                ("ms a token", "{:.1f}", taken / (length + 1) * 1e3),
                ("to fairseq's transformer", "{:.2f}x", baseline / taken),
            ]
