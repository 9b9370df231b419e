"""Leaving out one rule: the others are weighed anew, the same pairs are looked at."""

from __future__ import annotations

import json

import numpy as np
import pytest

from encore.errors import InputError
from encore.weighting import load_scheme
from encore.weighting.leave_one_out import LeaveOneOut, leave_each_out, leave_one_out
from encore.weighting.scheme import SchemeOptions
from tests.weighting.evidence_for_tests import evidence_of_margins, rule_names, table_of

# Rule 0 is right in all four pairs, rule 1 wrong in all and stronger in two, rule 2 is silent.
MARGINS = [[0.2, -0.3, 0.0], [0.2, -0.3, 0.0], [0.4, -0.1, 0.0], [0.4, -0.1, 0.0]]


def without(margins: list[list[float]], scheme: str = "uniform") -> LeaveOneOut:
    return leave_each_out(
        evidence_of_margins(margins), scheme=load_scheme(scheme), options=SchemeOptions()
    )


def test_each_rule_s_effect_is_what_hand_gives() -> None:
    # Together: -0.1, -0.1, 0.3, 0.3: half of the pairs. Without rule 0 none, without rule 1 all,
    # without rule 2 the same.
    found = without(MARGINS)
    assert found.accuracy.half == 0.5
    assert [rule.rule_id for rule in found.left_out] == list(rule_names(3))
    assert [rule.accuracy.half for rule in found.left_out] == [0.0, 1.0, 0.5]
    assert [rule.change_half for rule in found.left_out] == [-0.5, 0.5, 0.0]
    assert [rule.weight for rule in found.left_out] == [1 / 3] * 3


def test_the_interval_of_a_change_compares_pair_by_pair() -> None:
    # Changes without rule 0: -0, -0, -1, -1: sd (ddof 1) = sqrt(1/3), so 1.96 · sqrt(1/12).
    first, _, silent = without(MARGINS).left_out
    half_width = 1.959963984540054 / 12**0.5
    assert first.change_low == pytest.approx(-0.5 - half_width)
    assert first.change_high == pytest.approx(-0.5 + half_width)
    assert (silent.change_low, silent.change_high) == (0.0, 0.0)


@pytest.mark.parametrize("scheme", ["encore", "top-k", "inverse-sd", "bradley-terry"])
def test_the_others_weigh_as_if_the_rule_had_never_been_there(scheme: str) -> None:
    rng = np.random.default_rng(1)
    chosen_PR, rejected_PR = rng.integers(0, 11, size=(2, 80, 4)) / 10
    chosen_PR = np.maximum(chosen_PR, 0.3)
    names = rule_names(4)
    options = SchemeOptions(tau=0.5, k=2)
    found = leave_one_out(
        table_of(chosen_PR, rejected_PR, rule_ids=names), scheme=scheme, options=options
    )
    for place, rule in enumerate(found):
        kept = [other for other in range(4) if other != place]
        rest = table_of(
            chosen_PR[:, kept], rejected_PR[:, kept], rule_ids=[names[other] for other in kept]
        )
        again = leave_one_out(rest, scheme=scheme, options=options)
        # The composed accuracy of all rules of the smaller table.
        assert rule.accuracy.half == pytest.approx(again[0].accuracy.half - again[0].change_half)


def test_a_rule_with_missing_ratings_does_not_change_the_pairs() -> None:
    margins = [[0.2, -0.3], [0.4, -0.1], [0.1, np.nan]]
    found = without(margins)
    assert (found.num_pairs, found.num_pairs_total) == (2, 3)
    assert "2 of 3 pairs" in found.notes[0]
    # Rule 0 alone is right in both complete pairs; the third is not looked at.
    assert found.left_out[1].accuracy.half == 1.0


def test_without_the_only_rule_nothing_is_left() -> None:
    [only] = without([[0.2], [-0.1]]).left_out
    assert only.accuracy.half is None
    assert (only.change_half, only.change_low, only.change_high) == (None, None, None)


def test_a_single_pair_has_a_change_but_no_interval() -> None:
    first, second = without([[0.2, -0.3]]).left_out
    assert (first.change_half, second.change_half) == (0.0, 1.0)
    assert (second.change_low, second.change_high) == (None, None)


@pytest.mark.parametrize("scheme", ["random", "random-k", "single"])
def test_schemes_that_draw_or_name_a_rule_are_refused(scheme: str) -> None:
    with pytest.raises(InputError, match=f"scheme {scheme}.*choose encore"):
        without(MARGINS, scheme)


def test_the_json_carries_the_leakage_flag() -> None:
    found = json.loads(json.dumps(without(MARGINS, "bradley-terry").as_dict(), allow_nan=False))
    assert found["uses_labels"]
    assert {"scheme", "weights", "accuracy", "left_out", "num_pairs"} < set(found)
