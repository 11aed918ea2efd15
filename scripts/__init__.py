"""The stages as commands: train, average, generate, score; reproduce.py runs them all for one config."""
