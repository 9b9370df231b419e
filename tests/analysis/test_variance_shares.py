"""Shares of variance and the effective number of rules, by hand and on simulated studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from encore import analyze
from encore.analysis.bootstrap import Estimate
from encore.analysis.effective_rules import effective_rules
from encore.analysis.statistics import rating_statistics
from encore.analysis.variance_shares import VarianceShares, variance_shares
from encore.core.errors import InputError
from encore.warehouse import open_ratings, open_warehouse
from tests.worlds.ratings import table_of
from tests.worlds.studies import rules_of, write_rating_run

pytestmark = pytest.mark.services

#: Shares of the levels 0, 0.1 … 1 in the ratings of a judge, in 100.
LEVEL_SHARES = {
    "high": [1, 1, 2, 2, 3, 3, 5, 8, 15, 25, 35],
    "middle": [1, 2, 4, 10, 18, 25, 20, 11, 5, 3, 1],
    "low": [50, 20, 9, 5, 4, 3, 3, 2, 2, 1, 1],
    "three": [35, 0, 0, 0, 0, 25, 0, 0, 0, 0, 40],
}
#: Draws of mean 0 and variance 1; of rare ones, one in ten is large.
UNIT_DRAWS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "uniform": lambda rng, shape: rng.uniform(-np.sqrt(3), np.sqrt(3), size=shape),
    "gamma": lambda rng, shape: (rng.gamma(2, size=shape) - 2) / np.sqrt(2),
    "t": lambda rng, shape: rng.standard_t(5, size=shape) / np.sqrt(5 / 3),
    "rare": lambda rng, shape: ((rng.random(shape) < 0.1) - 0.1) / 0.3,
}
FIRST = ([[1.0], [0.0], [1.0], [0.0]], [[1.0], [0.0], [0.0], [0.0]])


def shares_of(table: pa.Table, *, repeat: pa.Table | None = None) -> VarianceShares:
    return analyze(table, repeat=repeat).variance[0]


def share_values(shares: VarianceShares) -> list[float | None]:
    estimates = (shares.between_prompts, shares.between_responses, shares.judge_noise)
    return [estimate.value for estimate in estimates]


# --- by hand --------------------------------------------------------------------------------------


def test_the_shares_are_those_of_an_analysis_of_variance():
    # The pairs' means are 1, 0, 1/2, 0: between, 2 (25 + 9 + 1 + 9) / 64 / 3 = 11/24. Within, half
    # of the mean squared difference, 1/8. So prompts have (11/24 - 1/8) / 2 = 1/6 of 1/6 + 1/8.
    shares = shares_of(table_of(*FIRST))
    assert (shares.num_pairs, shares.variance) == (4, pytest.approx(7 / 24))
    assert share_values(shares) == [pytest.approx(4 / 7), pytest.approx(3 / 7), None]


def test_a_repeat_divides_responses_from_noise():
    # The repeat rates one response 1 instead of 0: noise 1/2 of 1/8. The means of the pairs are 1,
    # 0, 3/4, 0, so the squared mean of two different pairs is (49/16 - 25/16) / 12 = 1/8. The mean
    # square is 7/16, so the variance is 5/16. Products of two responses' means: 1 and 1/2, of four
    # pairs: 3/8 - 1/8 = 1/4 for prompts. Nothing is left for responses.
    second = table_of([[1.0], [0.0], [1.0], [0.0]], [[1.0], [0.0], [1.0], [0.0]])
    shares = shares_of(table_of(*FIRST), repeat=second)
    assert shares.variance == pytest.approx(5 / 16)
    assert share_values(shares) == pytest.approx([4 / 5, 0, 1 / 5])


def test_an_exact_repeat_has_no_noise():
    table = table_of(*FIRST)
    assert shares_of(table, repeat=table).judge_noise == Estimate(value=0.0, low=0.0, high=0.0)


def test_pairs_that_are_less_alike_than_strangers_have_share_0():
    shares = shares_of(table_of([[1.0]] * 5, [[0.0]] * 5))
    assert share_values(shares)[:2] == [0.0, 1.0]
    assert shares.between_prompts.low == 0.0
    assert shares.between_responses.high == 1.0


def test_no_shares_without_variance_pairs_or_levels():
    many = np.random.default_rng(0).random((400, 1))
    for chosen, num_pairs in ([[0.5]] * 4, 4), ([[0.5], [0.1], [np.nan]], 2), (many, 0):
        shares = shares_of(table_of(chosen, np.flip(chosen)[:, :1] if num_pairs == 0 else chosen))
        assert (shares.num_pairs, share_values(shares)) == (num_pairs, [None] * 3)


def test_a_repeat_of_another_judge_is_refused(tmp_path):
    for judge in ("a", "b"):
        table = table_of(*FIRST, rule_ids=["x"])
        write_rating_run(tmp_path / judge, table, rules=rules_of(["x"]), judge=judge)
    with pytest.raises(InputError, match=r'judge\.name is "b", not "a"'):
        analyze(tmp_path / "a", repeat=tmp_path / "b")


def test_equal_rules_are_one_and_opposite_rules_too():
    # Margins 1, -1, 0 and 0, 0, 1 are uncorrelated: two rules. A third that is the first one turned
    # round adds two elements of 1 to the diagonal: 3² / (3 + 2) = 1.8.
    margin_PR = np.array([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    zeros_PR = np.maximum(-margin_PR, 0)
    for num_rules, expected in (1, None), (2, 2.0), (3, 1.8):
        table = table_of((margin_PR + zeros_PR)[:, :num_rules], zeros_PR[:, :num_rules])
        [worth] = analyze(table).effective_rules
        assert worth.effective == Estimate(value=pytest.approx(expected) if expected else None)


def test_a_rule_that_tells_one_pair_of_2000_apart_counts_as_a_rule():
    # Three coins for the sign and one single untied pair: correlations of about 0, so four rules.
    wins_PR = np.random.default_rng(5).integers(0, 2, (2000, 4)).astype(float)
    wins_PR[:, 3], losses_PR = 0, 1 - wins_PR
    losses_PR[:, 3] = [1, *[0] * 1999]
    [worth] = analyze(table_of(wins_PR, losses_PR)).effective_rules
    assert worth.effective.value == pytest.approx(4, abs=0.02)
    assert worth.effective.low <= worth.effective.value <= worth.effective.high


# --- ends of intervals ----------------------------------------------------------------------------


def fisher_ends(rating_P2: np.ndarray, *, seed: int) -> tuple[float, float]:
    """Return the ends of the share of prompts: jackknife, bootstrap-t and Student's t, by loops."""

    def share(pairs: np.ndarray) -> float:
        # Two-way analysis of variance with one factor: means of pairs, and what is within.
        between = 2 * pairs.mean(axis=1).var(ddof=1)
        within = ((pairs[:, 0] - pairs[:, 1]) ** 2).mean() / 2
        prompts = (between - within) / 2
        return float(prompts / (prompts + within))

    def centre_and_error(pairs: np.ndarray) -> tuple[float, float]:
        num_pairs, whole = len(pairs), share(pairs)
        parts = [share(np.delete(pairs, index, axis=0)) for index in range(num_pairs)]
        error = np.sqrt((num_pairs - 1) * np.var(parts))
        return float(np.arctanh(whole)), float(error / (1 - whole**2))

    rng, num_pairs = np.random.default_rng(seed), len(rating_P2)
    centre, error = centre_and_error(rating_P2)
    distances = []
    for _ in range(600):
        drawn_centre, drawn_error = centre_and_error(
            rating_P2[rng.integers(0, num_pairs, num_pairs)]
        )
        distances.append((drawn_centre - centre) / drawn_error)
    drawn_low, drawn_high = np.quantile(distances, [0.025, 0.975])
    least = scipy.stats.t.ppf(0.975, num_pairs - 1)
    # A resample that lies far above says that the truth may lie far below.
    low, high = centre - max(least, drawn_high) * error, centre + max(least, -drawn_low) * error
    return float(np.tanh(low)), float(np.tanh(high))


