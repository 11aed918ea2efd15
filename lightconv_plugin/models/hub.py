"""The base of both models: their flags, and fairseq's interface to a trained model in a program."""

import warnings
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from fairseq import file_utils, hub_utils
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models import BaseFairseqModel
from omegaconf import open_dict

from lightconv_plugin.models.resolve import add_arguments
from lightconv_plugin.units import SENTENCEPIECE, SUBWORD_NMT, CodesError, find_codes, steps_before, units_of

_OPTION = {SUBWORD_NMT: "bpe_codes", "fastbpe": "bpe_codes", SENTENCEPIECE: "sentencepiece_model"}


class NoCodes:
    """In place of fairseq's BPE where a model's codes are missing: joins units, and refuses to take text for units."""

    def __init__(self, units: str, reason: str) -> None:
        self.units, self.reason = units, reason

    def encode(self, text: str) -> str:
        raise CodesError(self.reason)

    def decode(self, text: str) -> str:
        if self.units == SENTENCEPIECE:
            return text.replace(" ", "").replace("\u2581", " ").strip()
        return f"{text} ".replace("@@ ", "").rstrip()


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
        ``scripts.reproduce`` leaves it; where it is missing, text is refused. ``bpe=None`` says that text is in units.
        What else was done to the text that the model learnt from (Moses, lower case) is said in a warning if its
        dictionary shows it.

        Raises:
            CodesError: ``bpe`` is given, and its codes are not there.
        """
        found = hub_utils.from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, archive_map=cls.hub_models(), **options
        )
        cfg, task = found["args"], found["task"]
        words, asked = task.source_dictionary.symbols, "bpe" in options
        units: Any = options["bpe"] if asked else getattr(cfg.bpe, "_name", cfg.bpe) or units_of(words)
        missing = ""
        if option := _OPTION.get(units):
            data = Path(cfg.task.data.split(":")[0]).resolve()
            beside = (Path(file_utils.load_archive_file(model_name_or_path)) / checkpoint_file.split(":")[0]).parent
            try:  # fairseq's own takes any file named code or bpecodes before the one that is given
                language = getattr(cfg.task, "source_lang", None)
                codes = options.get(option) or find_codes(language, beside, data, data.parent / "prepared")
                with open_dict(cfg):
                    cfg.bpe = cfg.bpe or {"_name": units}
                    cfg.bpe[option] = str(codes)
            except CodesError as error:
                missing = f"{error}, give {option}=FILE to from_pretrained, or bpe=None for text that is cut into units"
                if asked:
                    raise CodesError(missing) from error
        hub = GeneratorHubInterface(cfg, task, found["models"])
        if missing:
            hub.bpe = NoCodes(units, missing)
        steps = [] if asked and units is None else steps_before(words)
        if "tokenizer" in options and "tokenised by Moses" in steps:
            steps.remove("tokenised by Moses")
        if steps:
            warnings.warn(
                f"{checkpoint_file} learnt from text that was {', '.join(steps)}: give it such text. tokenizer='moses' "
                "tokenises; python -m scripts.translate does all that the model's dataset does",
                stacklevel=2,
            )
        return hub
