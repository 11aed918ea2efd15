"""Translate by an exported model, as an example: a beam search with numpy and onnxruntime alone.

    python OUT/decode.py [--beam N] [--max-len-b N] [--units] < text > translations

The text is a sentence a line. A model with BPE takes it tokenised, and gives tokens; one with SentencePiece takes and
gives it as people write it. Either needs its package, subword-nmt or sentencepiece. The hypotheses are those of
fairseq-generate with its other options as they are by default.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]  # by the names in the manifest


def load(folder: Path) -> Model:
    """Read what the export wrote."""
    import onnxruntime

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    graphs: dict[str, Any] = {}
    for name, graph in manifest["graphs"].items():
        session = onnxruntime.InferenceSession(str(folder / graph["file"]), providers=["CPUExecutionProvider"])
        graphs[name] = functools.partial(session.run, [port["name"] for port in graph["outputs"]])
    return Model(manifest, graphs)


class Model:
    """The manifest of an export, and its graphs: from inputs by name to outputs in the manifest's order."""

    def __init__(self, manifest: dict[str, Any], graphs: dict[str, Callable[[Arrays], list[np.ndarray]]]) -> None:
        self.manifest, self.graphs = manifest, graphs

    def encode(self, tokens: np.ndarray) -> Arrays:
        """(B, S) tokens, padded at the end, to what the steps read of them."""
        names = [port["name"] for port in self.manifest["graphs"]["encoder"]["outputs"]]
        return dict(zip(names, self.graphs["encoder"]({"tokens": tokens}), strict=True))

    def start(self, sentences: int) -> Arrays:
        """The state before the first step."""
        return {
            state["name"]: np.zeros((state["length"] or 0, sentences, state["width"]), dtype=np.float32)
            for state in self.manifest["states"]
        }

    def step(
        self, tokens: np.ndarray, parents: np.ndarray, position: int, source: Arrays, state: Arrays
    ) -> tuple[np.ndarray, Arrays]:
        """Take one step.

        Args:
            tokens: (B, beam), the newest of each hypothesis.
            parents: (B, beam), the place among the last step's hypotheses of the one that each continues.
            position: how many tokens a hypothesis has before the newest.
            source: as ``encode`` gives it; empty for a language model.
            state: as ``start`` or the last step gave it.

        Returns:
            log-probabilities (B, beam, V) of the next token, and the next step's state.
        """
        given = {"tokens": tokens, "parents": parents, "position": np.array([position]), **source, **state}
        log_probs, *values = self.graphs["step"](given)
        return log_probs, dict(zip(state, values, strict=True))


def search(model: Model, source_tokens: list[int], beam: int, max_len: int) -> list[tuple[float, list[int]]]:
    """Search the ``beam`` best hypotheses of a source; their mean log-probabilities and tokens, the best first."""
    pad, eos, first, longest = (model.manifest[name] for name in ("pad", "eos", "first", "max_target"))
    longest = min(max_len, longest - 1)
    source, state = model.encode(np.array([source_tokens])), model.start(1)
    tokens, scores, parents = np.array([[first]]), np.zeros(1, dtype=np.float32), np.array([0])
    done: list[tuple[float, list[int]]] = []
    for step in range(longest + 1):
        batch, state = model.step(tokens[None, :, -1], parents[None], step, source, state)
        log_probs = np.where(np.isnan(batch[0]), -np.inf, batch[0])
        log_probs[:, pad] = -np.inf
        if step == 0:
            log_probs[:, eos] = -np.inf
        if step == longest:
            log_probs[:, np.arange(log_probs.shape[1]) != eos] = -np.inf
        totals = (scores[:, None] + log_probs).reshape(-1)
        best = np.argsort(-totals, kind="stable")[: 2 * beam]  # half of them may end
        rows, words = np.divmod(best, log_probs.shape[1])
        ends = (words == eos) & (totals[best] > -np.inf)
        for i in np.flatnonzero(ends[:beam])[: beam - len(done)]:
            done.append((float(totals[best[i]] / (step + 1)), [*tokens[rows[i], 1:].tolist(), eos]))
        if len(done) == beam:
            break
        going_on = np.flatnonzero(~ends)[:beam]
        parents, scores = rows[going_on], totals[best[going_on]].astype(np.float32)
        tokens = np.concatenate([tokens[parents], words[going_on, None]], axis=1)
    if not done:
        raise ValueError("a sentence cannot end: the model's log-probabilities are not numbers, or infinite")
    return sorted(done, key=lambda hypothesis: -hypothesis[0])


def cutter(folder: Path, units: str | None, codes: str | None) -> Callable[[str], str]:
    """Return what cuts a line into units by the file ``codes``; ends the process where it is missing."""
    if units is None:
        return str
    if codes is None:
        sys.exit(
            "error: this export has no BPE merges and no SentencePiece model to cut plain text by; export again with "
            "--codes FILE, or give text in units, with --units"
        )
    if units == "sentencepiece":
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / codes))
        return lambda text: " ".join(model.encode(text, out_type=str))
    from subword_nmt.apply_bpe import BPE

    with open(folder / codes, encoding="utf-8") as merges:
        return BPE(merges).process_line


def joined(text: str, units: str | None) -> str:
    """Join units to words."""
    if units == "sentencepiece":
        return text.replace(" ", "").replace("\u2581", " ").strip()
    return f"{text} ".replace("@@ ", "").rstrip() if units else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beam", type=int, default=5, help="hypotheses of a sentence (default: 5)")
    parser.add_argument("--max-len-b", type=int, default=200, help="words of a hypothesis at most (default: 200)")
    parser.add_argument("--units", action="store_true", help="text is in the model's units, and its translations, too")
    given = parser.parse_args()
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    model = load(folder := Path(__file__).parent)
    about = model.manifest
    if "encoder" not in model.graphs:
        sys.exit("error: it is a language model, which has nothing to translate; call Model.step")
    source, target = ((folder / f"{side}.txt").read_text(encoding="utf-8").split("\n") for side in ("source", "target"))
    numbers = {word: number for number, word in enumerate(source)}
    units = dict.fromkeys(("source", "target")) if given.units else about["units"]
    cut = cutter(folder, units["source"], about["codes"])
    if about["text"] and not given.units:
        print(f"note: the model learnt from text that was {', '.join(about['text'])}; give it such", file=sys.stderr)
    for line, text in enumerate(sys.stdin, 1):
        tokens = [*(numbers.get(word, about["unk"]) for word in cut(text).split()), about["eos"]]
        if len(tokens) > about["max_source"]:
            most = about["max_source"] - 1
            sys.exit(f"error: line {line} has {len(tokens) - 1} units; the model takes {most} at most")
        (_, best), *_ = search(model, tokens, given.beam, given.max_len_b)
        found = " ".join(target[token] for token in best if token not in (about["bos"], about["eos"]))
        print(joined(found, units["target"]), flush=True)


if __name__ == "__main__":
    main()
