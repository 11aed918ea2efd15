"""Named architectures: every model of the paper's tables. Each states only its differences from the one it is based on.

They include the self-attention baselines, since fairseq's own Transformer is no longer the one of the paper. Since
March 2020 (commit 73e1f683) its feed-forward networks have PyTorch's default initialisation; the paper's models had
Xavier's.
"""

from typing import Any

from fairseq.models import register_model_architecture

from lightconv_plugin.models import encoder_decoder, language_model  # noqa: F401  register what these belong to
from lightconv_plugin.models.resolve import BASE, BASE_DECODER, fill

Values = dict[str, Any]


def both(**options: Any) -> Values:
    """Return the same options for the encoder and the decoder."""
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in options.items()}


def size(*, embed_dim: int, ffn_embed_dim: int, heads: int) -> Values:
    """Return widths and heads. A decoder is as wide as its encoder unless the user sets its width."""
    widths = {"encoder_embed_dim": embed_dim, "encoder_ffn_embed_dim": ffn_embed_dim}
    return {**widths, **both(attention_heads=heads)}


LIGHTCONV = both(conv_type="lightweight")
DYNAMICCONV = both(conv_type="dynamic")
# Section 5.1, "the Transformer Big architecture (Ott et al., 2018)": six blocks a side, without dropout of attention
ATTENTION: Values = {**both(conv_type="attention"), "encoder_layers": 6, "attention_dropout": 0.0}
NO_GLU = both(glu=False)

# Section 5.1: 7 encoder blocks against the Transformer's 6, since a block without queries and keys is smaller
WMT: Values = {
    **size(embed_dim=1024, ffn_embed_dim=4096, heads=16),
    "attention_dropout": 0.1,
    "dropout": 0.3,
    "share_all_embeddings": True,
}
# Table 1 has 202M parameters for LightConv, the number with a GLU in the encoder only (in both: 209M)
LIGHTCONV_WMT = {**WMT, **LIGHTCONV, "decoder_glu": False}
DYNAMICCONV_WMT = {**WMT, **DYNAMICCONV}
ATTENTION_WMT = {**WMT, **ATTENTION}
EN_FR: Values = {"dropout": 0.1}
# two scripts, two vocabularies; section 5.3 gives the dropout
ZH_EN: Values = {"dropout": 0.25, "attention_dropout": 0.2, "weight_dropout": 0.2, "share_all_embeddings": False}

# no model of Table 3 has a GLU, not even LightConv and DynamicConv
ABLATION = {**WMT, **NO_GLU}
DEPTHWISE = {**ABLATION, **LIGHTCONV, **both(conv_heads=1024), "weight_normalization": "none", "weight_dropout": 0.0}
DROPCONNECT: Values = {"weight_dropout": 0.1}
SIX_WINDOWS = {"encoder_layers": 6, **both(kernel_size_list=[3, 7, 15, 31, 31, 31])}

IWSLT: Values = {
    **size(embed_dim=512, ffn_embed_dim=1024, heads=4),
    **NO_GLU,
    "attention_dropout": 0.1,
    "weight_dropout": 0.1,
    "input_dropout": 0.0,
}

# Section 6.4 says d = 1024, but only d = 512 gives the numbers of parameters in Table 5
CNN_DM: Values = {
    **size(embed_dim=512, ffn_embed_dim=2048, heads=8),
    **NO_GLU,
    "attention_dropout": 0.1,
    "dropout": 0.3,
}

# not in the paper: trains on two CPU cores in minutes; norms before the sublayers, so that it learns from the start
SMALL: Values = {
    **IWSLT,
    **size(embed_dim=128, ffn_embed_dim=512, heads=4),
    **both(layers=2, kernel_size_list=[3, 7], glu=True, normalize_before=True),
    "share_all_embeddings": True,
}

