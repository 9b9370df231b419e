"""Is the judge stable? A repeated rating: what overlaps, how it agrees, what it does to weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.stats

from encore.errors import InputError
from encore.evidence.retest import Retest, retest
from encore.pair_ratings import PairRatings
from tests.evidence.data import drawn_pairs, rated_pairs, skewed_masses, table_of
from tests.ratings_files import ratings_table
from tests.reference import reference_weights, rows_of

NAN = float("nan")


def some_pairs(num_pairs: int = 200, *, seed: int = 0, num_rules: int = 4) -> PairRatings:
    rng = np.random.default_rng(seed)
    return drawn_pairs(skewed_masses(num_rules), num_pairs=num_pairs, rng=rng)


def rated_again(pairs: PairRatings, *, share: float, seed: int) -> PairRatings:
    """The same pairs by a judge who gives this share of its ratings anew, equally distributed."""
    anew = some_pairs(pairs.num_pairs, seed=seed, num_rules=len(pairs.rule_ids))
    is_new = np.random.default_rng([seed, 1]).random((2, *pairs.chosen_PR.shape)) < share
    return dataclasses.replace(
        pairs,
        chosen_PR=np.where(is_new[0], anew.chosen_PR, pairs.chosen_PR),
        rejected_PR=np.where(is_new[1], anew.rejected_PR, pairs.rejected_PR),
    )


def run(first: PairRatings, repeated: PairRatings, **options) -> Retest:
    return retest(table_of(first), table_of(repeated), num_draws=100, **options)


# --- what overlaps --------------------------------------------------------------------------------


def test_responses_are_matched_and_the_others_counted():
    pairs = some_pairs(10)
    # Pairs 0-6 and 4-9: pairs 4, 5, 6 are in both, 4 and 3 pairs in one only. Of pair 4 the
    # repetition has no rejected response: 5 responses in both, 8 + 1 and 6 in one only.
    again = pairs.take(np.arange(4, 10))
    again.rejected_PR[0] = np.nan
    found = run(pairs.take(np.arange(7)), again)
    assert (found.num_responses, found.num_first_only, found.num_repeated_only) == (5, 9, 6)
    assert found.num_pairs == 3
    assert {row.num_ratings for row in found.rows} == {5}


def test_the_same_pair_id_of_another_source_is_another_pair():
    first = [("p", source, "chosen", "r", 0.5) for source in ("hh", "pku")]
    found = retest(ratings_table(first), ratings_table(first[1:]), num_draws=100)
    assert (found.num_responses, found.num_first_only) == (1, 1)


def test_missing_ratings_are_counted_on_the_side_where_they_are_missing():
    first = some_pairs(4, num_rules=2)
    again = dataclasses.replace(
        first, chosen_PR=first.chosen_PR.copy(), rejected_PR=first.rejected_PR.copy()
    )
    first.chosen_PR[0, 0] = np.nan  # missing first
    again.chosen_PR[1:3, 0] = np.nan  # missing in the repetition
    first.rejected_PR[3, 0] = again.rejected_PR[3, 0] = np.nan  # missing in both
    found = run(first, again)
    one, other = found.rows
    # 4 pairs have 8 responses, each rated by the other rule at least.
    assert found.num_responses == 8
    counts = (one.num_ratings, one.num_missing_first, one.num_missing_repeated)
    assert (*counts, one.num_missing_both) == (4, 1, 2, 1)
    assert (other.num_ratings, other.num_missing_both) == (8, 0)
    assert any("3 ratings are missing in one of the two only" in note for note in found.notes)


def test_rows_that_are_not_there_are_missing_like_nulls():
    rows = [("p", "hh", r, rule, 0.5) for r in ("chosen", "rejected") for rule in ("a", "b")]
    with_null = [*rows[:3], (*rows[3][:4], None)]
    by_null = retest(ratings_table(rows), ratings_table(with_null), num_draws=100)
    by_gap = retest(ratings_table(rows), ratings_table(rows[:3]), num_draws=100)
    assert by_null == by_gap
    assert by_gap.rows[1].num_missing_repeated == 1


def test_the_order_of_pairs_and_rules_does_not_matter():
    first, again = some_pairs(), rated_again(some_pairs(), share=0.3, seed=5)
    shuffled = table_of(again).take(np.random.default_rng(0).permutation(200 * 2 * 4))
    found = retest(table_of(first), shuffled, num_draws=100)
    assert found == run(first, again)


def test_nothing_in_common_is_refused_with_both_numbers():
    pairs = some_pairs(10)
    with pytest.raises(InputError) as caught:
        run(pairs.take(np.arange(6)), pairs.take(np.arange(6, 10)))
    for part in ("none of its 12 rated responses", "the 8 of", "rate some of the same pairs"):
        assert part in str(caught.value)


def test_responses_that_are_null_under_every_rule_are_not_in_common():
    first, again = some_pairs(5), some_pairs(5)
    again.chosen_PR[:] = np.nan
    again.rejected_PR[:] = np.nan
    with pytest.raises(InputError, match="among the 0 of"):
        run(first, again)


def test_other_rules_are_refused_by_name():
    first = some_pairs(5, num_rules=2)
    again = dataclasses.replace(first, rule_ids=("rule-0", "rule-x"))
    with pytest.raises(InputError) as caught:
        run(first, again)
    assert "only in the first: rule-1; only in the repetition: rule-x" in str(caught.value)


# --- agreement and weights ------------------------------------------------------------------------


def test_a_judge_that_repeats_itself_changes_nothing():
    found = run(some_pairs(), some_pairs())
    assert found.agreement == 1.0
    assert found.largest_weight_change == 0.0
    for row in found.rows:
        assert (row.agreement, row.mean_absolute_difference) == (1.0, 0.0)
        assert (row.entropy_difference, row.weight_change) == (0.0, 0.0)
        assert (row.weight_change_low, row.weight_change_high) == (0.0, 0.0)
        assert (row.kappa, row.weighted_kappa) == (pytest.approx(1), pytest.approx(1))


def test_two_pairs_by_hand():
    # Rule 0: 0, 0, 1, 1 and then 0, 0, 0, 1: three of four equal, entropies ln 2 and
    # ln 4 - 3/4 ln 3. Rule 1 is constant both times.
    half = [0.5, 0.5]
    first = rated_pairs(np.array([[0, 1], half]).T, np.array([[0, 1], half]).T)
    again = rated_pairs(np.array([[0, 0], half]).T, np.array([[0, 1], half]).T)
    found = run(first, again, tau=1.0)
    one, constant = found.rows
    assert one.agreement == 0.75
    assert one.mean_absolute_difference == 0.25
    assert one.mean_difference == -0.25
    assert one.entropy_first == pytest.approx(np.log(2))
    assert one.entropy_repeated == pytest.approx(np.log(4) - 0.75 * np.log(3))
    # exp(-ln 2) = 1/2 against exp(0) = 1: weights 1/3 and 2/3.
    assert (one.weight_first, constant.weight_first) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    mass = 3**0.75 / 4
    assert one.weight_repeated == pytest.approx(mass / (1 + mass))
    assert one.weight_change == pytest.approx(3 * mass / (1 + mass) - 1)
    assert constant.agreement == 1.0
    assert constant.kappa is None  # always one level: chance agrees as well
    assert constant.weighted_kappa is None
    # 7 of 8 ratings are equal.
    assert found.agreement == 7 / 8
    assert any("from 2 resampled pairs are too narrow" in note for note in found.notes)


def test_entropies_and_weights_are_those_of_the_ratings_that_both_have():
    first, again = some_pairs(seed=1), rated_again(some_pairs(seed=1), share=0.4, seed=2)
    first.chosen_PR[:20, 2] = np.nan
    again.rejected_PR[10:50, 0] = np.nan
    found = run(first, again, tau=0.7)
    both = [
        np.concatenate([one.chosen_PR + 0 * two.chosen_PR, one.rejected_PR + 0 * two.rejected_PR])
        for one, two in ((first, again), (again, first))
    ]
    entropies = [
        [scipy.stats.entropy(np.unique(x[~np.isnan(x)], return_counts=True)[1]) for x in ratings.T]
        for ratings in both
    ]
    masses = np.exp(-np.array(entropies) / 0.7)
    weights = masses / masses.sum(axis=1, keepdims=True)
    for place, row in enumerate(found.rows):
        assert row.entropy_first == pytest.approx(entropies[0][place], abs=1e-12)
        assert row.entropy_repeated == pytest.approx(entropies[1][place], abs=1e-12)
        assert row.weight_first == pytest.approx(weights[0, place], abs=1e-12)
        assert row.weight_change == pytest.approx(weights[1, place] / weights[0, place] - 1)


def test_with_nothing_missing_the_weights_are_those_of_encore_weights():
    first, again = some_pairs(), rated_again(some_pairs(), share=0.5, seed=3)
    found = run(first, again)
    expected = reference_weights(rows_of(table_of(again)), tau=2.0)
    assert [row.weight_repeated for row in found.rows] == pytest.approx(list(expected.values()))


def test_agreement_falls_with_the_share_that_is_rated_anew():
    first = some_pairs(1000)
    found = [run(first, rated_again(first, share=share, seed=7)) for share in (0.1, 0.4, 1.0)]
    agreements = [one.agreement or 0.0 for one in found]
    assert agreements[0] > agreements[1] > agreements[2]
    # All anew: independent ratings, so kappa is 0 within three standard errors of about 0.02.
    for row in found[2].rows:
        assert row.kappa == pytest.approx(0, abs=0.06)
        assert row.weighted_kappa == pytest.approx(0, abs=0.1)


def test_intervals_of_entropy_differences_are_those_of_the_delta_method():
    """The width of the bootstrap is 3.92 standard deviations of the pairs' influences."""
    first = some_pairs(800, seed=4)
    again = rated_again(first, share=0.3, seed=5)
    found = retest(table_of(first), table_of(again), num_draws=1000)
    for place, row in enumerate(found.rows):
        gaps = influence(again, place) - influence(first, place)
        sd = gaps.std(ddof=1) / np.sqrt(800)
        width = row.entropy_difference_high - row.entropy_difference_low
        assert width == pytest.approx(2 * 1.96 * sd, rel=0.12)


