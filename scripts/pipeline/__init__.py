"""Stages that are run once and skipped while nothing has changed, and the configurations that say what they do."""
