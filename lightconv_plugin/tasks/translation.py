"""``pla_translation``: fairseq's translation task, which generates by ``BeamSearchGenerator``."""

from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from lightconv_plugin import limits
from lightconv_plugin.tasks.beam_search import BeamSearchGenerator
from lightconv_plugin.units import clean_text


@dataclass
class FastTranslationConfig(TranslationConfig):
    # fairseq reads the type, and knows only this spelling
    stepwise_length_penalty: Optional[float] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "alpha of the length penalty ((5 + length) / 6)**alpha (Wu et al., 2016), by which finished and "
            "unfinished hypotheses are compared at every step of the search; replaces --lenpen"
        },
    )


class FastDictionary(Dictionary):
    """fairseq's dictionary, but a tensor is copied to the host at once. fairseq waits for a GPU at every number."""

    def string(self, tensor: Any, *arguments: Any, **options: Any) -> str:
        if torch.is_tensor(tensor) and tensor.dim() == 1:
            tensor = tensor.tolist()
        text: str = super().string(tensor, *arguments, **options)
        return text


class CleanText:
    """One of fairseq's subword encoders, which gets cleaned text (``units.clean_text``)."""

    def __init__(self, cutter: Any) -> None:
        self._cutter, self.decode = cutter, cutter.decode

    def encode(self, line: str) -> str:
        """Clean a line and return its subwords."""
        subwords: str = self._cutter.encode(clean_text(line))
        return subwords


@register_task("pla_translation", dataclass=FastTranslationConfig)
class FastTranslationTask(TranslationTask):
    """fairseq's ``translation`` with a faster beam search, for every model, and for checkpoints of either task."""

    @classmethod
    def load_dictionary(cls, filename: str) -> Dictionary:
        return FastDictionary.load(filename)

    def build_bpe(self, args: Any) -> Any:
        """Return the subword encoder that ``--bpe`` names, for ``fairseq-interactive``; None without ``--bpe``."""
        cutter = super().build_bpe(args)
        return None if cutter is None else CleanText(cutter)

    def build_generator(
        self,
        models: list[Any],
        args: Any,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: dict[str, Any] | None = None,
        *others: Any,
        **options: Any,
    ) -> Any:
        """Build a ``BeamSearchGenerator``; with ``seq_gen_cls`` or --print-alignment, build fairseq's generator.

        Raises:
            ValueError: the value of a flag is out of range, or a stepwise length penalty is combined with fairseq's
                generator or with flags that it excludes.
        """
        if refusal := limits.refused(args):
            name, expected = refusal
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(args, name)}, {expected}")
        alpha = getattr(self.cfg, "stepwise_length_penalty", None)
        if seq_gen_cls is None and not getattr(args, "print_alignment", False):
            seq_gen_cls = BeamSearchGenerator
            extra_gen_cls_kwargs = {**(extra_gen_cls_kwargs or {}), "stepwise_length_penalty": alpha}
        elif alpha is not None:
            conflict = "--print-alignment" if seq_gen_cls is None else seq_gen_cls.__name__
            raise ValueError(f"--stepwise-length-penalty is for pla_translation's own generator; remove {conflict}")
        return super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, *others, **options)
