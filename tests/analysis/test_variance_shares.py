"""Shares of variance and the effective number of rules, by hand and on simulated studies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr

from encore import analyze
from encore.analysis.bootstrap import Estimate
from encore.analysis.effective_rules import effective_rules
from encore.analysis.statistics import rating_statistics
from encore.analysis.variance_shares import VarianceShares, variance_shares
from encore.core.errors import InputError
from encore.warehouse import open_ratings, open_warehouse
from tests.worlds.ratings import table_of
from tests.worlds.studies import rules_of, write_rating_run

#: Shares of the levels 0, 0.1 … 1 in the ratings of a judge that likes most responses.
SKEWED_L = np.array([1, 1, 2, 2, 3, 3, 5, 8, 15, 25, 35]) / 100
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


# --- coverage -------------------------------------------------------------------------------------


def as_judged(normal: np.ndarray) -> np.ndarray:
    """Return levels, skewed as a judge's, for standard normal values."""
    return np.minimum(np.searchsorted(np.cumsum(SKEWED_L), ndtr(normal)), 10) / 10


def statistics_of(chosen_PR: np.ndarray, rejected_PR: np.ndarray, **names) -> tuple:
    opened = open_ratings(table_of(chosen_PR, rejected_PR, **names))
    with open_warehouse(opened) as warehouse:
        return rating_statistics(warehouse), opened


def draw_judged(rng: np.random.Generator, share: float, noise: float, shape: tuple) -> np.ndarray:
    """Return ratings by two runs of both responses, shape [2, 2, P, R]; chosen ones are better."""
    common, response, error = (rng.normal(size=(*lead, *shape)) for lead in ((), (2,), (2, 2)))
    response[0] += 0.3
    scale = np.sqrt([share, 1 - share - noise, noise])
    return as_judged(scale[0] * common + scale[1] * response + scale[2] * error)


def coverage_of_shares(num_pairs: int, share: float, noise: float, *, num_studies: int) -> dict:
    """Return how often the interval of each share contains the truth; a rule is a study."""
    x_22P = draw_judged(np.random.default_rng(0), share, noise, (1_000_000,))
    variance = x_22P.var()
    prompts, alike = (
        ((x_22P * turned_22P).mean() - x_22P.mean() ** 2) / variance
        for turned_22P in (x_22P[:, ::-1], x_22P[::-1])
    )
    truths = {"between_prompts": prompts, "between_responses": 1 - prompts}
    if noise:
        truths |= {"between_responses": alike - prompts, "judge_noise": 1 - alike}
    rng = np.random.default_rng(1)
    first, second = draw_judged(rng, share, noise, (num_pairs, num_studies))
    statistics, opened = statistics_of(*first)
    repeat = open_ratings(table_of(*second)) if noise else None
    rows = variance_shares(statistics[-1:], opened, repeat=repeat)
    return {
        name: np.mean([getattr(r, name).low <= truth <= getattr(r, name).high for r in rows])
        for name, truth in truths.items()
    }


def coverage_of_number(num_pairs: int, loadings: Sequence[float], *, num_studies: int) -> float:
    """Return how often the interval of the effective number contains the truth, study by study."""
    loading_R = np.array(loadings)

    def draw(rng: np.random.Generator, num_pairs: int) -> np.ndarray:
        factor, prompt = rng.normal(size=(2, num_pairs, 1)), rng.normal(size=(num_pairs, 1))
        residual = rng.normal(size=(2, num_pairs, len(loading_R)))
        latent = factor * loading_R + residual * np.sqrt(1 - loading_R**2) + 0.7 * prompt
        return as_judged(latent / np.sqrt(1.49))

    chosen, rejected = draw(np.random.default_rng(0), 1_000_000)
    truth = len(loading_R) ** 2 / (np.corrcoef((chosen - rejected).T) ** 2).sum()
    ratings = draw(np.random.default_rng(1), num_pairs * num_studies)
    sources = np.repeat([f"{index:04d}" for index in range(num_studies)], num_pairs)
    statistics, _ = statistics_of(*ratings, source=sources)
    estimates = [effective_rules(part).effective for part in statistics[:-1]]
    return float(np.mean([row.low <= truth <= row.high for row in estimates]))


@pytest.mark.parametrize(("share", "noise"), [(0.3, 0.0), (0.5, 0.2)])
def test_intervals_of_shares_contain_the_truth(share, noise):
    """Expect 95 of 100 studies, less three standard errors."""
    for name, coverage in coverage_of_shares(200, share, noise, num_studies=100).items():
        assert coverage >= 0.88, name


def test_intervals_of_the_effective_number_contain_the_truth():
    assert coverage_of_number(200, [0.6] * 10, num_studies=200) >= 0.88


@pytest.mark.full
@pytest.mark.parametrize("num_pairs", [200, 2000])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_coverage_of_shares_is_93_to_97_percent(num_pairs, share, noise):
    """Allow two standard errors of 1,000 studies, 0.014."""
    coverages = coverage_of_shares(num_pairs, share, noise, num_studies=1000)
    assert all(0.916 <= coverage <= 0.984 for coverage in coverages.values()), coverages


@pytest.mark.full
@pytest.mark.parametrize("num_pairs", [200, 2000])
@pytest.mark.parametrize("num_rules", [10, 20])
@pytest.mark.parametrize("strongest", [0.5, 0.7, 0.9])
def test_coverage_of_the_effective_number_is_93_to_97_percent(num_pairs, num_rules, strongest):
    """Rules share a factor, the last one most; 400 studies, two standard errors are 0.022."""
    loadings = np.linspace(strongest / 2, strongest, num_rules)
    coverages = [
        coverage_of_number(num_pairs, loadings, num_studies=200 if num_pairs == 2000 else 400)
    ]
    assert all(0.905 <= coverage <= 0.99 for coverage in coverages), coverages
