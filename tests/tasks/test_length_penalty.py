"""The stepwise length penalty: searches compared with a reference implementation in plain Python."""

import math
import os
import re
from copy import deepcopy
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks import test_beam_search as searches
from tests.tasks.test_beam_search import DYNAMIC, EOS, generator, model, sample
from tests.tolerances import assert_close

TYPES = 100
WORDS = (5, 6, 7)  # all other words have probability 0, so that sentences end


def few_words(seed):
    """Return a random model with TYPES vocabulary entries that generates only WORDS."""
    built = model(DYNAMIC, seed, TYPES)
    is_excluded = torch.ones(TYPES, dtype=torch.bool)
    is_excluded[[EOS, *WORDS]] = False
    built.decoder.output_projection.register_forward_hook(lambda _, __, out: out.masked_fill(is_excluded, -math.inf))
    return built


def find(path, built, batch, **options):
    """Return the hypotheses that the search of ``path``, one of PATHS, finds."""
    with mock.patch.dict(os.environ, {"LIGHTCONV_BACKEND": path} if path in ("native", "reference") else {}):
        search = generator([built], **{"min_len": 0, **options})
        return (searches.captured if path == "captured" else searches.in_steps)(search, batch)


class Reference:
    """Beam search with the score s of ``LengthPenalty``, by full passes in float64."""

    def __init__(self, built, source, alpha, ngram=0):
        self.built, self.source, self.alpha, self.ngram = deepcopy(built).double(), source, alpha, ngram
        self.log_probabilities = {}

    def read(self, prefixes):
        """Compute log P of the next word after each prefix and its own prefixes; all ``prefixes`` have one length."""
        with torch.no_grad():
            source = self.source.expand(len(prefixes), -1)
            target = torch.tensor([[EOS, *tokens] for tokens in prefixes])
            logits = self.built(source, torch.full([len(prefixes)], source.shape[1]), target)[0]
        for tokens, rows in zip(prefixes, torch.log_softmax(logits, dim=-1).tolist(), strict=True):
            self.log_probabilities |= {tokens[:length]: row for length, row in enumerate(rows)}

    def allowed(self, tokens, min_len, max_len):
        """Return the words that may follow, with their log P."""
        words = [EOS] if len(tokens) == max_len else [*WORDS, *([EOS] if len(tokens) >= min_len else [])]
        history, n = (EOS, *tokens), self.ngram
        seen = {history[i : i + n] for i in range(len(history) - n + 1)} if n else set()
        free = [word for word in words if (*history, word)[-n:] not in seen] if len(history) >= n else words
        return [(word, self.log_probabilities[tokens][word]) for word in free]

    def score(self, total, length):
        return total / ((5 + length) / 6) ** self.alpha

    def search(self, beam, min_len, max_len):
        """Return s and tokens of the hypotheses that a beam of this size finds, best first."""
        ended: list = []
        live: list = [(0.0, ())]
        while live:
            self.read([tokens for _, tokens in live])
            candidates = [
                (total + log_p, (*tokens, word))
                for total, tokens in live
                for word, log_p in self.allowed(tokens, min_len, max_len)
            ]
            scored = [(self.score(total, len(tokens)), total, tokens) for total, tokens in candidates]
            order = sorted([(s, 0.0, tokens) for s, tokens in ended] + scored, reverse=True)[:beam]
            chosen = [candidate for candidate in order if candidate in scored]
            ended += [(s, tokens) for s, _, tokens in chosen if tokens[-1] == EOS]
            live = [(total, tokens) for _, total, tokens in chosen if tokens[-1] != EOS]
        return sorted(ended, reverse=True)[:beam]


def assert_found(hypotheses, expected):
    assert [tuple(hypothesis["tokens"].tolist()) for hypothesis in hypotheses] == [tokens for _, tokens in expected]
    assert_close(
        torch.stack([hypothesis["score"] for hypothesis in hypotheses]), torch.tensor([score for score, _ in expected])
    )


PATHS = ["native", "reference", "captured"]


@pytest.mark.parametrize("path", ["native", "reference", "captured"])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 500),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.5]),
    beam=st.integers(1, 5),
    min_len=st.integers(0, 2),
    max_len=st.integers(2, 6),
    ngram=st.sampled_from([0, 0, 2]),
)
def test_beams_are_those_of_the_reference_implementation(path, seed, lengths, alpha, beam, min_len, max_len, ngram):
    built, batch = few_words(seed), sample(lengths, TYPES, seed)
    options = {"beam": beam, "min_len": min_len, "max_len_b": max_len, "no_repeat_ngram_size": ngram}
    results = find(path, built, batch, alpha=alpha, **options)
    for length, source, hypotheses in zip(lengths, batch["net_input"]["src_tokens"], results, strict=True):
        reference = Reference(built, source[None, -length:], alpha, ngram)
        assert_found(hypotheses, reference.search(beam, min_len, max_len))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lenpen": 0.5}, "replaces --lenpen and --unnormalized; remove them"),
        ({"unnormalized": True}, "replaces --lenpen and --unnormalized; remove them"),
        ({"diverse_beam_groups": 2}, "is for pla_translation's own search, which does not support DiverseBeamSearch"),
        ({"print_alignment": "soft"}, "is for pla_translation's own generator; remove --print-alignment"),
        ({"alpha": -0.5}, "is -0.5, expected a number from 0 on"),
    ],
)
def test_contradictory_options_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(f"--stepwise-length-penalty {message}")):
        generator([model(DYNAMIC)], **{"alpha": 1.0, **options})


def test_a_prefix_is_refused():
    with pytest.raises(ValueError, match="own search, which does not support a prefix"):
        generator([model(DYNAMIC)], alpha=1.0).generate([], sample([4]), prefix_tokens=torch.tensor([[5]]))
