"""CTranslate2, a translator in C++ for Transformers, as a peer of ``bench.py decode`` where it is installed."""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from scripts.fairseq_io.models import Translation

COMPUTE_TYPES = ("float32", "int8", "int8_bfloat16")


def compute_types(device: torch.device) -> list[str]:
    """The types that it computes in on the device; none unless ``pip install ctranslate2`` has been run here."""
    if importlib.util.find_spec("ctranslate2") is None:
        return []
    import ctranslate2

    supported = ctranslate2.get_supported_compute_types(device.type)
    return [name for name in COMPUTE_TYPES if name in supported]


def translator(built: Translation, device: torch.device, compute_type: str) -> Any:
    """A fairseq Transformer in CTranslate2, on as many threads as torch uses."""
    import ctranslate2
    from ctranslate2.converters import FairseqConverter

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.pt"
        torch.save({"args": built.args, "cfg": None, "model": built.model.state_dict()}, model)
        for language, words in (("src", built.task.source_dictionary), ("tgt", built.task.target_dictionary)):
            words.save(f"{folder}/dict.{language}.txt")
        # the file is our own of a moment ago
        converter = FairseqConverter(str(model), folder, "src", "tgt", unsafe_deserialization=True)
        converter.convert(f"{folder}/converted")
        return ctranslate2.Translator(
            f"{folder}/converted", device=device.type, compute_type=compute_type, intra_threads=torch.get_num_threads()
        )


def run(peer: Any, built: Translation, source: torch.Tensor, *, beam: int, length: int) -> Callable[[], None]:
    """Beam search over ``source`` (sentences, length) that writes ``length`` words a sentence."""
    words = built.task.source_dictionary
    sentences = [[words[word] for word in line[:-1]] for line in source.tolist()]  # it adds the end itself

    def translate() -> None:
        found = peer.translate_batch(
            sentences, beam_size=beam, min_decoding_length=length, max_decoding_length=length, max_batch_size=0
        )
        for result in found:
            if len(result.hypotheses[0]) != length:
                raise RuntimeError(f"CTranslate2 wrote {len(result.hypotheses[0])} words, not {length}")

    return translate
