"""Our own models as ONNX (``python -m lightconv_plugin.export``), for ``scripts.bench decode --onnx``."""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lightconv_plugin.export import decode
from scripts.fairseq_io.models import Built


def missing() -> list[str]:
    """Packages that this needs and that are not installed."""
    return [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]


def translator(built: Built) -> decode.Model:
    """A model in onnxruntime, on as many threads as torch uses."""
    from lightconv_plugin.export.write import export

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        export(built.model, built.task, out, form="onnx", checkpoint="")
        return decode.Model(out, torch.get_num_threads())


def run(peer: decode.Model, source: torch.Tensor, *, beam: int, length: int) -> Callable[[], Any]:
    """Beam search over ``source`` (sentences, length) that writes ``length`` words a sentence."""
    options = decode.Options(beam=beam, min_len=length, max_len_b=length)
    return lambda: decode.search(peer, source.tolist(), options)