def test_each_end_of_a_share_is_on_its_side():
    # A quarter of the prompts is rated high, and one has one response of each kind: resamples with
    # that prompt twice have far smaller shares, so the lower end is much further away.
    rng = np.random.default_rng(8)
    rating_P2 = np.where(rng.random((90, 1)) < 0.25, 0.8, 0.1) + rng.integers(0, 3, (90, 2)) / 14
    rating_P2[0] = (0.8, 0.1)
    shares = shares_of(table_of(rating_P2[:, :1], rating_P2[:, 1:]))
    estimate = shares.between_prompts
    low, high = np.arctanh(fisher_ends(rating_P2, seed=0))
    centre = np.arctanh(estimate.value)
    assert centre - low > 2 * (high - centre)  # an exchange of the ends would be seen
    tolerance = 0.15 * (high - low)
    assert np.arctanh(estimate.low) == pytest.approx(low, abs=tolerance)
    assert np.arctanh(estimate.high) == pytest.approx(high, abs=tolerance)
    # The rest of the variance is that of the responses: its ends are 1 less the other ends.
    responses = shares.between_responses
    assert (responses.low, responses.value, responses.high) == pytest.approx(
        (1 - estimate.high, 1 - estimate.value, 1 - estimate.low)
    )
    assert responses.low < responses.value < responses.high


