"""The base of both models: their flags, and fairseq's interface to a trained model in a program."""

import warnings
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from fairseq import file_utils, hub_utils
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models import BaseFairseqModel
from omegaconf import open_dict
from torch import Tensor

from lightconv_plugin.models.resolve import add_arguments
from lightconv_plugin.units import SENTENCEPIECE, SUBWORD_NMT, clean_text, find_codes, steps_before, units_of

_OPTION = {SUBWORD_NMT: "bpe_codes", "fastbpe": "bpe_codes", SENTENCEPIECE: "sentencepiece_model"}


class TextInterface(GeneratorHubInterface):
    """fairseq's interface to a trained model, for plain text, which is cleaned before it is cut into units."""

    def encode(self, sentence: str) -> Tensor:
        """Return the numbers of the units of a line, its end included."""
        return super().encode(clean_text(sentence))


class PluginModel(BaseFairseqModel):
    """Base of both models."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the flags of the model's dataclass, which ``register_model`` keeps under this name."""
        add_arguments(parser, getattr(cls, "__dataclass")())

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data_name_or_path: str = ".", **options: Any
    ) -> GeneratorHubInterface:
        """Load a model for plain text: text that is as the model's BPE or SentencePiece took it.

        Without ``bpe`` the dictionary tells if words are cut into units. Without ``bpe_codes`` or
        ``sentencepiece_model`` the file is looked for beside the checkpoint, beside the dictionaries, and where
        ``scripts.reproduce`` leaves it. ``bpe=None`` says that text is in units, which are taken as they are; other
        text is cleaned as ``data_prep`` cleans people's own (``units.clean_text``). What else was done to the text
        that the model learnt from (Moses, lower case) is said in a warning if its dictionary shows it, unless a
        tokenizer is given.

        Raises:
            CodesError: the codes are not there; for text in units give ``bpe=None``.
        """
        found = hub_utils.from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, archive_map=cls.hub_models(), **options
        )
        cfg, task = found["args"], found["task"]
        words = task.source_dictionary.symbols
        units: Any = options["bpe"] if "bpe" in options else getattr(cfg.bpe, "_name", cfg.bpe) or units_of(words)
        if option := _OPTION.get(units):
            data = Path(cfg.task.data.split(":")[0]).resolve()
            beside = (Path(file_utils.load_archive_file(model_name_or_path)) / checkpoint_file.split(":")[0]).parent
            language = getattr(cfg.task, "source_lang", None)
            # fairseq's own takes any file named code or bpecodes before the one that is given
            codes = options.get(option) or find_codes(language, beside, data, data.parent / "prepared")
            with open_dict(cfg):
                cfg.bpe = cfg.bpe or {"_name": units}
                cfg.bpe[option] = str(codes)
        in_units = "bpe" in options and units is None
        if steps := [] if in_units or "tokenizer" in options else steps_before(words):
            warnings.warn(
                f"{checkpoint_file} learnt from text that was {', '.join(steps)}: give it such text. tokenizer='moses' "
                "tokenises; python -m scripts.translate does all that the model's dataset does",
                stacklevel=2,
            )
        return (GeneratorHubInterface if in_units else TextInterface)(cfg, task, found["models"])
