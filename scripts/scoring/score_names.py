"""The scores of each kind of metric: their keys in scores.json and record.json, and their names in tables."""

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
"""The kind of scores to which a configuration's ``score.metric`` belongs: bleu, rouge or perplexity."""
COMPARED = {"bleu": "sacrebleu", "rouge": "rouge1", "perplexity": "perplexity"}
"""The score that scripts.compare uses for each kind; its counts of each line are kept in scores.json."""
LOWER_IS_BETTER = frozenset({"ter", *KEYS["perplexity"]})
