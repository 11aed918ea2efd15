"""The stages as commands, such as train, average, generate, score. ``scripts.reproduce`` runs all of them."""

import os
import sys

from scripts.common import say_in_words

sys.excepthook = say_in_words
# libgomp reads it as torch is loaded: idle threads sleep, since where another job has the cores, too, those that spin
# make updates and searches 10 times slower. The programs that commands start inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
