"""Histograms of codes give the entropies of the ratings they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from encore.evidence.level_codes import level_codes
from encore.pair_ratings import PairRatings
from tests.evidence.data import rated_pairs

NAN = float("nan")
RATINGS = st.sampled_from([0.0, -0.0, 0.1, 0.5, 0.7, 1.0, NAN])


def entropy_of(pairs: PairRatings, rows: np.ndarray, place: int) -> float:
    """scipy's entropy of one rule's ratings over some pairs, NaN without any."""
    both = np.concatenate([pairs.chosen_PR[rows, place], pairs.rejected_PR[rows, place]])
    counts = np.unique(both[~np.isnan(both)], return_counts=True)[1]
    return float(scipy.stats.entropy(counts)) if len(counts) else NAN


@st.composite
def samples(draw: st.DrawFn) -> tuple[PairRatings, np.ndarray]:
    """Some pairs under some rules, and some rows of them with repetition."""
    num_pairs, num_rules = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    cells = st.lists(
        RATINGS, min_size=2 * num_pairs * num_rules, max_size=2 * num_pairs * num_rules
    )
    rating = np.array(draw(cells)).reshape(2, num_pairs, num_rules)
    rows = draw(st.lists(st.integers(0, num_pairs - 1), max_size=12))
    return rated_pairs(rating[0], rating[1]), np.array(rows, dtype=np.intp)


@given(samples())
def test_entropies_of_rows_with_repetition_are_scipys(sample: tuple[PairRatings, np.ndarray]):
    pairs, rows = sample
    codes = level_codes(pairs, with_replacement=True)
    found = codes.entropies(codes.count(rows))
    expected = [entropy_of(pairs, rows, place) for place in range(len(pairs.rule_ids))]
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


@given(samples())
def test_entropies_of_distinct_rows_are_scipys_when_single_levels_share_a_cell(
    sample: tuple[PairRatings, np.ndarray],
):
    pairs, rows = sample[0], np.unique(sample[1])
    codes = level_codes(pairs, with_replacement=False)
    found = codes.entropies(codes.count(rows))
    expected = [entropy_of(pairs, rows, place) for place in range(len(pairs.rule_ids))]
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_ratings_that_never_repeat_need_no_cells():
    rating = np.random.default_rng(0).random((2, 500, 2))
    codes = level_codes(rated_pairs(rating[0], rating[1]), with_replacement=False)
    assert codes.num_cells == 2  # one for each rule
    # 1000 distinct ratings: ln 1000.
    assert codes.entropies(codes.count_all()) == pytest.approx([np.log(1000)] * 2, abs=1e-12)


def test_ratings_are_counted_and_missing_ones_are_not():
    chosen = np.array([[0.5, NAN], [NAN, NAN], [0.1, 0.3]])
    rejected = np.array([[0.5, NAN], [0.2, NAN], [NAN, NAN]])
    codes = level_codes(rated_pairs(chosen, rejected), with_replacement=True)
    assert codes.num_ratings(codes.count_all()).tolist() == [4, 1]


def test_more_levels_than_two_bytes_hold_are_told_apart():
    # 70,000 levels, each once chosen and once rejected: ln 70,000.
    level = np.linspace(0, 1, 70_000)[:, None]
    codes = level_codes(rated_pairs(level, level[::-1]), with_replacement=False)
    assert codes.code_PC.dtype == np.int32
    assert codes.entropies(codes.count_all()) == pytest.approx([np.log(70_000)], abs=1e-9)
    small = level_codes(rated_pairs(level[:9], level[:9]), with_replacement=False)
    assert small.code_PC.dtype == np.uint16


def test_all_pairs_counted_in_blocks_are_all_pairs_counted_at_once():
    rating = np.random.default_rng(1).integers(0, 4, size=(2, 250_001, 1)) / 3
    codes = level_codes(rated_pairs(rating[0], rating[1]), with_replacement=True)
    assert codes.count_all().tolist() == codes.count(slice(None)).tolist()
