"""Tasks with a faster beam search. Importing the package registers them."""

from lightconv_plugin.tasks import translation

__all__ = ["translation"]
