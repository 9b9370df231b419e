"""Agreement of two ratings of the same responses, against hand-made and tabulated figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.evidence.agreement import Agreement, agreement

PAIRS_OF_RATINGS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.sampled_from([0.0, 0.2, 0.5, 1.0])),
    min_size=1,
    max_size=30,
)


def found(first: list[float], second: list[float]) -> Agreement:
    result = agreement(np.array(first), np.array(second))
    assert result is not None
    return result


def kappa_of_a_table(first: np.ndarray, second: np.ndarray, *, squared: bool) -> float | None:
    """Cohen's (weighted) kappa from the table of both ratings and the product of its margins."""
    levels = np.unique([first, second])
    table = np.array([[np.mean((first == a) & (second == b)) for b in levels] for a in levels])
    by_chance = np.outer(table.sum(axis=1), table.sum(axis=0))
    gap = np.subtract.outer(levels, levels)
    cost = gap**2 if squared else (gap != 0).astype(float)
    if (cost * by_chance).sum() == 0:
        return None
    return float(1 - (cost * table).sum() / (cost * by_chance).sum())


def test_four_responses_by_hand():
    # Equal in 3 of 4. Chance: 1/2 * 1/4 + 1/2 * 3/4 = 1/2, so kappa = (3/4 - 1/2) / (1/2) = 1/2.
    # Squared: observed 1/4, by chance 1/4 + 3/16 + (1/4)^2 = 1/2: also 1/2.
    result = found([0, 0, 1, 1], [0, 1, 1, 1])
    assert result == Agreement(
        agreement=0.75,
        mean_absolute_difference=0.25,
        mean_difference=0.25,
        kappa=pytest.approx(0.5),
        weighted_kappa=pytest.approx(0.5),
    )


def test_a_near_miss_counts_for_weighted_kappa_only():
    # Off by one small step everywhere: no two ratings are equal, but their order is kept.
    result = found([0.0, 0.2, 0.4, 0.6, 0.8], [0.2, 0.4, 0.6, 0.8, 1.0])
    assert result.agreement == 0.0
    assert result.kappa is not None
    assert result.kappa < 0
    # Observed 0.04; by chance 0.08 + 0.08 + 0.04 = 0.2: 1 - 0.04 / 0.2 = 0.8.
    assert result.weighted_kappa == pytest.approx(0.8)


@given(PAIRS_OF_RATINGS)
def test_both_kappas_are_those_of_the_table(ratings: list[tuple[float, float]]):
    first, second = np.array(ratings).T
    result = agreement(first, second)
    assert result is not None
    for kappa, squared in ((result.kappa, False), (result.weighted_kappa, True)):
        expected = kappa_of_a_table(first, second, squared=squared)
        if expected is None:
            assert kappa is None
        else:
            assert kappa == pytest.approx(expected, abs=1e-9)


@given(PAIRS_OF_RATINGS)
def test_which_rating_came_first_changes_only_the_drift(ratings: list[tuple[float, float]]):
    first, second = np.array(ratings).T
    one, other = agreement(first, second), agreement(second, first)
    assert one is not None
    assert other is not None
    assert one.agreement == other.agreement
    assert one.mean_difference == pytest.approx(-other.mean_difference, abs=1e-12)
    assert (one.kappa is None) == (other.kappa is None)
    if one.kappa is not None:
        assert one.kappa == pytest.approx(other.kappa, abs=1e-12)


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=20))
def test_a_rating_agrees_with_itself(ratings: list[float]):
    result = found(ratings, ratings)
    assert (result.agreement, result.mean_absolute_difference) == (1.0, 0.0)
    expected = None if len(set(ratings)) == 1 else pytest.approx(1.0)
    assert result.kappa == expected
    assert result.weighted_kappa == expected


def test_one_level_against_another_is_chance_and_no_better():
    # Always 0, then always 1: chance gives no equal ratings either, so kappa is 0.
    result = found([0.0, 0.0], [1.0, 1.0])
    assert (result.agreement, result.kappa, result.weighted_kappa) == (0.0, 0.0, 0.0)


def test_no_response_has_no_agreement():
    assert agreement(np.array([]), np.array([])) is None
