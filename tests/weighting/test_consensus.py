"""Agreement with the other rules: what it counts, what scheme consensus does with it, and where it
misleads.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from encore.analysis.analyze import analyze
from encore.analysis.consensus import (
    agreement_with_others,
    consensus_weights,
    mean_correlations,
    same_rules,
)
from encore.weighting.composed_ratings import composed_outcomes
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import load_scheme
from encore.weighting.weigh import weights
from tests.golden.command_line import encore
from tests.worlds.ratings import (
    evidence_of_margins,
    pairs_of_margins,
    statistics_of_margins,
    table_of,
    table_of_pairs,
)

# Suffixes: P pairs, R rules.

_Floats = NDArray[np.float64]


def correlations(*rows: tuple[float, ...]) -> _Floats:
    """Return a symmetric matrix of correlations from its part above the diagonal, row by row."""
    correlation_RR = np.eye(len(rows) + 1)
    for index, row in enumerate(rows):
        correlation_RR[index, index + 1 :] = correlation_RR[index + 1 :, index] = row
    return correlation_RR


def means_of(correlation_RR: _Floats) -> list[float]:
    same_RR = same_rules(correlation_RR, threshold=0.9)
    return mean_correlations(correlation_RR, same_RR).tolist()


# --- the figure -----------------------------------------------------------------------------------


def test_a_rule_and_its_copy_have_one_voice_together():
    # Without a copy: (0.4 + 0.2) / 2, (0.4 + 0) / 2, (0.2 + 0) / 2.
    assert means_of(correlations((0.4, 0.2), (0.0,))) == pytest.approx([0.3, 0.2, 0.1])
    # With a copy of rule 0 at the end: the same for the three, and for the copy what rule 0 has.
    with_copy_RR = correlations((0.4, 0.2, 1.0), (0.0, 0.4), (0.2,))
    assert means_of(with_copy_RR) == pytest.approx([0.3, 0.2, 0.1, 0.3])
    # A rule that says the opposite of rule 0 has no voice in rule 0's mean, and takes half of rule
    # 0's: (0.4 / 2 - 0.4 / 2 + 0) / 2 for rule 1.
    opposite_RR = correlations((0.4, 0.2, -1.0), (0.0, -0.4), (-0.2,))
    assert means_of(opposite_RR) == pytest.approx([0.3, 0.0, 0.0, -0.3])


def test_a_correlation_just_below_the_threshold_counts_in_full():
    # (0.89 + 0.5) / 2; at 0.9 the two are one rule, whose only other rule is the third.
    assert means_of(correlations((0.89, 0.5), (0.5,)))[0] == pytest.approx(0.695)
    assert means_of(correlations((0.9, 0.5), (0.5,)))[0] == pytest.approx(0.5)


def test_a_rule_with_ties_only_and_a_single_rule_have_no_figure():
    nan = float("nan")
    means = means_of(correlations((0.4, nan), (nan,)))
    assert means[:2] == pytest.approx([0.4, 0.4])
    assert np.isnan(means[2])
    for alone_RR in (np.ones((1, 1)), np.ones((3, 3))):  # one rule, or the same rule three times
        assert np.isnan(means_of(alone_RR)).all()
        assert set(consensus_weights(alone_RR, tau=2.0, threshold=0.9)) == {1 / len(alone_RR)}


def test_who_was_preferred_changes_neither_figure_nor_weights():
    rng = np.random.default_rng(0)
    rating_2PR = rng.integers(0, 11, size=(2, 60, 4)) / 10
    swapped_2PR = rating_2PR.copy()
    swapped_2PR[:, :25] = swapped_2PR[::-1, :25]
    tables = [table_of(*part_2PR) for part_2PR in (rating_2PR, swapped_2PR)]
    first, second = (
        {row.rule_id: row.agrees_with_others for row in analyze(table).answers[-1].rows}
        for table in tables
    )
    assert first == second
    margin_PR = rating_2PR[0] - rating_2PR[1]
    norm_R = np.linalg.norm(margin_PR, axis=0)
    correlation_RR = margin_PR.T @ margin_PR / np.outer(norm_R, norm_R)
    expected = (correlation_RR.sum(axis=0) - 1) / 3
    assert [row.value for row in first.values()] == pytest.approx(
        [expected[int(rule_id[-1])] for rule_id in first]
    )
    vectors = [weights(table, scheme="consensus") for table in tables]
    assert vectors[0].weights == pytest.approx(vectors[1].weights)


def coverage(num_studies: int) -> float:
    """Return how often the interval of a rule's agreement with two others contains the truth.

    Rule r has the margin q + a normal error: every correlation is 1 / 2, and so is each mean.
    """
    num_covered = 0
    for seed in range(num_studies):
        rng = np.random.default_rng(seed)
        margin_PR = rng.normal(size=(300, 1)) + rng.normal(size=(300, 3))
        estimates = agreement_with_others(statistics_of_margins(margin_PR), threshold=0.9)
        num_covered += sum(row.low <= 0.5 <= row.high for row in estimates)
    return num_covered / (3 * num_studies)


def test_the_interval_contains_the_truth_in_about_95_percent():
    # 300 intervals, three a study: four standard errors of 95 % are at most 8.7 points.
    assert coverage(100) == pytest.approx(0.95, abs=0.087)


@pytest.mark.full
def test_the_interval_contains_the_truth_in_many_studies():
    assert coverage(3000) == pytest.approx(0.95, abs=0.02)


# --- the weights ----------------------------------------------------------------------------------


def test_weights_are_the_softmax_of_standardised_figures_and_copies_share_one():
    # Means 0.3, 0.2, 0.1 have the deviation sqrt(2 / 3) / 10, so standardised they are 1.2247, 0
    # and -1.2247; at τ 2 the masses are exp(0.6124) = 1.8448, 1 and 0.5421, in all 3.3869.
    correlation_RR = correlations((0.4, 0.2), (0.0,))
    weight_R = consensus_weights(correlation_RR, tau=2.0, threshold=0.9)
    assert weight_R == pytest.approx([0.54469, 0.29526, 0.16005], abs=1e-4)
    # A copy of rule 0: means 0.3, 0.2, 0.1, 0.3, and each of the two has half of the mass.
    weight_R = consensus_weights(
        correlations((0.4, 0.2, 1.0), (0.0, 0.4), (0.2,)), tau=2.0, threshold=0.9
    )
    assert weight_R[0] == weight_R[3]
    # Opposites do not share: rule 3 says the opposite of rule 0, and rules 1 and 2 have the same
    # mean, 0, with correlations (0.4, 0.2, -1), (0, -0.4) and (-0.2).
    weight_R = consensus_weights(
        correlations((0.4, 0.2, -1.0), (0.0, -0.4), (-0.2,)), tau=2.0, threshold=0.9
    )
    assert weight_R[1] == pytest.approx(weight_R[2])
    # Means 0.3, 0, 0, -0.3 have the deviation 0.2121: sqrt(2), 0, 0 and -sqrt(2), halved.
    assert weight_R[0] / weight_R[1] == pytest.approx(np.exp(np.sqrt(0.5)))


def test_copies_weigh_together_what_one_of_them_would():
    weight_R = consensus_weights(
        correlations((0.4, 0.2, 1.0), (0.0, 0.4), (0.2,)), tau=2.0, threshold=0.9
    )
    # The mean is 0.225 and the deviation 0.0829: 0.9045, -0.3015, -1.5076, halved and raised.
    assert weight_R[0] + weight_R[3] == pytest.approx(
        weight_R[1] * np.exp((0.9045 + 0.3015) / 2), rel=1e-3
    )


def test_a_rule_with_ties_only_gets_no_weight_and_the_temperature_is_heeded():
    margin_PR = np.random.default_rng(0).normal(size=(50, 1)) + np.random.default_rng(1).normal(
        size=(50, 4)
    )
    margin_PR[:, 3] = 0.0
    scheme = load_scheme("consensus")
    vectors = [
        scheme.weigh(evidence_of_margins(margin_PR), SchemeOptions(tau=tau)) for tau in (1e6, 0.5)
    ]
    assert vectors[0].weights == pytest.approx([1 / 3] * 3 + [0], abs=1e-5)
    assert vectors[1].weights[3] == 0
    assert max(vectors[1].weights) > 0.5
    assert vectors[1].params["tau"] == 0.5


def test_missing_ratings_leave_a_pair_out_for_its_rules_alone():
    # Rule 2 is missing in all pairs but the first twenty; the others keep all of theirs.
    rng = np.random.default_rng(3)
    rating_2PR = rng.integers(0, 11, size=(2, 60, 3)) / 10
    whole = {row.rule_id: row for row in analyze(table_of(*rating_2PR)).answers[-1].rows}
    rating_2PR[:, 20:, 2] = np.nan
    pairs = pairs_of_margins(np.zeros((60, 3)))
    pairs = dataclasses.replace(pairs, chosen_PR=rating_2PR[0], rejected_PR=rating_2PR[1])
    holed = {row.rule_id: row for row in analyze(table_of_pairs(pairs)).answers[-1].rows}
    margin_PR = rating_2PR[0] - rating_2PR[1]

    def r(first: int, second: int) -> float:
        pair_2P = margin_PR[~np.isnan(margin_PR[:, [first, second]]).any(axis=1)]
        x_P, y_P = pair_2P[:, first], pair_2P[:, second]
        return float(x_P @ y_P / np.sqrt((x_P @ x_P) * (y_P @ y_P)))

    value = holed["rule-00"].agrees_with_others.value
    assert value == pytest.approx((r(0, 1) + r(0, 2)) / 2)
    assert value != pytest.approx(whole["rule-00"].agrees_with_others.value)


# --- where it helps, and where it misleads --------------------------------------------------------

#: Pairs that weights are measured on.
NUM_TESTED = 2000


def margins_of(world: str, *, seed: int, num_pairs: int = 600) -> _Floats:
    """Return margins of ten simulated rules, of pairs to weigh by and then of `NUM_TESTED` more.

    A rule's margin is its quality times how much better the chosen response is, plus an error of
    its own. In 15 % of pairs people chose the worse response.

    Args:
        world: "quality": qualities are spread from 0 to 0.8. "copies": five rules of quality 0.2
            share a large error, so that they correlate at 0.8, too little to count as doubles; the
            other five have 0.6. "halo": what a rule lacks in quality it takes from the length of
            the response, which people do not care about. "equal": all have 0.4.
        seed: Seed of the margins; the same pairs for every world.
        num_pairs: Pairs to weigh by.
    """
    rng = np.random.default_rng(seed)
    num_all = num_pairs + NUM_TESTED
    better_P = np.abs(rng.normal(size=num_all)) * np.where(rng.random(num_all) < 0.15, -1, 1)
    margin_PR, shared_P = rng.normal(size=(num_all, 10)), rng.normal(size=num_all)
    quality_R = np.full(10, 0.4) if world == "equal" else np.linspace(0, 0.8, 10)
    if world == "copies":
        quality_R = np.repeat([0.2, 0.6], 5)
        margin_PR[:, :5] += 2 * shared_P[:, None]
    if world == "halo":
        margin_PR += (0.8 - quality_R) * shared_P[:, None]
    return np.asarray(margin_PR + quality_R * better_P[:, None])


def mean_accuracies(
    world: str, *, num_studies: int, schemes: tuple[str, ...] = ("uniform", "consensus")
) -> dict[str, float]:
    """Return the mean half-credit accuracy of schemes, with 20 labels, on pairs not weighed by."""
    halves: dict[str, list[float]] = {name: [] for name in schemes}
    for seed in range(num_studies):
        margin_PR = margins_of(world, seed=seed)
        evidence = evidence_of_margins(margin_PR[:-NUM_TESTED])
        tested = pairs_of_margins(margin_PR[-NUM_TESTED:])
        for name, values in halves.items():
            vector = load_scheme(name).weigh(evidence, SchemeOptions(labels=20))
            [outcome] = composed_outcomes(tested, np.array([vector.weights]))
            values.append(outcome.accuracy.half or 0.0)
    return {name: float(np.mean(values)) for name, values in halves.items()}


@pytest.mark.parametrize(
    ("world", "helps"), [("quality", True), ("copies", False), ("halo", False)]
)
def test_consensus_helps_where_rules_share_quality_alone_and_misleads_by_copies_and_halos(
    world, helps
):
    halves = mean_accuracies(world, num_studies=10)
    assert (halves["consensus"] > halves["uniform"]) == helps


@pytest.mark.full
@pytest.mark.parametrize(
    ("world", "uniform", "consensus"),
    [("quality", 0.701, 0.718), ("copies", 0.582, 0.545), ("halo", 0.649, 0.644)],
)
def test_the_figures_of_the_page(world, uniform, consensus):
    halves = mean_accuracies(world, num_studies=400)
    assert halves["uniform"] == pytest.approx(uniform, abs=0.003)
    assert halves["consensus"] == pytest.approx(consensus, abs=0.003)


@pytest.mark.full
def test_twenty_labels_cost_accuracy_where_no_rule_is_better_but_less_than_without_a_penalty():
    schemes = ("uniform", "shrunk", "bradley-terry")
    halves = mean_accuracies("equal", num_studies=50, schemes=schemes)
    assert halves["uniform"] > halves["shrunk"] > halves["bradley-terry"] + 0.02
    halves = mean_accuracies("halo", num_studies=50, schemes=schemes)
    assert halves["shrunk"] > halves["uniform"]


# --- the command ----------------------------------------------------------------------------------


def test_the_table_says_that_the_column_is_no_accuracy(tmp_path):
    import pyarrow.parquet as pq

    rating_2PR = np.random.default_rng(0).integers(0, 11, size=(2, 30, 3)) / 10
    pq.write_table(table_of(*rating_2PR), tmp_path / "r.parquet")
    text = " ".join(encore("analyze", tmp_path / "r.parquet").out.split())
    assert "others: agrees with the other rules" in text
    assert "it is no accuracy" in text
    row, *_ = encore("analyze", tmp_path / "r.parquet", "--json").json["answer"]
    assert row["agrees_with_others"].keys() == {"value", "low", "high"}
