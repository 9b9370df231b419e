"""Planted rates and verdicts are found, where rules seldom apply and prompts differ in whether."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from encore.analysis.analyze import Analysis, analyze
from encore.data.records import RESPONSES
from encore.judges.base import Decoding, Reply
from encore.rating.replies import read_reply

pytestmark = pytest.mark.services

# Suffixes: S responses (chosen, rejected), G prompts, K pairs of a prompt, R rules.

RATES = {"seldom": 0.05, "some": 0.2, "often": 0.8}
NUM_PROMPTS, PAIRS_PER_PROMPT = 80, 3
ACCURACY = 0.8
DECODING = Decoding(max_reply_tokens=16, not_applicable="n/a")


def scripted_replies(rng: np.random.Generator, *, accuracy: float) -> NDArray[Any]:
    """Return the replies of a judge to all responses under all rules, shape [S, G, K, R].

    Each prompt has a rate of its own around the rule's planted one. Where a rule applies to both
    responses, it rates the chosen one 0.1 higher with the probability ``accuracy``, else lower. Of
    all replies 15 % are prose.
    """
    rate_R = np.array([*RATES.values()])
    rate_GR = rng.beta(2 * rate_R, 2 * (1 - rate_R), size=(NUM_PROMPTS, len(rate_R)))
    shape = (2, NUM_PROMPTS, PAIRS_PER_PROMPT, len(rate_R))
    applies_SGKR = rng.random(shape) < rate_GR[:, None, :]
    rejected_GKR = rng.integers(2, 9, shape[1:])
    margin_GKR = np.where(rng.random(shape[1:]) < accuracy, 1, -1)
    rating_SGKR = np.stack([rejected_GKR + margin_GKR, rejected_GKR]) / 10
    replies = np.where(applies_SGKR, np.char.mod("%.1f", rating_SGKR), "n/a")
    return np.where(rng.random(shape) < 0.15, "It depends.", replies)


def ratings_of(reply_SGKR: NDArray[Any]) -> pa.Table:
    """Return the ratings that replies hold, with the prompts of the pairs."""
    answers = {
        text: read_reply(Reply(text=text, is_complete=True), DECODING, min_label_mass=0.5)
        for text in np.unique(reply_SGKR).tolist()
    }
    index_SGKR = np.indices(reply_SGKR.shape)
    response, prompt, pair, rule = (index.ravel() for index in index_SGKR)
    texts = reply_SGKR.ravel().tolist()
    return pa.table(
        {
            "pair_id": [f"{p}-{k}" for p, k in zip(prompt, pair, strict=True)],
            "source": ["planted"] * len(texts),
            "response": np.array(RESPONSES)[response],
            "rule_id": np.array([*RATES])[rule],
            "rating": pa.array([answers[text].rating for text in texts], pa.float64()),
            "null_reason": pa.array([answers[text].null_reason for text in texts], pa.string()),
            "prompt_id": [str(p) for p in prompt],
        }
    )


def study(seed: int, *, accuracy: float) -> Analysis:
    rng = np.random.default_rng(seed)
    return analyze(ratings_of(scripted_replies(rng, accuracy=accuracy)))


# An interval of 95 % holds the planted rate in 95 % of studies, give or take three standard errors:
# 21 % of 10 studies, 3.8 % of 300.
@pytest.mark.parametrize(
    ("num_studies", "least"), [(10, 0.74), pytest.param(300, 0.912, marks=pytest.mark.full)]
)
def test_planted_rates_and_verdicts_are_found(num_studies, least):
    num_right = dict.fromkeys(RATES, 0)
    num_trusted = dict.fromkeys(RATES, 0)
    num_against = 0
    for seed in range(num_studies):
        analysis = study(seed, accuracy=ACCURACY)
        for row in analysis.applicability:
            num_right[row.rule_id] += row.applies.low <= RATES[row.rule_id] <= row.applies.high
        for verdict in analysis.answers[-1].rows:
            num_against += verdict.verdict == "against"
            num_trusted[verdict.rule_id] += verdict.verdict == "trust"
            assert verdict.verdict != "trust" or verdict.reason.startswith("trust where it applies")
    for rule_id, number in num_right.items():
        assert number >= least * num_studies, rule_id
    assert num_against == 0
    # 80 % of 240 pairs, less the failures, apply to both: far more than enough. Of 5 % are not.
    assert num_trusted["often"] == num_studies
    assert num_trusted["seldom"] < num_studies / 2


# At most 5 % of studies have a false verdict: of 10 three or more with a chance of 1.2 %, of 300
# more than 27 with one of 0.1 %.
@pytest.mark.parametrize(
    ("num_studies", "most"), [(10, 2), pytest.param(300, 27, marks=pytest.mark.full)]
)
def test_meaningless_labels_are_seldom_trusted(num_studies, most):
    num_false = sum(
        any(row.verdict in ("trust", "against") for row in analysis.answers[-1].rows)
        for analysis in (study(seed, accuracy=0.5) for seed in range(num_studies))
    )
    assert num_false <= most
