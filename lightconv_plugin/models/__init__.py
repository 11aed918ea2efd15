"""Options, blocks, models and architectures for fairseq. Importing this package registers them with fairseq.

A program should import ``lightconv_plugin.register``, or a model from ``lightconv_plugin``. This also registers the
tasks and criterions, and makes the changes that fairseq needs to run with current torch (``compat``).
"""

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
