"""A judge's ratings of all responses, and people's labels of a few, give people's rate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

from encore.analysis.bootstrap import Estimate
from encore.analysis.corrected_rate import (
    corrected_rate,
    explained_interval,
    forecast_times,
    joint_levels,
    stratified_mean,
)
from encore.analysis.share_intervals import half_credit_interval

NAN = np.nan


def labelled(*strata: tuple[float, int, list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and ratings of strata: a rating, its number of responses, some labels."""
    label_N = [[*labels, *[NAN] * (size - len(labels))] for _, size, labels in strata]
    rating_N = [[rating] * size for rating, size, _ in strata]
    return np.concatenate(label_N), np.concatenate(rating_N).astype(float)


def test_levels_count_by_how_often_the_judge_gives_them():
    label_N, rating_N = labelled((0.0, 60, [1, 0, 0, 0, 0]), (1.0, 40, [1, 1, 1, 1, 0]))
    rate = corrected_rate(label_N, [rating_N], np.arange(100))
    assert (rate.num_responses, rate.num_labels) == (100, 10)
    assert rate.judge.value == pytest.approx(0.4)
    assert rate.people.value == pytest.approx(0.5)
    assert rate.corrected.value == pytest.approx(0.6 * 0.2 + 0.4 * 0.8)
    # Within strata 8 squares of 0.16 and 2 of 0.64: 1.6 of 2.5; 9 and 8 degrees of freedom.
    assert rate.explained.value == pytest.approx(1 - 1.6 / 2.5 * 9 / 8)
    # Without a judge it is the score interval.
    assert (rate.people.low, rate.people.high) == pytest.approx(
        half_credit_interval(0.5, tie_rate=0, num_pairs=10)
    )


def test_a_response_without_a_rating_is_left_out():
    label_N, rating_N = labelled((0.0, 60, [0] * 6), (1.0, 40, [1] * 6), (NAN, 500, [1] * 50))
    rate = corrected_rate(label_N, [rating_N], np.arange(600))
    assert (rate.num_responses, rate.num_labels, rate.corrected.value) == (100, 12, 0.4)


def test_a_judge_without_a_wrong_level_leaves_an_interval():
    label_N, rating_N = labelled((0.0, 600, [0] * 10), (1.0, 400, [1] * 10))
    rate = corrected_rate(label_N, [rating_N], np.arange(1000))
    assert rate.corrected.low < 0.38 < 0.42 < rate.corrected.high
    assert rate.times > 4


def test_levels_with_few_labels_are_joined_and_a_level_without_labels_counts():
    label_N, rating_N = labelled(
        (0.0, 50, [0] * 5), (0.5, 20, []), (0.7, 10, [1, 1]), (1.0, 20, [1, 1, 0])
    )
    # The last three levels have five labels together, four of them yes.
    assert corrected_rate(label_N, [rating_N], np.arange(100)).corrected.value == pytest.approx(0.4)


def test_labels_count_by_the_inverse_of_their_probability():
    label_N = np.array([1.0] * 4 + [0.0] * 4 + [NAN] * 92)
    probability_N = np.array([0.4] * 4 + [0.1] * 4 + [0.2] * 92)
    mean = stratified_mean(label_N, np.zeros(100, dtype=int), np.arange(100), probability_N)
    # 4 / 0.4 = 10 of 4 / 0.4 + 4 / 0.1 = 50.
    assert mean.estimate.value == pytest.approx(0.2)
    assert mean.worth < 8


def test_labels_of_one_prompt_say_less_than_labels_of_as_many_prompts():
    label_N, rating_N = labelled((0.0, 400, [0, 0, 0, 0, 1] * 8), (1.0, 400, [1, 1, 1, 1, 0] * 8))
    order_N = np.lexsort((label_N, rating_N))
    label_N, rating_N = label_N[order_N], rating_N[order_N]
    alone, grouped = (
        corrected_rate(label_N, [rating_N], np.arange(800) // size).corrected for size in (1, 8)
    )
    assert grouped.value == alone.value
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)


def test_levels_of_two_judges_rise_with_their_mean():
    first_N, second_N = np.array([1.0, 0, 0.5, 0, 1]), np.array([1.0, 0, 0, 0.5, 0])
    assert joint_levels([first_N, second_N]).tolist() == [4, 0, 2, 1, 3]


