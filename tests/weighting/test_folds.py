"""Held-out accuracy: no pair, and no prompt, is tested by weights that were learnt from it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np
import pytest

from encore.data.pairs import read_pairs
from encore.data.study import Study
from encore.pair_ratings import PairRatings
from encore.weighting import load_scheme
from encore.weighting.comparison import fold_notes
from encore.weighting.evidence import Evidence
from encore.weighting.folds import NUM_FOLDS, held_out, make_folds
from encore.weighting.opening import open_evidence
from encore.weighting.scheme import SchemeOptions, WeightingScheme
from encore.weighting.vector import WeightVector
from tests.weighting.conftest import NUM_PAIRS, NUM_PROMPTS
from tests.weighting.evidence_for_tests import evidence_of_margins, pairs_of_margins

BRADLEY_TERRY = load_scheme("bradley-terry")


def pairs_of(study: Study) -> PairRatings:
    with open_evidence(study.path) as evidence:
        return evidence.read_pairs()


def random_margins(num_pairs: int, num_rules: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-10, 11, size=(num_pairs, num_rules)) / 10


def spy(seen: list[set[str]]) -> WeightingScheme:
    """Bradley–Terry that notes the pairs of every call."""

    def weigh(evidence: Evidence, options: SchemeOptions) -> WeightVector:
        seen.append(set(evidence.read_pairs().pair_id_P.tolist()))
        return BRADLEY_TERRY.weigh(evidence, options)

    return dataclasses.replace(BRADLEY_TERRY, weigh=weigh)


# --- folds ----------------------------------------------------------------------------------------


def test_pairs_of_one_prompt_are_in_one_fold(study: Study) -> None:
    pairs = pairs_of(study)
    folds = make_folds(pairs, study=study, seed=0)
    assert (folds.grouped_by, folds.num_groups) == ("prompt", NUM_PROMPTS)
    prompt_of = {row["pair_id"]: str(row["prompt"]) for row in read_pairs(study).to_pylist()}
    found = defaultdict(list)
    for pair_id, fold in zip(pairs.pair_id_P, folds.fold_P, strict=True):
        found[prompt_of[pair_id]].append(int(fold))
    assert [len(folds_of_prompt) for folds_of_prompt in found.values()] == [3] * NUM_PROMPTS
    assert all(len(set(folds_of_prompt)) == 1 for folds_of_prompt in found.values())


def test_every_fold_has_its_share_of_groups() -> None:
    folds = make_folds(pairs_of_margins(random_margins(103, 1)), study=None, seed=0)
    assert sorted(np.bincount(folds.fold_P).tolist()) == [20, 20, 21, 21, 21]


def test_without_a_study_pairs_of_one_id_are_in_one_fold() -> None:
    pairs = pairs_of_margins(random_margins(40, 1))
    twice = dataclasses.replace(
        pairs,
        source_P=np.array(["a", "b"] * 20, dtype=object),
        pair_id_P=np.repeat(pairs.pair_id_P[:20], 2),
    )
    folds = make_folds(twice, study=None, seed=0)
    assert (folds.grouped_by, folds.num_groups) == ("pair", 20)
    assert (folds.fold_P[::2] == folds.fold_P[1::2]).all()


def test_pairs_that_the_study_does_not_know_are_grouped_by_pair(study: Study) -> None:
    folds = make_folds(pairs_of_margins(random_margins(10, 1)), study=study, seed=0)
    assert folds.grouped_by == "pair"


def test_a_seed_draws_the_folds() -> None:
    pairs = pairs_of_margins(random_margins(50, 1))
    one, same, other = (make_folds(pairs, study=None, seed=seed).fold_P for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize(("num_pairs", "num_folds"), [(2, 2), (4, 4), (9, NUM_FOLDS)])
def test_there_are_never_more_folds_than_groups(num_pairs: int, num_folds: int) -> None:
    folds = make_folds(pairs_of_margins(random_margins(num_pairs, 1)), study=None, seed=0)
    assert folds.num_folds == num_folds
    assert len(np.unique(folds.fold_P)) == num_folds


# --- held out -------------------------------------------------------------------------------------


def test_weights_are_never_tested_on_pairs_that_they_learnt_from() -> None:
    seen: list[set[str]] = []
    evidence = evidence_of_margins(random_margins(50, 3))
    held_out(spy(seen), evidence, SchemeOptions())
    everything = set(evidence.read_pairs().pair_id_P.tolist())
    tested = [everything - learnt for learnt in seen]
    assert len(seen) == NUM_FOLDS
    assert set.union(*tested) == everything
    assert sum(map(len, tested)) == 50


def test_held_out_accuracy_counts_every_complete_pair_once() -> None:
    margin_PR = random_margins(60, 3)
    margin_PR[:10, 1] = np.nan
    found = held_out(BRADLEY_TERRY, evidence_of_margins(margin_PR), SchemeOptions())
    assert found.outcome.num_pairs == 50
    assert (found.num_folds, found.grouped_by) == (NUM_FOLDS, "pair")


def test_a_study_s_held_out_accuracy_is_grouped_by_prompt(study: Study) -> None:
    with open_evidence(study.path) as evidence:
        found = held_out(BRADLEY_TERRY, evidence, SchemeOptions())
    assert (found.grouped_by, found.num_groups) == ("prompt", NUM_PROMPTS)
    assert found.outcome.num_pairs == NUM_PAIRS
    assert list(fold_notes("bradley-terry", found)) == []


def test_on_noise_only_the_accuracy_in_sample_is_flattered() -> None:
    # Labels are a coin toss: nothing can be right more than half of the time. 20 studies of 150
    # pairs and 12 rules; a mean of 3,000 coin tosses is within 0.5 ± 0.037 (four standard errors).
    inside, outside = [], []
    for seed in range(20):
        evidence = evidence_of_margins(random_margins(150, 12, seed=seed))
        found = held_out(BRADLEY_TERRY, evidence, SchemeOptions())
        outside.append(found.accuracy.half)
        vector = BRADLEY_TERRY.weigh(evidence, SchemeOptions())
        composed_P = evidence.read_pairs().margin_PR @ np.array(vector.weights)
        inside.append((np.sign(composed_P).mean() + 1) / 2)
    assert np.mean(inside) > 0.54
    assert np.mean(outside) == pytest.approx(0.5, abs=0.037)


def test_a_single_pair_cannot_be_held_out() -> None:
    found = held_out(BRADLEY_TERRY, evidence_of_margins([[0.5, 0.1]]), SchemeOptions())
    assert found is None
    [note] = fold_notes("bradley-terry", found)
    assert "too few pairs" in note


def test_few_groups_and_unknown_prompts_are_said() -> None:
    evidence = evidence_of_margins(random_margins(3, 1))
    notes = list(fold_notes("x", held_out(BRADLEY_TERRY, evidence, SchemeOptions())))
    assert notes[0] == "x: 3 folds, as there are no more groups of pairs"
    assert "grouped by pair_id" in notes[1]