# --- coverage -------------------------------------------------------------------------------------


class Design(NamedTuple):
    """Parameters of simulated ratings.

    Attributes:
        num_pairs: Pairs of a study.
        kinds: Names in `UNIT_DRAWS`, for prompts, responses and the judge's noise.
        levels: Name in `LEVEL_SHARES`.
        share: Share of prompts before ratings become levels.
        noise: Share of the judge's noise; 0 for studies without a repeat.
    """

    num_pairs: int
    kinds: tuple[str, str, str]
    levels: str
    share: float
    noise: float = 0.0


def thresholds(latent: np.ndarray, levels: str) -> np.ndarray:
    """Return the ends of ten of the levels 0, 0.1 … 1 that have the wanted shares."""
    return np.quantile(latent, np.cumsum(LEVEL_SHARES[levels])[:-1] / 100)


def as_judged(latent: np.ndarray, threshold_L: np.ndarray) -> np.ndarray:
    return np.searchsorted(threshold_L, latent) / 10


def statistics_of(chosen_PR: np.ndarray, rejected_PR: np.ndarray, **names) -> tuple:
    opened = open_ratings(table_of(chosen_PR, rejected_PR, **names))
    with open_warehouse(opened) as warehouse:
        return rating_statistics(warehouse), opened


def draw_latent(rng: np.random.Generator, design: Design, shape: tuple) -> np.ndarray:
    """Return what two runs judge in both responses, shape [2, 2, P, R]; chosen ones are better."""
    common, response, error = (
        UNIT_DRAWS[kind](rng, (*lead, *shape))
        for kind, lead in zip(design.kinds, ((), (2,), (2, 2)), strict=True)
    )
    response[0] += 0.3
    scale = np.sqrt([design.share, 1 - design.share - design.noise, design.noise])
    return scale[0] * common + scale[1] * response + scale[2] * error


def coverage_of_shares(design: Design, *, num_studies: int) -> dict:
    """Return how often the interval of each share contains the truth; a rule is a study."""
    latent_22P = draw_latent(np.random.default_rng(0), design, (500_000,))
    threshold_L = thresholds(latent_22P, design.levels)
    x_22P = as_judged(latent_22P, threshold_L)
    variance = x_22P.var()
    prompts, alike = (
        ((x_22P * turned_22P).mean() - x_22P.mean() ** 2) / variance
        for turned_22P in (x_22P[:, ::-1], x_22P[::-1])
    )
    truths = {"between_prompts": prompts, "between_responses": 1 - prompts}
    if design.noise:
        truths |= {"between_responses": alike - prompts, "judge_noise": 1 - alike}
    latent = draw_latent(np.random.default_rng(1), design, (design.num_pairs, num_studies))
    first, second = as_judged(latent, threshold_L)
    statistics, opened = statistics_of(*first)
    repeat = open_ratings(table_of(*second)) if design.noise else None
    rows = variance_shares(statistics[-1:], opened, repeat=repeat)
    return {
        name: np.mean([getattr(r, name).low <= truth <= getattr(r, name).high for r in rows])
        for name, truth in truths.items()
    }


