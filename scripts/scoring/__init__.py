"""Scores of texts and models: BLEU, chrF, TER, ROUGE, perplexity, and what tells two systems apart."""