def influence(pairs: PairRatings, place: int) -> np.ndarray:
    """How each pair moves a rule's entropy: the mean of -ln p over its two ratings."""
    both = np.concatenate([pairs.chosen_PR[:, place], pairs.rejected_PR[:, place]])
    _, code, count = np.unique(both, return_inverse=True, return_counts=True)
    return np.asarray(-np.log(count / len(both))[code].reshape(2, -1).mean(axis=0))


def test_a_judge_with_noise_but_no_drift_keeps_zero_within_most_intervals():
    """Of 95 % intervals for a change that is none, about one in twenty may miss 0."""
    misses = 0
    for seed in range(20):
        first = some_pairs(150, seed=100 + seed)
        found = run(first, rated_again(first, share=0.5, seed=200 + seed))
        misses += sum(
            not row.weight_change_low <= 0 <= row.weight_change_high for row in found.rows
        )
    # 80 intervals, those of one study dependent: 4 misses expected, 14 would be far out.
    assert misses <= 13


def test_a_judge_that_drifts_is_caught():
    first = some_pairs(300)
    # The repetition rounds rule 0 to two levels.
    again = dataclasses.replace(
        first, chosen_PR=first.chosen_PR.copy(), rejected_PR=first.rejected_PR.copy()
    )
    again.chosen_PR[:, 0] = np.round(again.chosen_PR[:, 0])
    again.rejected_PR[:, 0] = np.round(again.rejected_PR[:, 0])
    found = run(first, again)
    row = found.rows[0]
    assert row.entropy_difference_high < 0
    assert row.weight_change_low > 0
    assert "(rule rule-0)" in found.sentence


