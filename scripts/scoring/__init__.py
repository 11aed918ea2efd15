"""Scores of texts and models: BLEU, chrF, TER, ROUGE, perplexity, and the significance of differences."""
