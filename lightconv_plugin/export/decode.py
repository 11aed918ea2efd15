"""Translate with an exported model: an example of a beam search with numpy and onnxruntime only.

    python OUT/decode.py [--beam N] [--max-len-b N] [--precision int8] < subwords > translations

Each line is a sentence in subwords, as in the model's dictionary, and so is its translation. The hypotheses are those
of fairseq-generate with the same --beam and --max-len-b, and its defaults for all other options. In int8 the weights of
linear layers are rounded to 8 bits, and in each step also their inputs; scores differ a little.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]  # by the names of the graphs' inputs


class Model:
    """An exported model: ``manifest.json``, and the graphs as sessions of onnxruntime.

    Args:
        folder: the folder of the export.
        precision: "fp32", or "int8" for the graphs with weights in 8 bits.

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
        """Return the outputs of a graph, in order."""
        return self.graphs[graph].run(None, inputs)

    def encode(self, tokens: np.ndarray) -> Arrays:
        """Encode tokens (B, S), padded at the end. Return the inputs of each step that depend on the source only."""
        return dict(zip(self.manifest["source"], self.run("encoder", {"tokens": tokens}), strict=True))

    def start(self, sentences: int) -> Arrays:
        """Return the state before the first step."""
        states = self.manifest["states"].items()
        return {name: np.zeros((length, sentences, width), dtype=np.float32) for name, (length, width) in states}

    def step(
        self, tokens: np.ndarray, parents: np.ndarray, position: int, source: Arrays, state: Arrays
    ) -> tuple[np.ndarray, Arrays]:
        """Take one step.

        Args:
            tokens: (B, beam), the newest token of each hypothesis.
            parents: (B, beam), for each hypothesis the index of the one that it continues, among all hypotheses of the
                previous step.
            position: number of tokens before the newest one.
            source: the result of ``encode``; empty for a language model.
            state: the state from ``start`` or the previous step.

        Returns:
            log-probabilities (B, beam, V) of the next token, and the next step's state.
        """
        inputs = {"tokens": tokens, "parents": parents, "position": np.array([position]), **source, **state}
        log_probs, *values = self.run("step", inputs)
        return log_probs, dict(zip(state, values, strict=True))


def search(model: Model, source_tokens: list[int], beam: int, max_len: int) -> list[tuple[float, list[int]]]:
    """Return the ``beam`` best translations of a source, best first: mean log-probabilities and tokens."""
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
        best = np.argsort(-totals, kind="stable")[: 2 * beam]  # at most half of them end a hypothesis
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
    parser.add_argument("--beam", type=int, default=5, help="number of hypotheses per sentence (default: 5)")
    parser.add_argument("--max-len-b", type=int, default=200, help="largest length in subwords (default: 200)")
    parser.add_argument(
        "--precision", choices=("fp32", "int8"), default="fp32", help="precision of matrix products (default: fp32)"
    )
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
    if "encoder" not in model.graphs:
        sys.exit(f"error: {folder} is a language model, which translates nothing; compute its scores with `Model.step`")
    source, target = ((folder / f"{side}.txt").read_text(encoding="utf-8").split("\n") for side in ("source", "target"))
    numbers = {word: number for number, word in enumerate(source)}
    warned = False
    for line, text in enumerate(sys.stdin, 1):
        words = [numbers.get(word, about["unk"]) for word in text.split()]
        unknown = words.count(about["unk"])
        if not warned and len(words) > 1 and 2 * unknown > len(words):
            warned = True  # warn once, since most lines of plain text have this problem
            print(
                f"line {line}: the model does not know {unknown} of its {len(words)} words. It expects subwords: "
                "split the text first, by `subword-nmt apply-bpe` or sentencepiece, with the file of the model",
                file=sys.stderr,
                flush=True,
            )
        tokens = [*words, about["eos"]]
        if len(tokens) > about["max_source"]:
            most = about["max_source"] - 1
            sys.exit(f"error: line {line} has {len(tokens) - 1} subwords; the model takes at most {most}")
        (_, best), *_ = search(model, tokens, options.beam, options.max_len_b)
        print(" ".join(target[token] for token in best if token not in (about["bos"], about["eos"])), flush=True)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the process without a traceback
    main()
