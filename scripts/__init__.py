"""Commands for the stages, such as train, average, generate, score; ``scripts.reproduce`` runs all of them."""

from data_prep.common import set_up_command

set_up_command()
