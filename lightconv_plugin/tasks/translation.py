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
            "unfinished hypotheses are compared at every step of the search; in place of --lenpen"
        },
    )


class FastDictionary(Dictionary):
    """fairseq's, which reads tensors number by number: on a GPU it waits for each."""

    def string(self, tensor: Any, *others: Any, **options: Any) -> str:
        if torch.is_tensor(tensor) and tensor.dim() == 1:
            tensor = tensor.tolist()
        text: str = super().string(tensor, *others, **options)
        return text


class CleanText:
    """One of fairseq's ways to cut text into units, after the text is cleaned (``units.clean_text``)."""

    def __init__(self, cutter: Any) -> None:
        self._cutter, self.decode = cutter, cutter.decode

    def encode(self, line: str) -> str:
        """Return the units of a line."""
        units: str = self._cutter.encode(clean_text(line))
        return units


@register_task("pla_translation", dataclass=FastTranslationConfig)
class FastTranslationTask(TranslationTask):
    """``translation`` in all but the speed of beam search. Serves every model, and checkpoints of either task."""

    @classmethod
    def load_dictionary(cls, filename: str) -> Dictionary:
        return FastDictionary.load(filename)

    def build_bpe(self, args: Any) -> Any:
        """Return what ``--bpe`` names, for ``fairseq-interactive``; None where text comes in units."""
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
        """As fairseq's; a generator asked for by name, and the one of --print-alignment, are fairseq's own.

        Raises:
            ValueError: those and a stepwise length penalty are asked for, or others that do not go together; a flag has
                a value that no search can have.
        """
        if refusal := limits.refused(args):
            name, expected = refusal
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(args, name)}, {expected}")
        alpha = getattr(self.cfg, "stepwise_length_penalty", None)
        if seq_gen_cls is None and not getattr(args, "print_alignment", False):
            seq_gen_cls = BeamSearchGenerator
            extra_gen_cls_kwargs = {**(extra_gen_cls_kwargs or {}), "stepwise_length_penalty": alpha}
        elif alpha is not None:
            other = "--print-alignment" if seq_gen_cls is None else seq_gen_cls.__name__
            raise ValueError(f"--stepwise-length-penalty is for pla_translation's own generator; take {other} away")
        return super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, *others, **options)
