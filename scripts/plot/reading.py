"""Kernels of a trained model on a line of text, and its attention to the source."""

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from data_prep.common.errors import UserError
from data_prep.common.files import read_lines
from data_prep.dataset import load_dataset
from data_prep.lines import line_steps
from data_prep.steps.learn import APPLY_BPE
from scripts.fairseq_io.models import load_plugin
from scripts.pretrained import codes_file
from scripts.translate import Trained

MOST_UNITS = 80  # longest line in subwords: more labels would not be legible
SAMPLE_LENGTHS = range(6, 21)  # lengths in subwords of the test line that is used if the user gives none


class Layer(NamedTuple):
    """The kernels of a layer: (H, K) of LightConv, (T, H, K) of DynamicConv."""

    side: str  # encoder or decoder
    number: int  # from 1
    offsets: range  # of a kernel's weights; 0 is the position itself
    kernels: np.ndarray

    @property
    def width(self) -> int:
        """The width K of the kernels."""
        return len(self.offsets)

    def entropies(self) -> list[float | None]:
        """Return the mean entropy of each head's kernels in bits; None if the weights are not a distribution."""
        kernels = self.kernels if self.kernels.ndim == 3 else self.kernels[None]
        if (kernels < 0).any() or abs(kernels.sum(axis=-1) - 1).max() > 1e-3:
            return [None] * kernels.shape[1]
        logarithms = np.log2(np.where(kernels > 0, kernels, 1.0))
        return [float(value) for value in -(kernels * logarithms).sum(axis=-1).mean(axis=0)]


@dataclass
class Reading:
    """A line of text as a model reads it, and what it computes.

    ``source`` and ``inputs`` are the subwords that encoder and decoder read, ``outputs`` those that the decoder writes;
    all are empty if no text was needed. ``attention`` has a (T, S) matrix for each layer of the decoder, the mean over
    its heads.
    """

    layers: list[Layer]
    source: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attention: list[np.ndarray] = field(default_factory=list)


def read(trained: Trained, text: str | None, *, attention: bool) -> Reading:
    """Run a model on a line of text; a translation model first translates it.

    Args:
        trained: the model.
        text: plain text; None for a line of the dataset's test set, if a line is needed.
        attention: also return the attention to the source.

    Raises:
        UserError: the model has no convolution, or no source for ``attention``; there is no line, or it is too long.
    """
    load_plugin()
    from fairseq import checkpoint_utils

    from lightconv_plugin.modules import DynamicConv, LightweightConv

    overrides = {"data": str(trained.dictionaries.resolve())}
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(trained.model)], arg_overrides=overrides)
    model = models[0].eval()
    kinds = (DynamicConv, LightweightConv)
    convolutions = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    translates = hasattr(model, "encoder")
    if attention and not translates:
        raise UserError(f"{trained.model} is a language model, which has no source to attend to; leave out --attention")
    if not convolutions and not attention:
        hint = "; add --attention to draw its attention to the source" if translates else ""
        raise UserError(f"{trained.model} has neither LightConv nor DynamicConv{hint}")
    if not attention and not any(isinstance(module, DynamicConv) for module in convolutions.values()):
        return Reading([_layer(name, module, module.weight) for name, module in convolutions.items()])
    units = (_prepared(trained, text) if text is not None else _sample(trained)).split()
    if not 0 < len(units) <= MOST_UNITS:
        raise UserError(
            f"the line has {len(units)} subwords; expected 1 to {MOST_UNITS}, so that their labels are legible"
        )
    if not translates:
        with _captured(convolutions) as layers:
            words = task.source_dictionary
            model(_with_end_first(words.encode_line(" ".join(units), add_if_not_exist=False).long(), words.eos()))
        return Reading(layers, inputs=["</s>", *units])
    sample, outputs = _translate(model, task, trained.generate, units)
    with _captured(convolutions) as layers:
        source = model.encoder(sample["src_tokens"], src_lengths=sample["src_lengths"])
    inputs = _with_end_first(outputs, task.target_dictionary.eos())
    with _captured(convolutions) as more:
        depths = range(len(model.decoder.layers) if attention else 1)
        passes = [model.decoder(inputs, encoder_out=source, alignment_layer=depth)[1] for depth in depths]
    written = [task.target_dictionary[token] for token in outputs]
    weights = [extra["attn"][0][0].float().detach().numpy() for extra in passes] if attention else []
    return Reading(
        [*layers, *more[: len(more) // len(depths)]], [*units, "</s>"], ["</s>", *written[:-1]], written, weights
    )


def _with_end_first(tokens: Any, end: int) -> Any:
    """Return the decoder's input (1, T): the end-of-sentence token, then all tokens except the last, which is that."""
    return tokens.roll(1)[None].index_fill(1, tokens.new_zeros(1), end)


def _translate(model: Any, task: Any, generate: Mapping[str, Any], units: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """Return the encoder's input, and the tokens of the best hypothesis with its end-of-sentence token."""
    import torch

    tokens = task.source_dictionary.encode_line(" ".join(units), add_if_not_exist=False).long()
    dataset = task.build_dataset_for_inference([tokens], [len(tokens)])
    sample = dataset.collater([dataset[0]])
    options = Namespace(**{name.replace("-", "_"): value for name, value in generate.items()})
    generator = task.build_generator([model], options)
    with torch.no_grad():
        [[best, *_]] = task.inference_step(generator, [model], sample)
    return sample["net_input"], best["tokens"]


@contextmanager
def _captured(convolutions: Mapping[str, Any]) -> Iterator[list[Layer]]:
    """Yield a list to which each convolution that is called within the block adds its kernels."""
    import torch

    layers: list[Layer] = []

    def keep(name: str) -> Any:
        def hook(module: Any, arguments: Any, keywords: Any) -> None:
            query = keywords.get("query")
            layers.append(_layer(name, module, arguments[0] if query is None else query))

        return hook

    hooks = [module.register_forward_pre_hook(keep(name), with_kwargs=True) for name, module in convolutions.items()]
    try:
        with torch.no_grad():
            yield layers
    finally:
        for hook in hooks:
            hook.remove()


def _layer(name: str, module: Any, query: Any) -> Layer:
    side, number = re.findall(r"(encoder|decoder)\.layers\.(\d+)", name)[0]
    offsets = range(-module.padding_l, module.kernel_size - module.padding_l)
    kernels = module.kernels(query).float().detach().numpy()
    return Layer(side, int(number) + 1, offsets, kernels[:, 0] if kernels.ndim == 4 else kernels)


def _prepared(trained: Trained, text: str) -> str:
    """Return a line of plain text as the model reads it: tokenised, in subwords."""
    dataset, codes = load_dataset(trained.dataset), None
    if dataset.units and not any(step.name == APPLY_BPE for step in dataset.steps):
        codes = codes_file(dataset.source, *trained.codes_folders)
    return line_steps(dataset, dataset.source, codes)(text)


def _sample(trained: Trained) -> str:
    """Return the first line of the prepared test set whose length is in ``SAMPLE_LENGTHS``."""
    name = f"test.{load_dataset(trained.dataset).source}"
    files = [folder / name for folder in trained.codes_folders if (folder / name).is_file()]
    lines = read_lines(files[0]) if files else []
    line = next((line for line in lines if len(line.split()) in SAMPLE_LENGTHS), None)
    if line is None:
        raise UserError(f"no prepared {name} beside {trained.model} has a line to draw; give one with --text")
    return line
