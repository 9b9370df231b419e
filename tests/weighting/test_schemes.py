"""Every weighting scheme gives a point of the simplex; ENCORE's is a softmax of −H/τ."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encore.analysis.entropy import entropy_weights
from encore.analysis.statistics import RuleStats
from encore.core.errors import InputError
from encore.data.study import Study
from encore.weighting.scheme import Evidence
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import SCHEMES, load_scheme
from encore.weighting.schemes.random import random_weights
from encore.weighting.weigh import weights
from encore.weighting.weight_vector import WeightVector
from tests.worlds.ratings import (
    evidence_of_entropies,
    pairs_of_margins,
    rule_names,
    stats,
    table_of,
    write_labels,
)

ENTROPIES = st.lists(st.floats(0, 10), min_size=1, max_size=20)
OPTIONS = SchemeOptions(rule="rule-00")


@pytest.fixture(scope="module")
def labelled_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return a study with labels of 30 pairs under 20 rules."""
    study = Study(tmp_path_factory.mktemp("labelled"))
    write_labels(study, np.random.default_rng(0).choice([0.0, 0.5, 1.0], (30, 20)))
    return study


def evidence(entropies: list[float], *, seed: int, study: Study) -> Evidence:
    """Return evidence of rules with these entropies, random spreads and 30 random pairs."""
    rng = np.random.default_rng(seed)
    margin_PR = rng.integers(-10, 11, size=(30, len(entropies))) / 10
    of_entropies = evidence_of_entropies(entropies, pairs=pairs_of_margins(margin_PR))
    bandwidths = rng.choice([0.05, 0.1, 0.2, None], size=len(entropies)).tolist()
    rules = tuple(
        dataclasses.replace(rule, kde_bandwidth=bandwidth)
        for rule, bandwidth in zip(of_entropies.rules, bandwidths, strict=True)
    )
    return dataclasses.replace(of_entropies, rules=rules, study=study)


# --- the contract of the folder -------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_has_its_name_and_reads_pairs_only_if_it_uses_labels(name):
    scheme = load_scheme(name)
    assert scheme.name == name
    assert set(scheme.options) <= set(SchemeOptions.model_fields)
    assert scheme.uses_labels == (name in ("agreement", "bradley-terry", "shrunk"))
    if not scheme.uses_labels:  # without pairs, reading them fails
        scheme.weigh(evidence_of_entropies([0.5, 1.0, 0.2]), OPTIONS)


@pytest.mark.parametrize("name", SCHEMES)
@settings(max_examples=25)  # some schemes solve hundreds of regressions
@given(entropies=ENTROPIES, seed=st.integers(0, 1000))
def test_a_scheme_weighs_every_rule_and_permuting_rules_permutes_the_weights(
    labelled_study, name, entropies, seed
):
    original = evidence(entropies, seed=seed, study=labelled_study)
    order = np.random.default_rng(seed).permutation(len(entropies)).tolist()
    pairs = original.read_pairs()
    permuted = dataclasses.replace(
        original.with_pairs(
            dataclasses.replace(
                pairs,
                rule_ids=tuple(pairs.rule_ids[index] for index in order),
                chosen_PR=pairs.chosen_PR[:, order],
                rejected_PR=pairs.rejected_PR[:, order],
            )
        ),
        rules=tuple(original.rules[index] for index in order),
        correlation_RR=original.correlation_RR[np.ix_(order, order)],
    )
    scheme = load_scheme(name)
    vector, moved = scheme.weigh(original, OPTIONS), scheme.weigh(permuted, OPTIONS)
    assert (vector.scheme, vector.rule_ids) == (name, rule_names(len(entropies)))
    assert math.fsum(vector.weights) == pytest.approx(1.0, abs=1e-12)
    assert moved.rule_ids == tuple(vector.rule_ids[index] for index in order)
    expected = [vector.weights[index] for index in order]
    assert moved.weights == pytest.approx(expected, abs=1e-5)  # a solver's order of sums


def test_a_rule_without_ratings_is_named():
    with pytest.raises(InputError, match="rule empty: none of its 7 ratings is a number"):
        Evidence(
            rules=(stats("full", 1.0), stats("empty", None)),
            read_pairs=dict,
            correlation_RR=np.eye(2),
        )


@pytest.mark.parametrize(
    ("rule_ids", "weights", "problem"),
    [
        ("ab", (0.5, 0.6), "sum is 1.1"),
        ("ab", (1.5, -0.5), r"expected numbers in \[0, 1\]"),
        ("ab", (math.nan, 1.0), "nan"),
        ("ab", (1.0,), "1 weights for 2 rules"),
        ("aa", (0.5, 0.5), "2 weights for 1 rules"),
        ("", (), "0 weights for 0 rules"),
    ],
)
def test_a_vector_off_the_simplex_cannot_be_built(rule_ids, weights, problem):
    with pytest.raises(ValueError, match=problem):
        WeightVector(scheme="x", rule_ids=tuple(rule_ids), weights=weights)


# --- each scheme ----------------------------------------------------------------------------------


