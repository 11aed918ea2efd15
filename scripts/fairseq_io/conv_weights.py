"""The kernels with which a trained model convolves one sentence, taken from its own modules.

A convolution is known by what it offers (``kernels``, ``causal``), so that nothing here imports the plugin, which
``models.load_plugin`` registers as ``--user-dir`` does. Self-attention offers its weights by offset as kernels.
"""

import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scripts.common.errors import UserError
from scripts.fairseq_io.checkpoints import damage

BEAM = 5


@dataclass(frozen=True)
class Kernels:
    """The kernels of one convolution, or the weights of self-attention, over one sentence."""

    side: str  # encoder or decoder
    layer: int  # from 1 on
    weights: Any  # normalised, numpy; (T, H, K) where each position predicts its own, (H, K) where they are learnt
    offsets: range  # where the K inputs lie, from the position that is computed: -K + 1 to 0 in a decoder
    normalization: str  # by which they were normalised
    kind: str = "DynamicConv"  # the module's class

    @property
    def predicted(self) -> bool:
        return self.weights.ndim == 3


class Sentence(NamedTuple):
    """The numbers that the two sides read: (T,) as torch tensors; no source for a language model."""

    encoder: Any
    decoder: Any


class Reader:
    """A trained model, its task and its dictionaries: a checkpoint and the binarised data."""

    def __init__(self, path: Path, data: Path) -> None:
        from fairseq import checkpoint_utils
        from fairseq.models import FairseqLanguageModel

        if problem := damage(path):
            raise UserError(f"cannot load {path}: {problem}; give one that scripts.train or scripts.average wrote")
        try:
            models, _, task = checkpoint_utils.load_model_ensemble_and_task(
                [str(path)], arg_overrides={"data": str(data.resolve())}
            )
        except RuntimeError as error:  # the plugin says in a sentence what is wrong with a checkpoint
            raise UserError(f"cannot load {path} with the dictionaries of {data}: {error}") from error
        self.model, self.task, self.data = models[0].eval(), task, data
        self.language_model = isinstance(self.model, FairseqLanguageModel)

    @property
    def dictionaries(self) -> tuple[Any, Any]:
        """Of the source and of the target; the same for a language model."""
        return self.task.source_dictionary, self.task.target_dictionary

    def encode(self, text: str, dictionary: Any) -> Any:
        """Tokens parted by blanks, as in the prepared text, to numbers, with the end of the sentence."""
        return dictionary.encode_line(text, add_if_not_exist=False).long()

    def sentence(self, source: str, target: str | None = None) -> Sentence:
        """A sentence given as text. Without ``target`` the decoder reads the model's own translation."""
        numbers = self.encode(source, self.dictionaries[0])
        if self.language_model:
            return self._checked(None, numbers)
        if target is None:
            return self._checked(numbers, self._translate(numbers))
        return self._checked(numbers, self.encode(target, self.dictionaries[1]))

    def line(self, number: int, subset: str) -> Sentence:
        """The sentence, with its reference, on line ``number`` (from 1 on) of a binarised subset."""
        from fairseq.data import data_utils

        if self.language_model:
            parts = [subset]
        else:
            languages = self.task.args if hasattr(self.task, "args") else self.task.cfg
            source, target = languages.source_lang, languages.target_lang
            parts = [f"{subset}.{source}-{target}.{language}" for language in (source, target)]
        texts = []
        for part, dictionary in zip(parts, self.dictionaries, strict=False):
            content = data_utils.load_indexed_dataset(str(self.data / part), dictionary)
            if content is None:
                raise UserError(f"no subset `{subset}` in {self.data}: there is no {part}.bin; give another --subset")
            if not 1 <= number <= len(content):
                raise UserError(f"line {number} of {part}: it has the lines 1 to {len(content):,}")
            texts.append(content[number - 1].long())
        return self._checked(None if self.language_model else texts[0], texts[-1])

    def words(self, numbers: Any, side: str) -> list[str]:
        """The tokens as text."""
        dictionary = self.dictionaries[side == "decoder"]
        return [dictionary[number] for number in numbers.tolist()]

    def kernels(self, sentence: Sentence) -> list[Kernels]:
        """The kernels of all convolutions while the model reads the sentence, in the order of its layers."""
        import torch

        found: list[Kernels] = []

        def note(name: str, module: Any, inputs: tuple, options: dict[str, Any]) -> None:
            query = options.get("query")
            weights = module.kernels(inputs[0] if query is None else query)
            if weights.dim() == 4:
                weights = weights[:, 0]  # the one sentence of the batch
            place = re.search(r"(encoder|decoder)\.layers\.(\d+)", name)
            assert place, name
            size = weights.shape[-1]
            first = 1 - size if module.causal else -(size // 2)
            normalization = getattr(module, "normalization", "softmax")
            offsets, kind = range(first, first + size), type(module).__name__
            found.append(Kernels(place[1], int(place[2]) + 1, weights.float().numpy(), offsets, normalization, kind))

        convolutions = [(name, m) for name, m in self.model.named_modules() if hasattr(m, "kernels")]
        if not convolutions:
            raise UserError(
                f"no kernels to show: this {type(self.model).__name__} has no LightConv, DynamicConv or self-attention "
                "of the plugin's in it"
            )
        hooks = [
            module.register_forward_hook(
                lambda m, inputs, options, _out, name=name: note(name, m, inputs, options), with_kwargs=True
            )
            for name, module in convolutions
        ]
        try:
            with torch.no_grad():
                self.model(**self._input(sentence))
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def _input(self, sentence: Sentence) -> dict[str, Any]:
        import torch

        given = sentence.decoder.unsqueeze(0)
        if sentence.encoder is None:
            return {"src_tokens": given}
        lengths = torch.tensor([len(sentence.encoder)])
        return {"src_tokens": sentence.encoder.unsqueeze(0), "src_lengths": lengths, "prev_output_tokens": given}

    def _checked(self, source: Any, target: Any) -> Sentence:
        """The decoder reads the target one to the right: the end of a sentence first, and not its last token."""
        import torch

        limit = self.model.max_positions()
        limits = dict(zip(("source", "target"), limit if isinstance(limit, Sequence) else (None, limit), strict=True))
        for name, numbers in (("source", source), ("target", target)):
            if numbers is not None and len(numbers) > limits[name]:
                raise UserError(
                    f"the {name} has {len(numbers):,} tokens, the model reads at most {limits[name]:,}; "
                    "give a shorter sentence"
                )
        return Sentence(source, torch.cat([target[-1:], target[:-1]]))

    def _translate(self, source: Any) -> Any:
        import torch

        generator = self.task.build_generator([self.model], Namespace(beam=BEAM))
        dataset = self.task.build_dataset_for_inference([source], [len(source)])
        with torch.no_grad():
            return self.task.inference_step(generator, [self.model], dataset.collater([dataset[0]]))[0][0]["tokens"]