ENCODER_DECODER: dict[str, Values] = {
    # Tables 1 and 2
    "pla_attention_wmt_en_de_big": ATTENTION_WMT,
    "pla_attention_wmt_en_fr_big": {**ATTENTION_WMT, **EN_FR},
    "pla_attention_wmt_zh_en_big": {**WMT, **ZH_EN, **ATTENTION},
    "pla_lightconv_wmt_en_de_big": LIGHTCONV_WMT,
    "pla_dynamicconv_wmt_en_de_big": DYNAMICCONV_WMT,
    "pla_lightconv_wmt_en_fr_big": {**LIGHTCONV_WMT, **EN_FR},
    "pla_dynamicconv_wmt_en_fr_big": {**DYNAMICCONV_WMT, **EN_FR},
    "pla_lightconv_wmt_zh_en_big": {**LIGHTCONV_WMT, **ZH_EN},
    "pla_dynamicconv_wmt_zh_en_big": {**DYNAMICCONV_WMT, **ZH_EN},
    "pla_attention_iwslt_de_en": {**IWSLT, **ATTENTION},
    "pla_lightconv_iwslt_de_en": {**IWSLT, **LIGHTCONV},
    "pla_dynamicconv_iwslt_de_en": {**IWSLT, **DYNAMICCONV},
    # a variant from the review of the paper: separate projections of value and query
    "pla_dynamicconv_decoupled_iwslt_de_en": {**IWSLT, **DYNAMICCONV, **both(query_dim=256, query_heads=1)},
    # Table 3, row by row after the first, which is Table 1's self-attention
    "pla_local_attention_wmt_en_de_big": {**ABLATION, **both(conv_type="local_attention"), **SIX_WINDOWS},
    "pla_cnn_wmt_en_de_big": {**ABLATION, **both(conv_type="standard", kernel_size_list=[3])},
    "pla_depthwise_k3_wmt_en_de_big": {**DEPTHWISE, **both(kernel_size_list=[3])},
    "pla_depthwise_wmt_en_de_big": DEPTHWISE,
    "pla_depthwise_dropconnect_wmt_en_de_big": {**DEPTHWISE, **DROPCONNECT},
    "pla_depthwise_shared_wmt_en_de_big": {**DEPTHWISE, **DROPCONNECT, **both(conv_heads=16)},
    "pla_lightconv_noglu_wmt_en_de_big": {**ABLATION, **LIGHTCONV},
    "pla_dynamicconv_noglu_wmt_en_de_big": {**ABLATION, **DYNAMICCONV},
    "pla_dynamicconv_nosoftmax_wmt_en_de_big": {**ABLATION, **DYNAMICCONV, "weight_normalization": "none"},
    "pla_aan_decoder_wmt_en_de_big": {
        **ABLATION,
        "encoder_layers": 6,
        "encoder_conv_type": "attention",
        "decoder_conv_type": "average",
    },
    "pla_aan_wmt_en_de_big": {**ABLATION, "encoder_layers": 6, **both(conv_type="average")},
    # Table 7
    "pla_dynamicconv_dec1_wmt_en_de_big": {
        **ABLATION,
        **DYNAMICCONV,
        "decoder_layers": 1,
        "decoder_kernel_size_list": [31],
    },
    "pla_dynamicconv_dec3_wmt_en_de_big": {
        **ABLATION,
        **DYNAMICCONV,
        "decoder_layers": 3,
        "decoder_kernel_size_list": [3, 7, 15],
    },
    # Table 5
    "pla_attention_cnn_dm": {**CNN_DM, **ATTENTION},
    "pla_lightconv_cnn_dm": {**CNN_DM, **LIGHTCONV},
    "pla_dynamicconv_cnn_dm": {**CNN_DM, **DYNAMICCONV},
    "pla_lightconv_small": {**SMALL, **LIGHTCONV},
    "pla_dynamicconv_small": {**SMALL, **DYNAMICCONV},
}

# Table 4; the bands are in "Language Modeling" of section 5.3. Layer norms are before the sublayers, and there is none
# after the last block, as in the code behind the paper. fairseq's lightconv_lm_gbw states an attention_dropout, which
# fairseq-train's own default, 0, overrides.
LM_GBW: Values = {
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "decoder_embed_dim": 1024,
    "decoder_ffn_embed_dim": 4096,
    "decoder_attention_heads": 16,
    "decoder_normalize_before": True,
    "no_decoder_final_norm": True,
    "adaptive_input": True,
    "adaptive_input_cutoff": [60000, 160000],
    "adaptive_softmax_cutoff": [60000, 160000],
    "tie_adaptive_weights": True,
}
LM_GBW_CONV: Values = {
    **LM_GBW,
    "decoder_layers": 17,
    "decoder_kernel_size_list": [15] * 2 + [31] * 4 + [63] * 11,
    "decoder_glu": True,
}
LM_SMALL: Values = {
    **LM_GBW,
    "decoder_embed_dim": 128,
    "decoder_ffn_embed_dim": 512,
    "decoder_attention_heads": 4,
    "decoder_layers": 3,
    "decoder_kernel_size_list": [7, 15, 31],
    "decoder_glu": True,
    "adaptive_input_cutoff": [2000, 6000],
    "adaptive_softmax_cutoff": [2000, 6000],
}

LANGUAGE_MODELS: dict[str, Values] = {
    "pla_attention_lm_gbw": {**LM_GBW, "decoder_layers": 16, "decoder_conv_type": "attention"},
    "pla_lightconv_lm_gbw": {**LM_GBW_CONV, "decoder_conv_type": "lightweight"},
    "pla_dynamicconv_lm_gbw": {**LM_GBW_CONV, "decoder_conv_type": "dynamic"},
    "pla_lightconv_lm_small": {**LM_SMALL, "decoder_conv_type": "lightweight"},
    "pla_dynamicconv_lm_small": {**LM_SMALL, "decoder_conv_type": "dynamic"},
}


def _register(model: str, architecture: str, values: Values) -> None:
    @register_model_architecture(model, architecture)
    def complete(args: Any) -> None:
        fill(args, values)  # all values, so that a checkpoint has the complete options of its model


for _name, _values in ENCODER_DECODER.items():
    _register("pla_lightconv", _name, {**BASE, **_values})
for _name, _values in LANGUAGE_MODELS.items():
    _register("pla_lightconv_lm", _name, {**BASE_DECODER, **_values})
