"""The scores of each metric that a configuration may name: their keys in scores.json and record.json, and in words."""

KEYS = {
    "bleu": ("bleu", "bleu_compounds", "sacrebleu", "chrf", "ter"),
    "rouge": ("rouge1", "rouge2", "rougeL"),
    "perplexity": ("perplexity", "perplexity_unit"),
}
NAMES = {
    "bleu": "BLEU (tokenised)",
    "bleu_compounds": "BLEU (compounds split)",
    "sacrebleu": "sacreBLEU",
    "chrf": "chrF",
    "ter": "TER",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "perplexity": "perplexity",
    "perplexity_unit": "perplexity (unit)",
}
FAMILY = {key: kind for kind, keys in KEYS.items() for key in (kind, *keys)}
"""The kind of score that a configuration's ``score.metric`` belongs to: bleu, rouge or perplexity."""
COMPARED = {"bleu": "sacrebleu", "rouge": "rouge1", "perplexity": "perplexity"}
"""The score that models are compared by, whose counts of each line are kept."""
LOWER_IS_BETTER = frozenset({"ter", *KEYS["perplexity"]})
