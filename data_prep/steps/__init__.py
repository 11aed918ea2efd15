"""Passes over the text of a dataset: from its raw files to prepared text.

plan.py arranges the steps of a YAML in passes, and engine.py runs them. Between two passes, each side of a split is a
file, or one file for each source (corpus.py). Steps on single lines or pairs are combined into one pass, which all
workers share (engine.py); the others see the whole corpus (filter.py, learn.py). A pass reads and writes blocks of
lines, so memory does not grow with the corpus, with two exceptions: 100 bytes per line to find duplicates, and the
distinct words to learn BPE. An interrupted pass starts again.
"""