def test_the_saving_is_one_over_the_unexplained_share_until_all_have_labels():
    explained = explained_interval(0.5, np.arange(103) % 2)
    # Fisher's z of the root of a half is 0.8814, and 1.96 / 10 beside it:
    # nearly half of 103 labels are yes.
    assert (explained.low, explained.high) == pytest.approx(
        (np.tanh(0.6854) ** 2, np.tanh(1.0774) ** 2), abs=1e-3
    )
    for num_labels, times in ((0, 2.0), (500, 4 / 3), (1000, 1.0)):
        forecast = forecast_times(explained, num_labels=num_labels, num_responses=1000)
        assert forecast.value == pytest.approx(times)
    assert forecast_times(Estimate(), num_labels=1, num_responses=9) == Estimate()


def simulated_study(
    rng: np.random.Generator, *, rate: float, explained: float, num_levels: int, num_grades: int = 1
):
    """Return labels of 2,000 responses, a biased judge's ratings and prompts of 1, 4 or 8.

    Labels are 0 or 1, or so many steps from 0 to 1.
    """
    prompt_N = np.arange(2000) // rng.choice([1, 4, 8])
    shared_2N = rng.normal(size=(2, 2000))[:, prompt_N]
    own_2N = rng.normal(size=(2, 2000))
    chance_N, judged_N = norm.cdf(
        np.sqrt([[0.2], [0.4]]) * shared_2N + np.sqrt([[0.8], [0.6]]) * own_2N
    )
    probability_N = np.full(2000, rate)
    if explained:
        spread = 1 / explained - 1
        probability_N = beta.ppf(judged_N, rate * spread, (1 - rate) * spread)
        judged_N = probability_N
    level_N = np.minimum(num_levels * judged_N ** rng.choice([0.5, 1, 2]), num_levels - 1)
    label_N = binom.ppf(1 - chance_N, num_grades, probability_N) / num_grades
    return label_N, np.floor(level_N), prompt_N


def coverage(
    num_studies: int, *, num_grades: int = 1
) -> tuple[float, float, float, list[tuple[float, float]]]:
    """Return how often judge, people and corrected cover, and savings forecast and come."""
    rng = np.random.default_rng(2)
    covers, savings = [], []
    for _ in range(num_studies):
        rate = rng.choice([0.05, 0.1, 0.2, 0.5, 0.8, 0.95])
        label_N, level_N, prompt_N = simulated_study(
            rng,
            rate=rate,
            explained=rng.choice([0, 0.25, 0.5, 0.75, 0.9]),
            num_levels=rng.choice([2, 3, 5, 11]),
            num_grades=num_grades,
        )
        order_N = rng.permutation(2000)
        num_labels = rng.choice([20, 50, 100, 200, 400])
        ratings = [level_N / max(level_N.max(), 1)]

        first_50, result = (
            corrected_rate(np.where(np.argsort(order_N) < number, label_N, NAN), ratings, prompt_N)
            for number in (50, num_labels)
        )
        covers.append(
            [
                estimate.low <= rate <= estimate.high
                for estimate in (result.judge, result.people, result.corrected)
            ]
        )
        if num_labels >= 200 and first_50.explained.value is not None:
            forecast = forecast_times(first_50.explained, num_labels=num_labels, num_responses=2000)
            savings.append((forecast.value, result.times, forecast.low, forecast.high))
    judge, people, corrected = np.mean(covers, axis=0)
    return judge, people, corrected, savings


def test_few_simulated_studies_are_covered():
    judge, people, corrected, _ = coverage(200)
    # 200 studies: 95 % ± 3 points at most.
    assert judge < 0.6
    assert 0.91 <= people <= 0.99
    assert 0.92 <= corrected <= 0.99


@pytest.mark.full
def test_2000_simulated_studies_are_covered_by_94_to_97_percent():
    _, people, corrected, savings = coverage(2000)
    assert 0.94 <= corrected <= 0.97
    assert 0.94 <= people <= 0.97
    forecast, came, low, high = np.array(savings).T
    assert np.median(came / forecast) == pytest.approx(1, abs=0.1)
    # Nearly all, within a fifth: strata cost a little, and 50 labels have few strata.
    assert np.mean((0.8 * low <= came) & (came <= 1.25 * high)) > 0.8


@pytest.mark.full
def test_2000_simulated_studies_of_graded_labels_are_covered():
    """Labels are 0, 0.25, 0.5, 0.75 and 1."""
    _, people, corrected, _ = coverage(2000, num_grades=4)
    assert 0.93 <= people <= 0.96
    assert 0.94 <= corrected <= 0.97
