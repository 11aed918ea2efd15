"""Translate by an exported model, as an example: a beam search with numpy and onnxruntime alone.

    python OUT/decode.py [--beam N] [--max-len-b N] [--precision int8] < units > translations

A line is a sentence in units, words that the model's dictionaries know, and its translation is one too. The hypotheses
are those of fairseq-generate with its other options as they are by default. In int8 the weights of linear layers are
rounded to 8 bits, and their inputs in each step; scores differ a little.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]  # by the names of the graphs' inputs


class Model:
    """Files of an export: ``manifest.json``, and the graphs as sessions of onnxruntime.

    Args:
        folder: the export.
        precision: fp32, or int8 for the graphs that have it in their names.

    Raises:
        FileNotFoundError: the export has no graphs in this precision.
    """

    def __init__(self, folder: Path, precision: str = "fp32") -> None:
        import onnxruntime

        ending = ".int8.onnx" if precision == "int8" else ".onnx"
        files = {graph: folder / f"{graph}{ending}" for graph in ("encoder", "step")}
        if not files["step"].exists():
            raise FileNotFoundError(f"{folder} has no graphs in {precision}; export the model again")
        self.manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        providers = ["CPUExecutionProvider"]
        self.graphs = {  # a language model has no encoder
            graph: onnxruntime.InferenceSession(str(file), providers=providers)
            for graph, file in files.items()
            if file.exists()
        }

    def run(self, graph: str, inputs: Arrays) -> list[np.ndarray]:
        """The outputs of a graph, in order."""
        return self.graphs[graph].run(None, inputs)

    def encode(self, tokens: np.ndarray) -> Arrays:
        """(B, S) tokens, padded at the end, to what the steps read of them."""
        return dict(zip(self.manifest["source"], self.run("encoder", {"tokens": tokens}), strict=True))

    def start(self, sentences: int) -> Arrays:
        """The state before the first step."""
        states = self.manifest["states"].items()
        return {name: np.zeros((length, sentences, width), dtype=np.float32) for name, (length, width) in states}

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
        inputs = {"tokens": tokens, "parents": parents, "position": np.array([position]), **source, **state}
        log_probs, *values = self.run("step", inputs)
        return log_probs, dict(zip(state, values, strict=True))


def search(model: Model, source_tokens: list[int], beam: int, max_len: int) -> list[tuple[float, list[int]]]:
    """Search the ``beam`` best hypotheses of a source; their mean log-probabilities and tokens, the best first."""
    pad, eos, first, longest = (model.manifest[name] for name in ("pad", "eos", "first", "max_target"))
    longest = min(max_len, longest - 1)
    source, state = model.encode(np.array([source_tokens])), model.start(1)
    tokens, scores, parents = np.array([[first]]), np.zeros(1, dtype=np.float32), np.array([0])
    finished: list[tuple[float, list[int]]] = []
    for step in range(longest + 1):
        batch, state = model.step(tokens[None, :, -1], parents[None], step, source, state)
        log_probs = batch[0]
        log_probs[:, pad] = -np.inf
        if step == 0:
            log_probs[:, eos] = -np.inf
        if step == longest:
            log_probs[:, np.arange(log_probs.shape[1]) != eos] = -np.inf
        totals = (scores[:, None] + log_probs).reshape(-1)
        best = np.argsort(-totals, kind="stable")[: 2 * beam]  # half of them may end
        rows, words = np.divmod(best, log_probs.shape[1])
        ends = (words == eos) & (totals[best] > -np.inf)
        for i in np.flatnonzero(ends[:beam])[: beam - len(finished)]:
            finished.append((float(totals[best[i]] / (step + 1)), [*tokens[rows[i], 1:].tolist(), eos]))
        if len(finished) == beam:
            break
        going_on = np.flatnonzero(~ends)[:beam]
        parents, scores = rows[going_on], totals[best[going_on]].astype(np.float32)
        tokens = np.concatenate([tokens[parents], words[going_on, None]], axis=1)
    return sorted(finished, key=lambda hypothesis: -hypothesis[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beam", type=int, default=5, help="hypotheses of a sentence (default: 5)")
    parser.add_argument("--max-len-b", type=int, default=200, help="words of a hypothesis at most (default: 200)")
    parser.add_argument("--precision", choices=("fp32", "int8"), default="fp32", help="of products (default: fp32)")
    options = parser.parse_args()
    for flag, value in (("--beam", options.beam), ("--max-len-b", options.max_len_b)):
        if value < 1:
            parser.error(f"{flag} is {value}, expected a whole number from 1 on")
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    try:
        model = Model(folder := Path(__file__).parent, options.precision)
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    about = model.manifest
    source, target = ((folder / f"{side}.txt").read_text(encoding="utf-8").split("\n") for side in ("source", "target"))
    numbers = {word: number for number, word in enumerate(source)}
    warned = False
    for line, text in enumerate(sys.stdin, 1):
        words = [numbers.get(word, about["unk"]) for word in text.split()]
        unknown = words.count(about["unk"])
        if not warned and len(words) > 1 and 2 * unknown > len(words):
            warned = True  # once: of plain text it is true of most lines
            print(
                f"line {line}: the model does not know {unknown} of its {len(words)} words. It takes text in units: "
                "cut it first, by `subword-nmt apply-bpe` or sentencepiece, with the model's own file",
                file=sys.stderr,
                flush=True,
            )
        tokens = [*words, about["eos"]]
        if len(tokens) > about["max_source"]:
            most = about["max_source"] - 1
            sys.exit(f"error: line {line} has {len(tokens) - 1} units; the model takes {most} at most")
        (_, best), *_ = search(model, tokens, options.beam, options.max_len_b)
        print(" ".join(target[token] for token in best if token not in (about["bos"], about["eos"])), flush=True)


if __name__ == "__main__":
    main()
