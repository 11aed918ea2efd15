"""fairseq's side: options, blocks, models, architectures. Importing the package registers them all."""

import lightconv_plugin.register  # noqa: F401  who imports a model wants fairseq's shims, tasks and criterions with it
from lightconv_plugin.models import architectures, encoder_decoder, language_model
from lightconv_plugin.models.encoder_decoder import LightConvDecoder, LightConvEncoder, LightConvModel
from lightconv_plugin.models.language_model import LightConvLanguageModel

__all__ = [
    "LightConvDecoder",
    "LightConvEncoder",
    "LightConvLanguageModel",
    "LightConvModel",
    "architectures",
    "encoder_decoder",
    "language_model",
]
