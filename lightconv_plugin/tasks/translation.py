"""``pla_translation``: fairseq's translation task, which generates by ``BeamSearchGenerator``."""

from typing import Any

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from lightconv_plugin.tasks.beam_search import BeamSearchGenerator


@register_task("pla_translation", dataclass=TranslationConfig)
class FastTranslationTask(TranslationTask):
    """``translation`` in all but the speed of beam search. Serves every model, and checkpoints of either task."""

    def build_generator(
        self, models: list[Any], args: Any, seq_gen_cls: Any = None, *others: Any, **options: Any
    ) -> Any:
        """As fairseq's; a generator asked for by name, and the one of --print-alignment, are fairseq's own."""
        if seq_gen_cls is None and not getattr(args, "print_alignment", False):
            seq_gen_cls = BeamSearchGenerator
        return super().build_generator(models, args, seq_gen_cls, *others, **options)
