"""A configuration as far as it can be had without training: its resolved flags, its dataset and the model itself."""

import functools
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

from data_prep.dataset import load_dataset
from scripts import params
from scripts.fairseq_io.commands import train_command
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.models import load_plugin
from scripts.pipeline.config import load_config
from tests.configs.test_configs import MACHINES, parse_command

_SET = re.compile(r"(?:newstest|newsdev|devtest)\d{4}")


class Built:
    """A configuration with its flags as fairseq resolves them on the paper's machine. Several values come sorted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = load_config(path)
        self.dataset = load_dataset(self.config.dataset)
        self.gpus = MACHINES[path.parent.name][0]
        devices = Devices(gpu=True, count=self.gpus)
        self.train = parse_command(train_command(self.config, 1, Path("data"), Path("out"), devices))

    # the model

    @functools.cached_property
    def model(self) -> Any:
        """The model without memory."""
        load_plugin()
        return params.build(Namespace(**vars(self.train)), params.vocabulary(self.path))

    @property
    def sides(self) -> list[Any]:
        """Encoder and decoder, or the decoder alone."""
        return [side for name in ("encoder", "decoder") if (side := getattr(self.model, name, None)) is not None]

    @property
    def layers(self) -> list[Any]:
        """The blocks of all sides."""
        return [layer for side in self.sides for layer in side.layers]

    @property
    def mixers(self) -> list[Any]:
        """The modules in the place of self-attention, in our blocks or in fairseq's."""
        return [layer.mixer if hasattr(layer, "mixer") else layer.self_attn for layer in self.layers]

    @property
    def networks(self) -> list[Any]:
        """The feed-forward networks; in fairseq's blocks they are the block itself."""
        return [getattr(layer, "ffn", layer) for layer in self.layers]

    @property
    def convs(self) -> list[Any]:
        """The convolution modules with projections."""
        return [mixer for mixer in self.mixers if hasattr(mixer, "conv")]

    @property
    def stacks(self) -> int:
        """Number of sides."""
        return len(self.sides)

    @property
    def blocks(self) -> list[int]:
        """Number of blocks of each side."""
        return [len(side.layers) for side in self.sides]

    @property
    def kinds(self) -> list[str]:
        """The kind of mixer of each side's first block."""
        return [type(side.layers[0].mixer).__name__ for side in self.sides]

    def _kernels(self, side: str) -> list[int]:
        mixers = [layer.mixer for layer in getattr(self.model, side).layers]
        return [mixer.conv.kernel_size if hasattr(mixer, "conv") else mixer.window_size for mixer in mixers]

    @property
    def encoder_kernels(self) -> list[int]:
        """Kernel or window of each block of the encoder."""
        return self._kernels("encoder")

    @property
    def decoder_kernels(self) -> list[int]:
        """Kernel or window of each block of the decoder."""
        return self._kernels("decoder")

    @property
    def glu(self) -> list[bool]:
        """Return for the modules whether they have a gate."""
        return sorted({module.glu for module in self.convs})

    @property
    def square_output(self) -> list[bool]:
        """Return whether the output projections are d x d."""
        return sorted({(m.out_proj.in_features, m.out_proj.out_features) == (self.width,) * 2 for m in self.convs})

    @property
    def input_projections(self) -> list[int]:
        """The widths that the input projections map to."""
        return sorted({module.in_proj.out_features for module in self.convs})

    @property
    def dropconnect(self) -> bool:
        """Return True if all kernels have DropConnect, False if none has; mixed ones are an error."""
        (dropped,) = {module.conv.dropconnect > 0 for module in self.convs}
        return dropped

    @property
    def normalisation(self) -> list[str]:
        """The normalisations of the kernels."""
        return sorted({module.conv.normalization for module in self.convs})

    @property
    def conv_heads(self) -> list[int]:
        """The numbers of kernels."""
        return sorted({module.conv.heads for module in self.convs})

    @property
    def full_weights(self) -> list[list[int]]:
        """The shapes of the weights of non-separable convolutions."""
        return sorted({tuple(mixer.weight.shape): list(mixer.weight.shape) for mixer in self.mixers}.values())

    @property
    def heads(self) -> list[int]:
        """The numbers of heads of all mixers that have heads and of source attention."""
        modules = [getattr(mixer, "conv", mixer) for mixer in self.mixers]
        modules += [layer.encoder_attn for layer in self.layers if getattr(layer, "encoder_attn", None)]
        found = {getattr(module, "heads", getattr(module, "num_heads", None)) for module in modules}
        return sorted(heads for heads in found if heads is not None)

    @property
    def width(self) -> int:
        """d, the same in every block."""
        (width,) = {network.fc1.in_features for network in self.networks}
        return int(width)

    @property
    def hidden(self) -> list[int]:
        """The widths of the feed-forward networks."""
        return sorted({network.fc1.out_features for network in self.networks})

    @property
    def activations(self) -> list[str]:
        """The names of the feed-forward networks' activations."""
        functions = [getattr(one, "activation", None) or one.activation_fn for one in self.networks]
        return sorted({function.__name__ for function in functions})

    @property
    def norm_each(self) -> bool:
        """Return True if there are as many layer norms as sub-blocks: two a block, and source attention."""
        norms = sum("LayerNorm" in type(module).__name__ for layer in self.layers for module in layer.modules())
        return norms == sum(2 + (getattr(layer, "encoder_attn", None) is not None) for layer in self.layers)

    @property
    def positions(self) -> list[str]:
        """The kinds of position embeddings."""
        return sorted({type(side.embed_positions).__name__ for side in self.sides})

    @property
    def bands(self) -> list[list[Any]]:
        """The types of each band of the vocabulary, in thousands, and the width of their embeddings."""
        embeddings = self.model.decoder.embed_tokens.embeddings
        return [[f"{band[0].num_embeddings // 1000}K", band[0].embedding_dim] for band in embeddings]

    # training, data and evaluation

    @property
    def tokens(self) -> str:
        """Tokens of an update in thousands."""
        return f"{round(self.train.max_tokens * self.gpus * self.train.update_freq[0] / 1000)}K"

    @property
    def cycles(self) -> float:
        """Periods of the cosine after the warm-up."""
        return float((self.train.max_update - self.train.warmup_updates) / self.train.lr_period_updates)

    @property
    def pairs(self) -> str:
        """Lines of the training text, in millions or thousands, as the dataset expects them."""
        lines = [each.lines["train"] for each in self.dataset.expected if "train" in each.lines][-1]
        return f"{lines / 1e6:.1f}M" if lines >= 1e6 else f"{lines / 1e3:.0f}K"

    @property
    def archives(self) -> list[str]:
        """The files that are fetched."""
        return sorted(self.dataset.files)

    def _sets(self, split: str) -> list[str]:
        members = [member for source in self.dataset.splits[split] for member in source.members.values()]
        return sorted({match[0] for member in members if (match := _SET.search(member))})

    @property
    def valid_sets(self) -> list[str]:
        """The test sets of WMT that are validated on."""
        return self._sets("valid")

    @property
    def test_sets(self) -> list[str]:
        """The test sets of WMT that are tested on."""
        return self._sets("test")

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """The parameters of the dataset's steps by their names."""
        return {step.name: step.parameters for step in self.dataset.steps}

    @property
    def lowercased(self) -> bool:
        """Return True if the text loses its case."""
        return "lowercase" in self.steps

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.config.seeds)

    @property
    def tuned(self) -> dict[str, bool]:
        """Return for each setting whether it has several candidates."""
        return {key: len(candidates) > 1 for key, candidates in self.config.tune.items()}

    @property
    def stepwise(self) -> bool:
        """Return True if a stepwise length penalty is set or tuned."""
        return any("stepwise" in key for key in {**self.config.generate, **self.config.tune})
