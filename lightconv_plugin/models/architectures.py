"""Named architectures. Each states only what differs from the one it derives from."""

from typing import Any

from fairseq.models import register_model_architecture

from lightconv_plugin.models import encoder_decoder  # noqa: F401  registers the model that these belong to
from lightconv_plugin.models.config import BASE, fill

LIGHTCONV = {"encoder_conv_type": "lightweight", "decoder_conv_type": "lightweight"}
DYNAMICCONV = {"encoder_conv_type": "dynamic", "decoder_conv_type": "dynamic"}

# "Architectures" in the paper's section 5; no GLU (Table 3's models and the published IWSLT checkpoints have none)
IWSLT = {
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 1024,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "attention_dropout": 0.1,
    "weight_dropout": 0.1,
    "input_dropout": 0.0,
    "encoder_glu": False,
    "decoder_glu": False,
}

# not in the paper: trains on two CPU cores in minutes
SMALL = {
    **IWSLT,
    "encoder_embed_dim": 128,
    "encoder_ffn_embed_dim": 512,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_kernel_size_list": [7, 15],
    "decoder_kernel_size_list": [7, 15],
    "share_all_embeddings": True,
}

ENCODER_DECODER: dict[str, dict[str, Any]] = {
    "pla_lightconv_iwslt_de_en": {**IWSLT, **LIGHTCONV},
    "pla_dynamicconv_iwslt_de_en": {**IWSLT, **DYNAMICCONV},
    "pla_lightconv_small": {**SMALL, **LIGHTCONV},
    "pla_dynamicconv_small": {**SMALL, **DYNAMICCONV},
}


def _register(model: str, architecture: str, values: dict[str, Any]) -> None:
    @register_model_architecture(model, architecture)
    def complete(args: Any) -> None:
        fill(args, {**BASE, **values})  # all of it, so that a checkpoint says what it is by itself


for _name, _values in ENCODER_DECODER.items():
    _register("pla_lightconv", _name, _values)
