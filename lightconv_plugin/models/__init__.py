"""fairseq's side: options, blocks, models, architectures. Importing the package registers them all."""

from lightconv_plugin.models import architectures, encoder_decoder, language_model

__all__ = ["architectures", "encoder_decoder", "language_model"]
