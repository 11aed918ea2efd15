"""Translate by an exported model: fairseq's beam search, with numpy and onnxruntime alone.

    python -m lightconv_plugin.export.decode OUT < text > translations

OUT holds this file too, for machines without torch: python OUT/decode.py < text. The text is a sentence a line in the
units that the model has learnt (tokenised, cut by BPE).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1  # of manifest.json
MANIFEST = "manifest.json"


class DecodeError(Exception):
    """An exported model or a text that cannot be used; the message says what was found and what to do."""


@dataclass(frozen=True)
class Options:
    """Options that fairseq-generate calls by the same names."""

    beam: int = 5
    lenpen: float = 1.0
    unkpen: float = 0.0
    max_len_a: float = 0.0
    max_len_b: int = 200
    min_len: int = 1


@dataclass(frozen=True)
class Hypothesis:
    """A translation with the end of its sentence."""

    tokens: list[int]
    score: float  # the sum of its log-probabilities over its length to the power of the length penalty


class Model:
    """An exported model and its dictionaries.

    Args:
        folder: OUT of the export.
        threads: of onnxruntime; 0 for one a core.

    Raises:
        DecodeError: files that are missing, damaged, or of another format.
    """

    format = "onnx"
    _value: Callable[[np.ndarray], Any]  # the form in which a graph takes and gives arrays

    def __init__(self, folder: Path, threads: int = 0) -> None:
        self.manifest = read_manifest(folder)
        if self.manifest["format"] != self.format:
            raise DecodeError(
                f"{folder} is an export for {self.manifest['format']}; export with --format {self.format}"
            )
        self._runs = {
            name: self._open(folder / graph["file"], [given["name"] for given in graph["inputs"]], threads)
            for name, graph in self.manifest["graphs"].items()
        }
        self.dictionaries = {
            side: (folder / name).read_text(encoding="utf-8").split("\n")[:-1]
            for side, name in self.manifest["dictionaries"].items()
        }
        self.numbers = {
            side: {word: number for number, word in enumerate(words)} for side, words in self.dictionaries.items()
        }

    def _open(self, path: Path, _inputs: list[str], threads: int) -> Callable[[list[str], dict[str, Any]], list[Any]]:
        """The function of a graph: names of outputs, and inputs by name, to outputs."""
        try:
            import onnxruntime
        except ImportError:
            raise DecodeError("onnxruntime is not installed; run: pip install onnxruntime") from None
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has many, without a common class
            raise DecodeError(f"{path}: onnxruntime cannot load it: {error}") from error
        return session.run_with_ort_values

    def encode(self, tokens: np.ndarray) -> dict[str, Any]:
        """(B, S) tokens, padded at the end, to what the steps read of them."""
        names = [output["name"] for output in self.manifest["graphs"]["encoder"]["outputs"]]
        values = self._runs["encoder"](names, {"tokens": self._value(tokens)})
        return dict(zip(names, values, strict=True))

    def start(self, sentences: int) -> dict[str, Any]:
        """The state before the first step."""
        return {
            state["name"]: self._value(np.zeros((state["length"] or 0, sentences, state["width"]), dtype=np.float32))
            for state in self.manifest["states"]
        }

    def step(
        self, tokens: np.ndarray, parents: np.ndarray, position: int, source: dict[str, Any], state: dict[str, Any]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Take one step.

        Args:
            tokens: (B, beam), the newest of each hypothesis.
            parents: (B, beam), the place among the last step's hypotheses of the one that each continues.
            position: how many tokens a hypothesis has before the newest.
            source: as ``encode`` or ``select`` gives it; empty for a language model.
            state: as ``start`` or the last step gave it.

        Returns:
            log-probabilities (B, beam, V) of the next token, and the next step's state.
        """
        given = {"tokens": tokens, "parents": parents, "position": np.array([position])}
        feeds = {name: self._value(np.ascontiguousarray(array)) for name, array in given.items()} | source | state
        names = ["log_probs", *(kept["next"] for kept in self.manifest["states"])]
        log_probs, *values = self._runs["step"](names, feeds)
        return log_probs.numpy(), dict(zip(state, values, strict=True))

    def select(self, source: dict[str, Any], sentences: list[int]) -> dict[str, Any]:
        """Return what the steps read of some sentences alone."""
        return {name: self._value(value.numpy()[sentences]) for name, value in source.items()}

    def tokens_of(self, line: str) -> list[int]:
        """The numbers of a line's words, and the sentence's end."""
        numbers, unk = self.numbers["source"], self.manifest["unk"]
        return [*(numbers.get(word, unk) for word in line.split()), self.manifest["eos"]]

    def text_of(self, tokens: list[int]) -> str:
        """A hypothesis as a line."""
        words, hidden = self.dictionaries["target"], (self.manifest["bos"], self.manifest["eos"])
        return " ".join(words[token] for token in tokens if token not in hidden)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read what an export says of itself, and compare its files with that.

    Raises:
        DecodeError: files that are missing, damaged, or no export.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, files = manifest["version"], manifest["files"]
    except OSError as error:
        raise DecodeError(
            f"{error.filename}: {error.strerror}; expected the folder that lightconv_plugin.export wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DecodeError(f"{folder / MANIFEST} is damaged, or no manifest of an export; export again") from error
    if version != FORMAT:
        raise DecodeError(f"{folder} is an export of version {version}, expected {FORMAT}; export again")
    for name, known in files.items():
        try:
            found = digest(folder / name)
        except OSError as error:
            raise DecodeError(f"{error.filename}: {error.strerror}; export again") from error
        if found != known:
            raise DecodeError(f"{folder / name} is not as it was written: it is damaged or was changed; export again")
    return manifest


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def search(model: Model, sources: list[list[int]], options: Options) -> list[list[Hypothesis]]:
    """Search the best ``options.beam`` hypotheses of each source, the best first.

    Raises:
        DecodeError: a source longer than the model takes, lengths that exclude each other, or no way to end.
    """
    pad, eos, unk = (model.manifest[name] for name in ("pad", "eos", "unk"))
    beam, longest = options.beam, max(map(len, sources))
    if longest > model.manifest["max_source"]:
        raise DecodeError(f"a source has {longest} words; the model takes at most {model.manifest['max_source']}")
    max_len = min(int(options.max_len_a * longest + options.max_len_b), model.manifest["max_target"] - 1)
    if options.min_len > max_len:
        raise DecodeError(f"--min-len {options.min_len} is larger than the longest hypothesis allowed, {max_len}")
    source = model.encode(np.array([line + [pad] * (longest - len(line)) for line in sources]))
    state = model.start(len(sources))
    tokens = np.full((len(sources), 1), model.manifest["first"])  # (hypotheses, length)
    scores: np.ndarray = np.zeros(len(sources), dtype=np.float32)
    parents = np.arange(len(sources))
    finished: list[list[Hypothesis]] = [[] for _ in sources]
    sentences = list(range(len(sources)))  # those that go on

    for step in range(max_len + 1):
        groups = (len(sentences), -1)
        log_probs, state = model.step(tokens[:, -1].reshape(groups), parents.reshape(groups), step, source, state)
        vocab_size = log_probs.shape[2]
        log_probs[np.isnan(log_probs)] = -math.inf
        log_probs[..., pad] = -math.inf
        log_probs[..., unk] -= np.float32(options.unkpen)
        if step < options.min_len:
            log_probs[..., eos] = -math.inf
        if step == max_len:
            log_probs[..., np.arange(vocab_size) != eos] = -math.inf
        log_probs += scores.reshape(*groups, 1)
        first_rows = np.arange(len(sentences))[:, None] * log_probs.shape[1]
        values, places = _best(log_probs.reshape(len(sentences), -1), 2 * beam)  # half of them may end
        words, rows = places % vocab_size, first_rows + places // vocab_size
        ending = (words == eos) & (values > -math.inf)
        kept = []
        for group, sentence in enumerate(sentences):
            done = finished[sentence]
            for i in np.flatnonzero(ending[group, :beam])[: beam - len(done)]:
                hypothesis = [*tokens[rows[group, i], 1:].tolist(), eos]
                done.append(Hypothesis(hypothesis, float(values[group, i] / (step + 1) ** options.lenpen)))
            if len(done) < beam and step < max_len:
                kept.append(group)
            elif not done:
                raise DecodeError("a sentence cannot end: the model's log-probabilities are not numbers, or infinite")
        if not kept:
            break
        going_on = np.argsort(ending, axis=1, kind="stable")[kept, :beam]
        chosen = (np.array(kept)[:, None], going_on)
        parents = rows[chosen].reshape(-1)
        scores = values[chosen].reshape(-1)
        tokens = np.concatenate([tokens[parents], words[chosen].reshape(-1, 1)], axis=1)
        if len(kept) < len(sentences):
            source = model.select(source, kept)
            sentences = [sentences[group] for group in kept]
    return [sorted(done, key=lambda hypothesis: -hypothesis.score) for done in finished]


def _best(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` largest of each row and their places, the largest first."""
    count = min(count, values.shape[1])
    places = np.argpartition(values, -count, axis=1)[:, -count:]
    places = np.take_along_axis(places, np.argsort(-np.take_along_axis(values, places, 1), axis=1, kind="stable"), 1)
    return np.take_along_axis(values, places, 1), places


def translate(model: Model, lines: Iterable[str], options: Options, batch: int) -> Iterator[list[Hypothesis]]:
    """The hypotheses of each line, in order; lines of like length are searched together.

    Raises:
        DecodeError: see ``search``; a model without an encoder; or, after the hypotheses of all lines before it, a
            line longer than the model takes.
    """
    if "encoder" not in model.manifest["graphs"]:
        raise DecodeError("it is a language model, which has nothing to translate; call Model.step")
    lines, most, answered = iter(lines), model.manifest["max_source"], 0
    while sources := [model.tokens_of(line) for line in itertools.islice(lines, 64 * batch)]:
        taken = list(itertools.takewhile(lambda source: len(source) <= most, sources))
        order = sorted(range(len(taken)), key=lambda i: len(taken[i]))
        found: dict[int, list[Hypothesis]] = {}
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            found |= zip(part, search(model, [taken[i] for i in part], options), strict=True)
        yield from (found[i] for i in range(len(taken)))
        answered += len(taken)
        if len(taken) < len(sources):
            raise DecodeError(
                f"line {answered + 1} has {len(sources[len(taken)]) - 1} words; the model takes at most {most - 1} in "
                f"a line. The lines before it are translated: divide line {answered + 1}, and go on from there"
            )


def main(arguments: list[str] | None = None) -> None:
    """The command; ends the process with a sentence and status 1 where it refuses."""
    parser = argparse.ArgumentParser(
        prog="python -m lightconv_plugin.export.decode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    here = Path(__file__).parent
    parser.add_argument("out", metavar="OUT", type=Path, nargs="?", default=here, help="what the export wrote")
    meanings = {
        "beam": "hypotheses of a sentence",
        "lenpen": "length penalty: above 1 for longer hypotheses",
        "unkpen": "penalty of the unknown word",
        "max_len_a": "at most a * source's length + b words",
        "max_len_b": "see --max-len-a",
        "min_len": "at least so many words",
    }
    for name, meaning in meanings.items():
        default = getattr(Options, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=meaning)
    parser.add_argument("--batch", type=int, default=32, help="sentences searched together")
    parser.add_argument("--threads", type=int, default=0, help="threads of onnxruntime (default: one a core)")
    parser.add_argument("--scores", action="store_true", help="the score and a tab before each translation")
    given = parser.parse_args(arguments)
    for name in ("beam", "batch"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} is {getattr(given, name)}; expected 1 or more")
    options = Options(**{name: getattr(given, name) for name in meanings})
    try:
        model = Model(given.out, given.threads)
        sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        for best, *_ in translate(model, sys.stdin, options, given.batch):
            text = model.text_of(best.tokens)
            print(f"{best.score:.6f}\t{text}" if given.scores else text, flush=True)
    except DecodeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