@given(ENTROPIES, st.floats(1e-3, 1e6))
def test_lower_entropy_never_weighs_less_and_a_large_temperature_is_uniform(entropies, tau):
    weights = entropy_weights(np.array(entropies), tau=tau)[np.argsort(entropies)]
    assert (np.diff(weights) <= 0).all()
    uniform = entropy_weights(np.array(entropies), tau=1e12)
    assert uniform == pytest.approx(np.full(len(entropies), 1 / len(entropies)), abs=1e-10)


@pytest.mark.parametrize("tau", [1e-6, 1e-300, 5e-324])
def test_a_small_temperature_is_the_rule_of_lowest_entropy(tau):
    weights = entropy_weights(np.array([2.0, 0.5, 1.0, 0.5]), tau=tau)
    assert weights.tolist() == [0.0, 0.5, 0.0, 0.5]


def test_random_weights_are_uniform_on_the_simplex():
    # A Dirichlet(1, 1, 1) weight is Beta(1, 2): mean 1/3 (sd 0.236), above 1/2 with probability
    # (1 - 1/2)² = 1/4. Over 4,000 draws four standard errors are 0.015 and 0.027.
    draws = np.array([random_weights(("a", "b", "c"), seed=seed) for seed in range(4000)])
    assert draws.mean(axis=0) == pytest.approx([1 / 3] * 3, abs=0.015)
    assert (draws > 0.5).mean(axis=0) == pytest.approx([0.25] * 3, abs=0.027)


@pytest.mark.parametrize("name", ["top-k", "random-k"])
def test_a_k_above_the_number_of_rules_selects_all(name):
    vector = load_scheme(name).weigh(evidence_of_entropies([1.0, 2.0]), SchemeOptions(k=5))
    assert (vector.weights, vector.params["k"]) == ((0.5, 0.5), 2)


def test_top_k_orders_equal_entropies_by_id():
    vector = load_scheme("top-k").weigh(evidence_of_entropies([1.0] * 3), SchemeOptions(k=1))
    assert vector.weights == (1.0, 0.0, 0.0)


def test_inverse_sd_weighs_by_the_standard_deviation_of_a_rules_own_ratings():
    # Rule a has the ratings 0, 0, 1, 1: deviations of 1/2, and with ddof 1 the variance 4/4 / 3 =
    # 1/3. Rule b has 0 and 1, two more are missing: variance 2/4 / 1 = 1/2. Rule c is constant. So
    # weights are as sqrt(3) to sqrt(2) to 0.
    nan = math.nan
    chosen_PR, rejected_PR = [[0, nan, 0.5], [1, 1, 0.5]], [[0, nan, 0.5], [1, 0, 0.5]]
    vector = weights(
        table_of(chosen_PR, rejected_PR, rule_ids=("a", "b", "c")), scheme="inverse-sd"
    )
    total = math.sqrt(3) + math.sqrt(2)
    expected = (math.sqrt(3) / total, math.sqrt(2) / total, 0.0)
    assert vector.weights == pytest.approx(expected)


def test_one_minus_entropy_divides_by_the_entropy_of_the_most_levels():
    # Of four levels at most: ln 4. H is ln 2 / ln 4 = 1/2, 0 and 1, so 1 - H is 1/2, 1 and 0 and
    # the weights are 1/3, 2/3 and 0. Two levels are not divided by ln 2.
    def of_rules(rules: tuple[RuleStats, ...]) -> Evidence:
        return Evidence(rules=rules, read_pairs=dict, correlation_RR=np.eye(len(rules)))

    scheme = load_scheme("one-minus-entropy")
    rules = (
        stats("halves", math.log(2), num_levels=2),
        stats("constant", 0.0, num_levels=1),
        stats("spread", math.log(4), num_levels=4),
    )
    vector = scheme.weigh(of_rules(rules), OPTIONS)
    assert vector.weights == pytest.approx((1 / 3, 2 / 3, 0.0))
    for alike in (rules[:1] * 1, rules[1:2], rules[2:]):  # the largest entropy, or none at all
        [weight] = scheme.weigh(of_rules(alike), OPTIONS).weights
        assert weight == 1.0


@pytest.mark.parametrize("name", ["random", "random-k"])
def test_a_draw_depends_on_the_seed(name):
    # Two of five rules are drawn with probability 2/5 each. Over 400 seeds a rule is drawn 160
    # times, give or take 4 sqrt(400 · 2/5 · 3/5) = 39. A mean weight is 1/5 under both schemes; of
    # random weights the sd is sqrt(4/150) = 0.163, four standard errors 0.033.
    scheme, rules = load_scheme(name), evidence_of_entropies([1.0] * 5)
    draws = [scheme.weigh(rules, SchemeOptions(k=2, seed=seed)) for seed in range(400)]
    assert scheme.weigh(rules, SchemeOptions(k=2, seed=7)).weights == draws[7].weights
    weight_DR = np.array([vector.weights for vector in draws])
    assert [vector.params["seed"] for vector in draws] == list(range(400))
    assert weight_DR.mean(axis=0) == pytest.approx([0.2] * 5, abs=0.05)
    if name == "random-k":
        assert set(weight_DR.ravel()) == {0.0, 0.5}
        assert (weight_DR > 0).sum(axis=0) == pytest.approx([160] * 5, abs=39)
