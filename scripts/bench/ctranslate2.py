"""CTranslate2, a C++ translator for Transformers, which ``scripts.bench`` also times if it is installed.

It runs in processes of its own, which do not import torch: torch and CTranslate2 each bring an OpenMP library, and with
two such libraries in one process, both are half as fast.
"""

import importlib.util
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from scripts.fairseq_io.models import TaskAndModel

COMPUTE_TYPES = ("float32", "int8", "int8_bfloat16")
_loaded: Any = None  # the translator of this process


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def compute_types(device: "torch.device") -> list[str]:
    """Return the types in which CTranslate2 computes on the device; none if the package is not installed."""
    if importlib.util.find_spec("ctranslate2") is None:
        return []
    with _process() as process:
        supported = process.submit(_supported, device.type, device.index or 0).result()
    return [name for name in COMPUTE_TYPES if name in supported]


class Translator:
    """A fairseq Transformer in CTranslate2, in a process of its own with as many threads as torch uses."""

    def __init__(self, built: "TaskAndModel", device: "torch.device", compute_type: str) -> None:
        import torch

        self.words, self.process = built.task.source_dictionary, _process()
        with tempfile.TemporaryDirectory() as folder, _process() as converter:
            torch.save({"args": built.args, "cfg": None, "model": built.model.state_dict()}, f"{folder}/model.pt")
            for language, words in (("src", self.words), ("tgt", built.task.target_dictionary)):
                words.save(f"{folder}/dict.{language}.txt")
            converter.submit(_convert, folder).result()
            options = {"device": device.type, "device_index": device.index or 0, "compute_type": compute_type}
            self.pid: int = self.process.submit(_load, f"{folder}/converted", options, torch.get_num_threads()).result()

    def run(self, source: "torch.Tensor", *, beam: int, length: int) -> Callable[[], None]:
        """Return a function that translates ``source`` (sentences, length) into ``length`` words per sentence."""
        # without the end-of-sentence symbol, which CTranslate2 adds itself
        sentences = [[self.words[word] for word in line[:-1]] for line in source.tolist()]

        lengths = {"min_decoding_length": length, "max_decoding_length": length}

        def translate() -> None:
            for written in self._lengths(sentences, beam_size=beam, max_batch_size=0, **lengths):
                if written != length:
                    raise RuntimeError(f"CTranslate2 wrote {written} words, not {length}")

        return translate

    def translate(self, sentences: list[list[str]], *, beam: int, length_penalty: float, max_tokens: int) -> list[int]:
        """Translate in batches that CTranslate2 makes, of at most ``max_tokens``; return the results' lengths."""
        batches = {"max_batch_size": max_tokens, "batch_type": "tokens"}
        return self._lengths(sentences, beam_size=beam, length_penalty=length_penalty, **batches)

    def _lengths(self, sentences: list[list[str]], **options: Any) -> list[int]:
        return self.process.submit(_translate, sentences, options).result()


def _supported(device: str, index: int) -> set[str]:
    import ctranslate2

    return set(ctranslate2.get_supported_compute_types(device, index))


def _convert(folder: str) -> None:
    from ctranslate2.converters import FairseqConverter

    logging.getLogger("fairseq").setLevel(logging.WARNING)  # hide messages about the dictionaries
    # safe to unpickle: ``Translator`` has just written the file
    converter = FairseqConverter(f"{folder}/model.pt", folder, "src", "tgt", unsafe_deserialization=True)
    converter.convert(f"{folder}/converted")


def _load(folder: str, options: dict[str, Any], threads: int) -> int:
    """Load the model in this process; return the process's ID."""
    import ctranslate2

    global _loaded
    _loaded = ctranslate2.Translator(folder, **options, intra_threads=threads)
    return os.getpid()


def _translate(sentences: list[list[str]], options: dict[str, Any]) -> list[int]:
    return [len(result.hypotheses[0]) for result in _loaded.translate_batch(sentences, **options)]