def coverage_of_number(
    num_pairs: int, loading_RF: np.ndarray, levels: Sequence[str], kind: str, *, num_studies: int
) -> float:
    """Return how often the interval of the effective number contains the truth, study by study.

    Rows of `loading_RF` are the rules, columns the factors; `levels` are taken in turn.
    """

    def draw(rng: np.random.Generator, num_pairs: int) -> np.ndarray:
        factor = UNIT_DRAWS[kind](rng, (2, num_pairs, loading_RF.shape[1]))
        residual = rng.normal(size=(2, num_pairs, num_rules))
        residual *= np.sqrt(1 - (loading_RF**2).sum(axis=1))
        return factor @ loading_RF.T + residual + 0.7 * rng.normal(size=(num_pairs, 1))

    def judged(latent: np.ndarray) -> np.ndarray:
        return np.stack(list(map(as_judged, latent.T, threshold_RL))).T

    num_rules = len(loading_RF)
    many = draw(np.random.default_rng(0), 200_000)
    threshold_RL = [thresholds(x, levels[r % len(levels)]) for r, x in enumerate(many.T)]
    chosen, rejected = judged(many)
    truth = num_rules**2 / (np.corrcoef((chosen - rejected).T) ** 2).sum()
    ratings = judged(draw(np.random.default_rng(1), num_pairs * num_studies))
    sources = np.repeat([f"{index:04d}" for index in range(num_studies)], num_pairs)
    statistics, _ = statistics_of(*ratings, source=sources)
    estimates = [effective_rules(part).effective for part in statistics[:-1]]
    return float(np.mean([row.low <= truth <= row.high for row in estimates]))


@pytest.mark.parametrize(("share", "noise"), [(0.3, 0.0), (0.5, 0.2)])
def test_intervals_of_shares_contain_the_truth(share, noise):
    """Expect 95 of 100 studies, less three standard errors."""
    design = Design(200, ("normal",) * 3, "high", share, noise)
    for name, coverage in coverage_of_shares(design, num_studies=100).items():
        assert coverage >= 0.88, name


@pytest.mark.parametrize("loading", [0.6, 0.1])
def test_intervals_of_the_effective_number_contain_the_truth(loading):
    loading_RF = np.full((10, 1), loading)
    assert coverage_of_number(200, loading_RF, ["high"], "normal", num_studies=200) >= 0.88


@pytest.mark.full
@pytest.mark.parametrize(
    "design",
    [
        Design(250, ("gamma", "uniform", "normal"), "middle", 0.15),
        Design(200, ("gamma", "t", "normal"), "low", 0.7),
        Design(1800, ("rare", "gamma", "normal"), "middle", 0.45),
        Design(250, ("gamma", "uniform", "t"), "middle", 0.15, 0.05),
        Design(220, ("normal", "gamma", "normal"), "three", 0.55, 0.25),
        Design(1000, ("t", "uniform", "t"), "three", 0.25, 0.15),
        Design(1800, ("rare", "gamma", "t"), "middle", 0.5, 0.4),
    ],
)
def test_coverage_of_shares_is_93_to_97_percent(design):
    """Allow two standard errors of 600 studies, 0.018."""
    coverages = coverage_of_shares(design, num_studies=600)
    assert all(0.912 <= coverage <= 0.988 for coverage in coverages.values()), coverages


@pytest.mark.full
@pytest.mark.parametrize(
    ("num_pairs", "num_rules", "ends", "levels", "kind"),
    [
        (200, 20, [(0.18, 0.18)], ["three", "low"], "gamma"),  # faint correlations
        (1000, 10, [(0.18, 0.18)], ["low"], "normal"),
        (250, 20, [(-0.8, 0.8), (0.5, 0.5)], ["middle", "three"], "t"),  # of both signs
        (220, 10, [(0.9, 0.0), (0.0, 0.8)], ["middle", "low"], "gamma"),  # two groups
        (1000, 20, [(0.9, 0.0), (0.0, 0.8)], ["low", "three"], "t"),
        (200, 10, [(0.75, 0.93)], ["low"], "rare"),  # strong ones
    ],
)
def test_coverage_of_the_effective_number_is_93_to_97_percent(
    num_pairs, num_rules, ends, levels, kind
):
    """Allow two standard errors of 400 studies, 0.022. Loadings go from end to end."""
    loading_RF = np.stack([np.linspace(*pair, num_rules) for pair in ends], axis=1)
    coverage = coverage_of_number(num_pairs, loading_RF, levels, kind, num_studies=400)
    assert 0.908 <= coverage <= 0.992
