"""The hub object (`from_pretrained`): scores of translations, alignments, copies and pickles."""

from __future__ import annotations

import copyreg
from typing import Any

from lightconv_plugin.compat.shim import Original, shim


def score_translations() -> None:
    """All versions: `hub.score(sources, targets=translations)` scores translations, as `hub.score` does sentences.

    fairseq scores with language models alone, and fails with a missing argument where a model has an encoder.
    """
    from fairseq import utils
    from fairseq.data import LanguagePairDataset
    from fairseq.hub_utils import GeneratorHubInterface
    from fairseq.sequence_scorer import SequenceScorer

    @shim(GeneratorHubInterface, "score")
    def with_targets(
        original: Original,
        self: Any,
        sentences: Any,
        replace_newline_with_eos: bool = False,
        targets: Any = None,
        **kwargs: Any,
    ) -> Any:
        if not any(hasattr(model, "encoder") for model in self.models):
            if targets is not None:
                raise ValueError("a language model has no source: give the sentences alone, hub.score(sentences)")
            return original(self, sentences, replace_newline_with_eos, **kwargs)
        if isinstance(sentences, str):
            sentences, targets = [sentences], targets if targets is None else [targets]
            return with_targets(original, self, sentences, targets=targets)[0]
        if targets is None or len(targets) != len(sentences):
            raise ValueError(
                f"a translation's score needs its source and itself: hub.score(sources, targets=translations); got "
                f"{len(sentences)} sources and {'no' if targets is None else len(targets)} translations"
            )
        # a translation is tokenised and cut up as a source is
        units = [self.apply_bpe(self.tokenize(translation)) for translation in targets]
        words = [self.tgt_dict.encode_line(line, add_if_not_exist=False).long() for line in units]
        pairs = [[self.encode(sentence) for sentence in sentences], words]
        sizes = [[each.numel() for each in side] for side in pairs]
        dataset = LanguagePairDataset(pairs[0], sizes[0], self.src_dict, pairs[1], sizes[1], self.tgt_dict)
        batches = self.task.get_batch_iterator(
            dataset=dataset,
            max_tokens=self.cfg.dataset.max_tokens,
            max_sentences=self.cfg.dataset.batch_size,
            max_positions=self.max_positions,
            disable_iterator_cache=True,
        ).next_epoch_itr(shuffle=False)
        found: dict[int, Any] = {}
        for batch in batches:
            batch = utils.apply_to_sample(lambda t: t.to(self.device), batch)
            scored = SequenceScorer(self.tgt_dict, **kwargs).generate(self.models, batch)
            found.update(zip(batch["id"].tolist(), (best for best, *_ in scored), strict=True))
        return [found[i] for i in range(len(sentences))]


def align_when_asked() -> None:
    """All versions: `hub.generate(..., print_alignment="hard")`, "soft", or True for the former.

    fairseq decides when a model is loaded that nobody will look at its attention, and then fails.
    """
    from fairseq.hub_utils import GeneratorHubInterface

    @shim(GeneratorHubInterface, "generate")
    def with_attention(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("print_alignment") is True:
            kwargs["print_alignment"] = "hard"  # as the flag without a word
        modules = [m for m in self.modules() if kwargs.get("print_alignment") and not getattr(m, "need_attn", True)]
        for module in modules:
            module.need_attn = True
        try:
            return original(self, *args, **kwargs)
        finally:
            for module in modules:
                module.need_attn = False


def copy_and_pickle() -> None:
    """All versions: models and hub objects are copied by `copy.deepcopy` and pickled, before and after generation.

    A task looks for its state in its state for ever while it is copied; a model made ready for generation holds a
    function inside of a function; and the classes of options with a choice have no name to be found by.
    """
    from fairseq.dataclass.constants import ChoiceEnum, StrEnum, StrEnumMeta
    from fairseq.models import BaseFairseqModel
    from fairseq.tasks.fairseq_task import StatefulContainer

    @shim(StatefulContainer, "__getattr__")
    def not_yet_there(original: Original, self: Any, name: str) -> Any:
        if "_state" not in vars(self):
            raise AttributeError(name)
        return original(self, name)

    @shim(BaseFairseqModel, "make_generation_fast_")
    def named_train(original: Original, self: Any, **kwargs: Any) -> None:
        original(self, **kwargs)
        self.train = refuse_training

    def reduce(choices: Any) -> Any:
        return choices.__name__ if choices is StrEnum else (ChoiceEnum, ([choice.value for choice in choices],))

    copyreg.pickle(StrEnumMeta, reduce)


def refuse_training(mode: bool = True) -> None:
    """Stand in for `train` of a model that is ready for generation, as fairseq's own function does."""
    if mode:
        raise RuntimeError("cannot train after make_generation_fast")
