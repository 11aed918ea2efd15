"""The stages as commands, such as train, average, generate, score. ``scripts.reproduce`` runs all of them."""
