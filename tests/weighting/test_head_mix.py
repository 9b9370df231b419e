"""Head 0 and rules become one linear composition, and beta is chosen with caution."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.weighting.head_mix import mix_heads
from tests.worlds.scorings import held_out_scores

# Suffixes: P pairs, 2 responses, R heads.

HEADS = ("preference", "be-kind", "be-brief")
RULE_WEIGHTS = {"be-brief": 0.25, "be-kind": 0.75}


#: Head 0: 3, 1, 1, -1, mean 1, sd √2. Rules: 0.75 × (2, 0, 0, -2) + 0.25 × (2, 2, -2, -2) =
#: 2, 0.5, -0.5, -2, mean 0, sd √(8.5 / 4).
FOUR_RESPONSES = held_out_scores([[[3, 2, 2], [1, 0, 2]], [[1, 0, -2], [-1, -2, -2]]])
SD_RULES = np.sqrt(8.5 / 4)


@pytest.mark.parametrize("beta", [None, 0.0, 2.0])
def test_both_parts_are_divided_by_their_deviation_over_held_out_responses(beta):
    mix = mix_heads(RULE_WEIGHTS, FOUR_RESPONSES, head_ids=HEADS, beta=beta)
    factor = (1.0 if beta is None else beta) / SD_RULES
    expected = {"preference": 1 / np.sqrt(2), "be-kind": 0.75 * factor, "be-brief": 0.25 * factor}
    assert mix.weights == pytest.approx(expected)
    assert list(mix.weights) == list(HEADS)
    assert (mix.sd_preference, mix.sd_rules) == pytest.approx((np.sqrt(2), SD_RULES))
    assert (mix.uses_labels, mix.note) == (False, None)


def test_what_cannot_be_composed_is_refused_with_the_next_step():
    equal = held_out_scores(np.full((3, 2, 3), 0.1))
    head_0_alone = equal.score_P2R.copy()
    head_0_alone[:, :, 0] = np.arange(6).reshape(3, 2)
    equal_rules = held_out_scores(head_0_alone)
    for held_out, head_ids, message in (
        (None, HEADS, "no scores of held-out pairs.*--evaluation-share above 0"),
        (held_out_scores(np.zeros((0, 2, 3))), HEADS, "no scores of held-out pairs"),
        (FOUR_RESPONSES, HEADS[1:], "no head 0 .*--preference-head"),
        (held_out_scores(np.zeros((3, 2, 4))), HEADS, "of 4 heads, the model has 3"),
        (equal, HEADS, "head 0 gives all held-out responses the same score"),
        (equal_rules, HEADS, "rules give all held-out responses the same .*--beta 0"),
    ):
        with pytest.raises(InputError, match=message):
            mix_heads(RULE_WEIGHTS, held_out, head_ids=head_ids)
    with pytest.raises(InputError, match="be-brief among the heads but not weighed"):
        mix_heads({"be-kind": 1.0}, FOUR_RESPONSES, head_ids=HEADS)
    for beta in (0.0, "auto"):
        mix = mix_heads(RULE_WEIGHTS, equal_rules, head_ids=HEADS, beta=beta)
        assert (mix.weights["be-kind"], mix.weights["be-brief"], mix.beta) == (0, 0, 0)


@pytest.mark.parametrize("factor", [1e200, 1e-200, 3e307, 5e-324, -1e250, 1.0])
@pytest.mark.parametrize("beta", [None, 0.5])
def test_the_size_of_the_rules_weights_changes_nothing(factor, beta):
    """They are divided by their own deviation: 2 and 1 are the same rules as 2e200 and 1e200."""
    expected = mix_heads(
        {"be-kind": 2.0, "be-brief": 1.0}, FOUR_RESPONSES, head_ids=HEADS, beta=beta
    )
    scaled = {"be-kind": 2 * factor, "be-brief": factor}
    mix = mix_heads(scaled, FOUR_RESPONSES, head_ids=HEADS, beta=beta)
    sign = np.sign(factor)
    for rule in scaled:
        assert mix.weights[rule] == pytest.approx(sign * expected.weights[rule])
        assert mix.weights[rule] != 0
    assert mix.weights["preference"] == expected.weights["preference"]
    assert mix.sd_rules == pytest.approx(abs(factor) * expected.sd_rules, rel=0.5)
    if sign > 0:
        assert mix.held_out_loss == pytest.approx(expected.held_out_loss)


def test_weights_without_a_finite_scale_are_refused_by_name():
    huge = {"be-kind": 1.7e308, "be-brief": 1.7e308}
    with pytest.raises(InputError, match=r"weights of the rules up to 1\.7e\+308 and beta 1: "):
        mix_heads(huge, held_out_scores(1e4 * FOUR_RESPONSES.score_P2R), head_ids=HEADS)
    with pytest.raises(InputError, match=r"beta 1\.7e\+308: the weighted rules have no finite"):
        small = held_out_scores(np.array([1, 1e-4, 1e-4]) * FOUR_RESPONSES.score_P2R)
        mix_heads(RULE_WEIGHTS, small, head_ids=HEADS, beta=1.7e308)


# --- beta auto ------------------------------------------------------------------------------------


def simulated_scores(
    generator: np.random.Generator, *, num_pairs: int, rule_margin: float
) -> NDArray[np.float64]:
    """Return scores under head 0, which ranks 65 of 100 pairs right, and two rules."""
    score_P2R = generator.normal(size=(num_pairs, 2, 3))
    # A margin of the mean m has the deviation √2: Φ(0.545 / √2) = 0.65.
    score_P2R[:, 0] += (0.545, rule_margin, rule_margin)
    return score_P2R


def chosen_beta(score_P2R, group_P=None) -> float:
    held_out = held_out_scores(score_P2R, group_P)
    return mix_heads(RULE_WEIGHTS, held_out, head_ids=HEADS, beta="auto").beta


def check_noise(num_studies: int) -> int:
    """Check that rules of noise never cost more than the interval; return how often they are used.

    The interval is that of the difference to head 0 on 1,000 fresh pairs.
    """
    generator, num_composed = np.random.default_rng(0), 0
    for study in range(num_studies):
        num_pairs = (50, 150, 500)[study % 3]
        score_P2R = simulated_scores(generator, num_pairs=num_pairs, rule_margin=0)
        mix = mix_heads(RULE_WEIGHTS, held_out_scores(score_P2R), head_ids=HEADS, beta="auto")
        num_composed += mix.beta > 0
        fresh_P2R = simulated_scores(generator, num_pairs=1000, rule_margin=0)
        margin_PR = fresh_P2R[:, 0] - fresh_P2R[:, 1]
        composed_P = margin_PR @ np.array([*mix.weights.values()]) > 0
        delta_P = composed_P.astype(float) - (margin_PR[:, 0] > 0)
        half_width = 1.96 * delta_P.std(ddof=1) / np.sqrt(1000)
        assert delta_P.mean() + half_width >= 0
    return num_composed


def test_rules_of_noise_do_no_harm_in_some_studies():
    check_noise(30)


@pytest.mark.full
def test_rules_of_noise_do_no_harm_in_200_studies():
    assert check_noise(200) <= 6


def test_rules_that_help_are_used_and_the_mix_says_that_it_saw_labels():
    """With rules of other information than head 0, more pairs are right than with head 0 alone."""
    generator = np.random.default_rng(1)
    score_P2R = simulated_scores(generator, num_pairs=400, rule_margin=0.5)
    mix = mix_heads(RULE_WEIGHTS, held_out_scores(score_P2R), head_ids=HEADS, beta="auto")
    assert mix.beta > 0
    assert mix.uses_labels
    assert mix.held_out_loss < mix.preference_loss
    assert "400 held-out pairs of 400 prompts" in mix.note
    fresh_P2R = simulated_scores(generator, num_pairs=5000, rule_margin=0.5)
    margin_PR = fresh_P2R[:, 0] - fresh_P2R[:, 1]
    weight_R = np.array([*mix.weights.values()])
    assert (margin_PR @ weight_R > 0).mean() > (margin_PR[:, 0] > 0).mean() + 0.02


def test_pairs_of_one_prompt_count_as_one_observation():
    """Twenty copies of 20 pairs are 20 observations: too few for the rules, though 400 are not."""
    generator = np.random.default_rng(1)
    score_P2R = simulated_scores(generator, num_pairs=20, rule_margin=0.5)
    copies_P2R = np.tile(score_P2R, (20, 1, 1))
    assert chosen_beta(copies_P2R) > 0
    assert chosen_beta(copies_P2R, group_P=np.tile(np.arange(20), 20)) == 0


def test_a_few_prompts_never_decide_for_the_rules():
    """Head 0 is right on 97 of 100 pairs; the rules are right on the other three, and else tie."""
    score_P2R = np.zeros((100, 2, 3))
    score_P2R[:, 0, 0] = 1
    score_P2R[:3, :, 0] = (0, 0.1)
    score_P2R[:3, 0, 1:] = 1
    assert chosen_beta(score_P2R) == 0
    mix = mix_heads(RULE_WEIGHTS, held_out_scores(score_P2R), head_ids=HEADS, beta="auto")
    assert "the rules do not clearly help, so head 0 stands alone" in mix.note
