"""The base of both models: their flags, and fairseq's interface to a trained model in a program."""

import warnings
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, overload

from fairseq import file_utils, hub_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models import BaseFairseqModel
from fairseq.tasks import TASK_REGISTRY
from omegaconf import open_dict
from torch import Tensor

from lightconv_plugin.models.resolve import add_arguments
from lightconv_plugin.units import SENTENCEPIECE, SUBWORD_NMT, clean_text, find_codes, steps_before, units_of

_OPTION = {SUBWORD_NMT: "bpe_codes", "fastbpe": "bpe_codes", SENTENCEPIECE: "sentencepiece_model"}


class TrainedModel(GeneratorHubInterface):
    """A trained model for use in a program: fairseq's interface, with types. The attribute ``models`` has the model."""

    @overload
    def translate(self, sentences: str, beam: int = 5, verbose: bool = False, **options: Any) -> str: ...
    @overload
    def translate(self, sentences: list[str], beam: int = 5, verbose: bool = False, **options: Any) -> list[str]: ...
    def translate(
        self, sentences: str | list[str], beam: int = 5, verbose: bool = False, **options: Any
    ) -> str | list[str]:
        """Translate one sentence or a list of sentences; a language model continues them.

        Args:
            sentences: text in the form that ``from_pretrained`` describes.
            beam: number of hypotheses per sentence in the search.
            verbose: log hypotheses and their scores.
            options: fairseq's options of generation, such as ``lenpen=0.6``.

        Returns:
            The best hypothesis, or a list of them.

        Raises:
            ValueError: a line has more tokens than the model takes.
        """
        return self.sample(sentences, beam, verbose, **options)

    @overload
    def sample(self, sentences: str, beam: int = 1, verbose: bool = False, **options: Any) -> str: ...
    @overload
    def sample(self, sentences: list[str], beam: int = 1, verbose: bool = False, **options: Any) -> list[str]: ...
    def sample(
        self, sentences: str | list[str], beam: int = 1, verbose: bool = False, **options: Any
    ) -> str | list[str]:
        """Translate, by default with a beam of 1. ``sampling=True`` draws words by their probabilities."""
        texts: str | list[str] = super().sample(sentences, beam, verbose, **options)
        return texts

    def generate(
        self,
        tokenized_sentences: Tensor | list[Tensor],
        *arguments: Any,
        skip_invalid_size_inputs: bool = False,
        **options: Any,
    ) -> Any:
        """Search for the best hypotheses of encoded lines; see fairseq.

        Raises:
            ValueError: a line has more tokens than the model takes, and ``skip_invalid_size_inputs`` is not given.
        """
        if isinstance(tokenized_sentences, list) and not skip_invalid_size_inputs:
            limits = self.max_positions
            longest = limits[0] if isinstance(limits, tuple | list) else limits
            for number, tokens in enumerate(tokenized_sentences, 1):
                if longest is not None and len(tokens) > longest:
                    raise ValueError(f"line {number} has {len(tokens):,} tokens, and the model takes {longest:,}")
        return super().generate(
            tokenized_sentences, *arguments, skip_invalid_size_inputs=skip_invalid_size_inputs, **options
        )


class TextModel(TrainedModel):
    """A trained model for plain text, which is cleaned before it is split into subwords."""

    def encode(self, sentence: str) -> Tensor:
        """Return the indices of a line's vocabulary entries, including the end of sentence."""
        return super().encode(clean_text(sentence))


class PluginModel(BaseFairseqModel):
    """Base of both models.

    Attributes:
        config_class: the dataclass of the model's flags.
    """

    config_class: type[FairseqDataclass]

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the flags of the model's dataclass."""
        add_arguments(parser, cls.config_class())

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data_name_or_path: str = ".", **options: Any
    ) -> TrainedModel:
        """Load a model for plain text.

        Text must be tokenised and cased like the training text before BPE or SentencePiece. It is cleaned by
        ``units.clean_text``, as ``data_prep`` cleans a user's text. If the dictionary shows that the training text was
        tokenised by Moses or lower-cased, and no tokenizer is given, a warning says so.

        Args:
            model_name_or_path: folder of the checkpoint.
            checkpoint_file: its name in the folder; several, joined by colons, are an ensemble.
            data_name_or_path: folder of the dictionaries.
            options: any of fairseq's. ``bpe``: the method that splits words into subwords, by default the one that the
                dictionary shows; None if the text is split already. ``bpe_codes`` or ``sentencepiece_model``: the file
                of the method, by default searched for beside the checkpoint, beside the dictionaries, and where
                ``scripts.reproduce`` leaves it. ``tokenizer``: such as "moses".

        Raises:
            CodesError: the file of the method is not found. For text that is split already, give ``bpe=None``.
            RuntimeError: the plugin is not registered with fairseq.
        """
        if "pla_translation" not in TASK_REGISTRY:
            raise RuntimeError(
                f"{cls.__name__} was imported, but the plugin is not registered with fairseq: use "
                f"`from lightconv_plugin import {cls.__name__}`, or `import lightconv_plugin.register` first"
            )
        loaded = hub_utils.from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, archive_map=cls.hub_models(), **options
        )
        cfg, task = loaded["args"], loaded["task"]
        words = task.source_dictionary.symbols
        units: Any = options["bpe"] if "bpe" in options else getattr(cfg.bpe, "_name", cfg.bpe) or units_of(words)
        if option := _OPTION.get(units):
            data = Path(cfg.task.data.split(":")[0]).resolve()
            beside = (Path(file_utils.load_archive_file(model_name_or_path)) / checkpoint_file.split(":")[0]).parent
            language = getattr(cfg.task, "source_lang", None)
            # fairseq's function prefers any file named code or bpecodes to the one that the user names
            codes = options.get(option) or find_codes(language, beside, data, data.parent / "prepared")
            with open_dict(cfg):
                cfg.bpe = cfg.bpe or {"_name": units}
                cfg.bpe[option] = str(codes)
        in_units = "bpe" in options and units is None
        if steps := [] if in_units or "tokenizer" in options else steps_before(words):
            warnings.warn(
                f"{checkpoint_file} learnt from text that was {', '.join(steps)}: give it such text. tokenizer='moses' "
                "tokenises; python -m scripts.translate applies all steps of the model's dataset",
                stacklevel=2,
            )
        return (TrainedModel if in_units else TextModel)(cfg, task, loaded["models"])
