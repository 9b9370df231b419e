"""Every weighting scheme gives a point of the simplex; ENCORE's is a softmax of −H/τ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.errors import InputError
from encore.statistics import Accuracy, RuleStats
from encore.weighting import SCHEMES, load_scheme
from encore.weighting.encore import entropy_weights
from encore.weighting.scheme import SchemeOptions
from encore.weighting.vector import WeightVector

ENTROPIES = st.lists(st.floats(0, 10), min_size=1, max_size=20)
TAUS = st.floats(1e-3, 1e6)


def stats(rule_id: str, entropy_nats: float | None) -> RuleStats:
    return RuleStats(
        rule_id=rule_id,
        source="all",
        num_ratings=0 if entropy_nats is None else 100,
        num_unparsed=7,
        num_levels=11,
        entropy_nats=entropy_nats,
        differential_entropy_nats=None,
        kde_bandwidth=None,
        num_pairs=50,
        num_pairs_total=50,
        tie_rate=0.2,
        accuracy=Accuracy(half=0.6, strict=0.5, untied=0.62, inclusive=0.7),
    )


def rules(entropies: list[float]) -> list[RuleStats]:
    return [stats(f"rule-{k}", entropy) for k, entropy in enumerate(entropies)]


# --- the contract of the folder -------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_has_its_name_and_declares_known_options(name: str) -> None:
    scheme = load_scheme(name)
    assert scheme.name == name
    assert set(scheme.options) <= set(SchemeOptions.__slots__)
    assert scheme.summary


@pytest.mark.parametrize("name", SCHEMES)
@given(entropies=ENTROPIES)
def test_a_scheme_gives_a_weight_to_every_rule_in_order(name: str, entropies: list[float]) -> None:
    vector = load_scheme(name).weigh(rules(entropies), SchemeOptions())
    assert vector.scheme == name
    assert vector.rule_ids == tuple(f"rule-{k}" for k in range(len(entropies)))
    assert math.fsum(vector.weights) == pytest.approx(1.0, abs=1e-12)


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'softmax'.*encore, uniform"):
        load_scheme("softmax")


# --- encore ---------------------------------------------------------------------------------------


def test_two_rules_one_bit_apart() -> None:
    # H = 0 and 2 ln 3 at tau 2: masses 1 and exp(-ln 3) = 1/3, so weights 3/4 and 1/4.
    weights = entropy_weights(np.array([0.0, 2 * math.log(3)]), tau=2.0)
    assert weights == pytest.approx([0.75, 0.25], abs=1e-15)


@given(ENTROPIES, TAUS)
def test_lower_entropy_never_weighs_less(entropies: list[float], tau: float) -> None:
    order = np.argsort(entropies)
    weights = entropy_weights(np.array(entropies), tau=tau)[order]
    assert (np.diff(weights) <= 0).all()


@given(ENTROPIES, TAUS, st.randoms(use_true_random=False))
def test_permuting_rules_permutes_weights(
    entropies: list[float], tau: float, random: object
) -> None:
    order = np.random.default_rng(len(entropies)).permutation(len(entropies))
    entropy_R = np.array(entropies)
    expected = entropy_weights(entropy_R, tau=tau)[order]
    assert entropy_weights(entropy_R[order], tau=tau) == pytest.approx(expected, abs=1e-15)


@given(ENTROPIES)
def test_a_large_temperature_is_uniform(entropies: list[float]) -> None:
    weights = entropy_weights(np.array(entropies), tau=1e12)
    assert weights == pytest.approx(np.full(len(entropies), 1 / len(entropies)), abs=1e-10)


@pytest.mark.parametrize("tau", [1e-6, 1e-300, 5e-324])
def test_a_small_temperature_is_the_rule_of_lowest_entropy(tau: float) -> None:
    weights = entropy_weights(np.array([2.0, 0.5, 1.0, 0.5]), tau=tau)
    assert weights.tolist() == [0.0, 0.5, 0.0, 0.5]


def test_adding_the_same_entropy_to_all_changes_nothing() -> None:
    entropy_R = np.array([0.3, 1.1, 2.2])
    assert entropy_weights(entropy_R + 5) == pytest.approx(entropy_weights(entropy_R), abs=1e-15)


def test_the_parameters_are_recorded_with_the_log_base() -> None:
    vector = load_scheme("encore").weigh(rules([1.0, 2.0]), SchemeOptions(tau=0.5))
    assert vector.params == {"tau": 0.5, "log_base": "e"}


def test_a_rule_without_ratings_is_named() -> None:
    with pytest.raises(InputError, match="rule empty: none of its 7 ratings"):
        load_scheme("encore").weigh([*rules([1.0]), stats("empty", None)], SchemeOptions())


@pytest.mark.parametrize("tau", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_an_impossible_temperature_is_refused(tau: float) -> None:
    with pytest.raises(InputError, match="above 0"):
        SchemeOptions(tau=tau)


# --- weight vectors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ((0.5, 0.6), "sum is 1.1"),
        ((1.5, -0.5), r"expected a number in \[0, 1\]"),
        ((math.nan, 1.0), "nan"),
        ((1.0,), "1 weights for 2 rules"),
    ],
)
def test_a_vector_off_the_simplex_cannot_be_built(weights: tuple[float, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        WeightVector(scheme="x", rule_ids=("a", "b"), weights=weights)


def test_a_vector_needs_distinct_rules() -> None:
    with pytest.raises(ValueError, match="no rule"):
        WeightVector(scheme="x", rule_ids=(), weights=())
    with pytest.raises(ValueError, match="more than once"):
        WeightVector(scheme="x", rule_ids=("a", "a"), weights=(0.5, 0.5))
