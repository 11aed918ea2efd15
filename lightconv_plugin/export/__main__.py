"""Write a trained model as graphs that run without this plugin, fairseq, and with onnxruntime also without torch.

    python -m lightconv_plugin.export CHECKPOINT OUT

OUT is a new folder: the encoder and one decoding step for any number of sentences, beams and words, in float32, as ONNX
or as programs of torch.export; dictionaries; the BPE merges or the SentencePiece model; decode.py, a beam search with
numpy and onnxruntime alone; and manifest.json, which names all inputs and outputs. It appears when it is whole, and
computes what the model does. Of a language model there is the step alone. LightConv, DynamicConv and fairseq's
Transformer can be exported.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from lightconv_plugin.compat.checkpoints import refusing
from lightconv_plugin.export.write import PACKAGES, ExportError, codes_of, export, load
from lightconv_plugin.units import CodesError, units_of


def main(arguments: list[str] | None = None) -> None:
    """The command; ends the process with a sentence and status 1 where it refuses."""
    parser = argparse.ArgumentParser(
        prog="python -m lightconv_plugin.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="a model's file")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write; it must not exist")
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder of the dictionaries (default: as in training)")
    parser.add_argument(
        "--codes", metavar="FILE", type=Path, help="the source's BPE merges or SentencePiece model (default: found)"
    )
    parser.add_argument("--format", choices=list(PACKAGES), default="onnx", help="of the graphs (default: onnx)")
    given = parser.parse_args(arguments)
    if os.path.lexists(given.out):
        sys.exit(f"error: {given.out} exists, and is not replaced: give another name for OUT, or remove it")
    if given.codes is not None and not given.codes.is_file():
        sys.exit(f"error: there is no file {given.codes}; give --codes the BPE merges or the SentencePiece model")
    missing = [name for name in PACKAGES[given.format] if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"error: --format {given.format} needs what is not installed here; run: pip install {' '.join(missing)}"
        )
    with refusing(f"export {given.checkpoint}", ExportError, given.out):
        model, task = load(given.checkpoint, given.data)
        codes, lacking = given.codes, ""
        if codes is None and units_of(task.source_dictionary.symbols):
            try:
                codes = codes_of(task, given.checkpoint)
            except CodesError as error:
                lacking = (
                    f"{error}, or export again with --codes FILE: decode.py takes text in units alone, with --units"
                )
        manifest = export(model, task, given.out, form=given.format, checkpoint=given.checkpoint.name, codes=codes)
    sizes = ", ".join(f"{name} {(given.out / name).stat().st_size / 1e6:.1f} MB" for name in manifest["files"])
    print(f"{manifest['model']}: its exported steps give its log-probabilities\nwrote {given.out}: {sizes}")
    if lacking and "encoder" in manifest["graphs"]:
        print(f"note: {lacking}", file=sys.stderr)


if __name__ == "__main__":
    main()
