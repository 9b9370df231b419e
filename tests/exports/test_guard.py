"""Scores and verdicts in this process are those of the server."""

from __future__ import annotations

import math

import numpy as np
import pytest

import encore
from encore.core.errors import InputError
from tests.serving.servers import make_conversations, score_offline
from tests.worlds.models import RULES, WEIGHTS, opened_model

CONVERSATIONS = make_conversations(5)
MESSAGES = [
    [
        *({"role": turn.role, "content": turn.content} for turn in prompt),
        {"role": "assistant", "content": response},
    ]
    for prompt, response in CONVERSATIONS
]
WEIGHT_R = np.array([WEIGHTS[rule] for rule in RULES])


def test_scores_of_conversations_are_the_centred_scores_by_rule():
    scores = opened_model().score(MESSAGES)
    assert list(scores) == list(RULES)
    score_NR = np.stack([*scores.values()], axis=1)
    np.testing.assert_allclose(score_NR, score_offline(CONVERSATIONS), atol=1e-5)


def test_a_verdict_has_the_weighted_sum_and_its_parts(tmp_path):
    model, score_R = opened_model(), score_offline(CONVERSATIONS[:1])[0]
    reward = float(score_R @ WEIGHT_R)
    verdict = encore.guard(MESSAGES[0], model=model, weights=WEIGHTS, threshold=reward - 0.01)
    assert verdict.is_safe
    assert verdict.reward == pytest.approx(reward, abs=1e-5)
    expected = dict(zip(RULES, WEIGHT_R * score_R, strict=True))
    assert verdict.contributions == pytest.approx(expected, abs=1e-5)
    path = tmp_path / "weights.json"
    path.write_text(str(WEIGHTS).replace("'", '"'))
    above = encore.guard(MESSAGES[0], model=model, weights=path, threshold=reward + 0.01)
    assert (above.is_safe, above.reward) == (False, verdict.reward)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ([], r"conversation 1 \(counted from 0\) ends with user; expected the assistant's"),
        ([{"role": "assistant", "content": " \n"}], r"conversation 1 .*: an empty response"),
        (
            [{"role": "tool", "content": "a"}],
            r"conversation 1 .* role 'tool' .* expected role system",
        ),
        ([{"role": "assistant", "content": None}], r"conversation 1 .* content None"),
    ],
)
def test_a_conversation_without_a_response_is_one_clear_error(last, reason):
    bad = [{"role": "user", "content": "Hi."}, *last]
    with pytest.raises(InputError, match=reason):
        opened_model().score([MESSAGES[0], bad])


def test_a_guard_needs_weights_for_several_heads_and_a_threshold_that_is_a_number():
    with pytest.raises(InputError, match="3 heads; give the weights"):
        encore.guard(MESSAGES[0], model=opened_model(), threshold=0.0)
    with pytest.raises(InputError, match="threshold nan: expected a finite number"):
        encore.guard(MESSAGES[0], model=opened_model(), weights=WEIGHTS, threshold=math.nan)
