"""``scripts.bench decode``: one decoding step with its beams re-ordered, and beam search from end to end."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from lightconv_plugin import ops
from scripts.benchmarks import ctranslate2
from scripts.benchmarks.peers import Shape, fairseq_layer
from scripts.benchmarks.timing import interleaved, kernels_of, products_in, spread, take_turns
from scripts.fairseq_io.models import TaskAndModel, translation

STEP_COLUMNS = [
    ("operator", "operator", "{}"), ("rows", "rows", "{}"), ("C", "channels", "{}"), ("ours ms", "ours_ms", "{:.2f}"),
    ("fairseq ms", "fairseq_ms", "{:.2f}"), ("ratio", "ratio", "{:.1f}x"), ("GB/s", "gbytes", "{:.1f}"),
]  # fmt: skip
SEARCH_COLUMNS = [
    ("model", "model", "{}"), ("task", "task", "{}"), ("products", "precision", "{}"), ("sentences", "sentences", "{}"),
    ("sentences/s", "sentences_a_second", "{:.2f}"), ("+-", "spread", "{:.0%}"), ("ms a token", "token_ms", "{:.1f}"),
    ("to fairseq's transformer", "to_transformer", "{:.2f}x"), ("kernels a token", "kernels", "{:.0f}"),
    ("their ms", "kernels_ms", "{:.2f}"),
]  # fmt: skip
WIDTH, BEAM = 31, 4
BASELINE = ("transformer_iwslt_de_en", "translation", "fp32")
NO_GRAPH = "pla_translation, no graph"


def measure_steps(
    sizes: Iterable[tuple[int, int]], dtype: torch.dtype, device: torch.device, *, seconds: float
) -> Iterator[dict[str, Any]]:
    """The operator alone (kernels given) at (rows, channels), K = 31, state full, re-ordered after every step."""
    for operator, (rows, channels) in itertools.product(("light", "dynamic"), sizes):
        heads = channels // 64
        x = torch.randn(1, rows, channels, device=device, dtype=dtype)
        shape = (heads, WIDTH) if operator == "light" else (1, rows, heads, WIDTH)
        logits = torch.randn(shape, device=device, dtype=dtype)
        order = torch.arange(0, rows, BEAM).repeat_interleave(BEAM) + torch.randint(BEAM, (rows,))
        cases = {
            "ours": _our_step(x, logits, order.to(device)),
            "fairseq": _fairseq_step(operator, x, logits, order.to(device)),
        }
        with torch.no_grad():
            for _ in range(WIDTH):
                for case in cases.values():
                    case()
            times = interleaved(cases, device, seconds=seconds)
        yield {
            "operator": operator,
            "rows": rows,
            "channels": channels,
            "ours_ms": times["ours"] * 1e3,
            "fairseq_ms": times["fairseq"] * 1e3,
            "ratio": times["fairseq"] / times["ours"],
            "gbytes": WIDTH * x.numel() * x.element_size() / times["ours"] / 1e9,
        }


def _our_step(x: torch.Tensor, logits: torch.Tensor, order: torch.Tensor) -> Callable[[], None]:
    state: dict[str, torch.Tensor] | None = None

    def step() -> None:
        nonlocal state
        _, state = ops.conv_step(x, logits, state)
        state = ops.reorder_state(state, order)

    return step


def _fairseq_step(operator: str, x: torch.Tensor, logits: torch.Tensor, order: torch.Tensor) -> Callable[[], None]:
    shape = Shape(1, x.shape[1], x.shape[2], logits.shape[-2], WIDTH, causal=True)
    module: Any = fairseq_layer(operator, shape, x, None if operator == "light" else logits)[0].eval()
    state: dict[str, Any] = {}

    def step() -> None:
        module(x, incremental_state=state)
        module.reorder_incremental_state(state, order)

    return step


def measure_search(
    batches: list[int],
    *,
    vocab_size: int,
    length: int,
    device: torch.device,
    seconds: float,
    precisions: list[str],
) -> Iterator[dict[str, Any]]:
    """Beam 4 with the IWSLT architectures and random weights; every model writes ``length`` words.

    ``precisions``: fp32 first; of the products of fairseq's Transformer and of our own search. fp16, for a GPU, is that
    of whole models, fairseq's LightConv too, and is compared with its own Transformer. On a GPU our search is measured
    without graphs instead of our models in fairseq's search.
    """
    in_fairseqs = ["fp32"] if device.type == "cpu" else []
    whole = [name for name in precisions if name in ("fp32", "fp16")]
    lightweight = ["--encoder-conv-type", "lightweight", "--decoder-conv-type", "lightweight"]
    entries: list[tuple[str, str, list[str], list[str]]] = [
        (*BASELINE[:2], [], precisions),
        ("lightconv_iwslt_de_en", "translation", lightweight, whole),
        ("pla_lightconv_iwslt_de_en", "translation", [], in_fairseqs),
        ("pla_lightconv_iwslt_de_en", "pla_translation", [], precisions),
        ("pla_dynamicconv_iwslt_de_en", "translation", [], in_fairseqs),
        ("pla_dynamicconv_iwslt_de_en", "pla_translation", [], precisions),
    ]
    searches = {
        (arch, task, precision): _search(translation(arch, vocab_size, flags, task=task), length, device, precision)
        for arch, task, flags, several in entries
        for precision in several
    }
    if device.type == "cuda":
        ours = [(key, search) for key, search in searches.items() if key[1] == "pla_translation"]
        searches |= {(arch, NO_GRAPH, name): _without_graphs(search, length) for (arch, _, name), search in ours}
    built = searches[BASELINE].built
    peers = {name: ctranslate2.translator(built, device, name) for name in ctranslate2.compute_types(device)}
    for sentences in batches:
        source = _source(built, sentences, length)
        cases = {key: _run(search, source, length) for key, search in searches.items()}
        for name, peer in peers.items():
            cases[BASELINE[0], "CTranslate2", name] = ctranslate2.run(peer, built, source, beam=BEAM, length=length)
        turns = take_turns(cases, device, seconds=seconds)
        for (arch, task, precision), times in turns.items():
            taken = statistics.median(times)
            baseline = statistics.median(turns[*BASELINE[:2], "fp16" if precision == "fp16" else "fp32"])
            own = (arch, task, precision) in searches  # others launch kernels in a process of their own
            kernels = kernels_of(cases[arch, task, precision], device) if own else None
            yield {
                "model": arch,
                "task": task,
                "precision": precision,
                "sentences": sentences,
                "sentences_a_second": sentences / taken,
                "spread": spread(times),
                "token_ms": taken / (length + 1) * 1e3,
                "to_transformer": baseline / taken,
                "kernels": None if kernels is None else kernels[0] / (length + 1),
                "kernels_ms": None if kernels is None else kernels[1] / (length + 1) * 1e3,
            }


@dataclass(frozen=True)
class Search:
    """A model that is ready to be searched."""

    built: TaskAndModel
    generator: Any
    device: torch.device
    precision: str


def _search(built: TaskAndModel, length: int, device: torch.device, precision: str) -> Search:
    built.model.to(device, torch.float16 if precision == "fp16" else torch.float32).eval()
    with products_in(precision, built.args.arch):
        built.model.make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)
        return Search(built, _generator(built, length), device, precision)


def _generator(built: TaskAndModel, length: int) -> Any:
    from argparse import Namespace

    options = Namespace(beam=BEAM, min_len=length, max_len_a=0, max_len_b=length)
    return built.task.build_generator([built.model], options)


def _without_graphs(search: Search, length: int) -> Search:
    generator = _generator(search.built, length)
    generator.captures = False
    return replace(search, generator=generator)


def _source(built: TaskAndModel, sentences: int, length: int) -> torch.Tensor:
    """(sentences, length) random words, the last one the end."""
    words = built.task.source_dictionary
    source = torch.randint(words.nspecial, len(words), (sentences, length), generator=torch.Generator().manual_seed(1))
    source[:, -1] = words.eos()
    return source


def _run(search: Search, source: torch.Tensor, length: int) -> Callable[[], None]:
    lengths = torch.full((len(source),), length)
    sample = {
        "id": torch.arange(len(source)),
        "net_input": {"src_tokens": source.to(search.device), "src_lengths": lengths.to(search.device)},
    }

    def run() -> None:
        with torch.no_grad(), products_in(search.precision, search.built.args.arch):
            for hypotheses in search.generator.generate([search.built.model], sample):
                if len(hypotheses[0]["tokens"]) != length + 1:
                    raise RuntimeError(f"a hypothesis of {len(hypotheses[0]['tokens'])} words, not {length + 1}")

    return run