# --- edges ----------------------------------------------------------------------------------------


def test_a_rule_that_rated_nothing_twice_has_no_figures_and_no_weight():
    first, again = some_pairs(40, num_rules=3), some_pairs(40, num_rules=3)
    again.chosen_PR[:, 1] = np.nan
    again.rejected_PR[:, 1] = np.nan
    found = run(first, again)
    silent = found.rows[1]
    assert (silent.num_ratings, silent.num_missing_repeated) == (0, 80)
    assert silent.agreement is None
    assert silent.weight_first is None
    assert sum(row.weight_first or 0 for row in found.rows) == pytest.approx(1)
    assert any("rule rule-1 rated no response both times" in note for note in found.notes)


def test_responses_in_common_without_a_rating_in_common_are_said_to_be_incomparable():
    first = rated_pairs(np.array([[0.5, NAN]]), np.array([[NAN, NAN]]))
    again = rated_pairs(np.array([[NAN, 0.5]]), np.array([[NAN, NAN]]))
    found = run(first, again)
    assert found.agreement is None
    assert found.largest_weight_change is None
    assert "nothing to compare" in found.sentence


def test_ratings_of_two_precisions_are_told_apart_from_an_unstable_judge():
    first = some_pairs(40)
    again = dataclasses.replace(
        first,
        chosen_PR=first.chosen_PR.astype(np.float32).astype(np.float64),
        rejected_PR=first.rejected_PR.astype(np.float32).astype(np.float64),
    )
    assert any("different precision" in note for note in run(first, again).notes)
    assert not any("precision" in note for note in run(first, first).notes)


def test_draws_are_bounded_and_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("encore.evidence.retest._WORK", 1)
    found = retest(table_of(some_pairs(30)), table_of(some_pairs(30)), num_draws=500)
    assert found.num_draws == 100
    assert any("100 resamples instead of 500" in note for note in found.notes)


def test_a_tiny_temperature_has_weights_of_zero_and_no_change_of_them():
    found = run(some_pairs(40), rated_again(some_pairs(40), share=0.5, seed=1), tau=1e-4)
    assert found.rows[0].weight_first == 0.0
    assert found.rows[0].weight_change is None
    json.dumps(found.as_dict(), allow_nan=False)


def test_files_give_the_same_and_the_sentence_tells_it(tmp_path: Path):
    first, again = some_pairs(60), rated_again(some_pairs(60), share=0.2, seed=1)
    pq.write_table(table_of(first), tmp_path / "first.parquet")
    pq.write_table(table_of(again), tmp_path / "again.parquet")
    found = retest(tmp_path / "first.parquet", tmp_path / "again.parquet", num_draws=100)
    assert found == run(first, again)
    assert found.sentence.startswith("120 responses rated twice: ")
    assert f"{found.agreement:.1%} of 480 ratings are equal" in found.sentence


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"tau": 0.0}, "above 0"), ({"num_draws": 5}, "number of draws 5")],
)
def test_impossible_parameters_are_one_line(options: dict, problem: str):
    table = table_of(some_pairs(5))
    with pytest.raises(InputError, match=problem):
        retest(table, table, **options)
