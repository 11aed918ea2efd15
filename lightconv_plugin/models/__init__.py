"""fairseq's side: options, blocks, models, architectures. Importing the package registers these with fairseq.

A program imports ``lightconv_plugin.register``, or a model from ``lightconv_plugin``: that also registers the tasks and
criterions, and applies what fairseq needs on today's torch (``compat``).
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
