"""The stages as commands, such as train, average, generate, score. ``scripts.reproduce`` runs all of them."""

import sys

from scripts.common import say_what_is_missing

sys.excepthook = say_what_is_missing
