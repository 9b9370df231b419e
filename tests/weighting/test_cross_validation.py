"""Held-out accuracy: no pair, and no prompt, is tested by weights that were learnt from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from encore.data.pairs import read_pairs
from encore.data.study import Study, open_study
from encore.weighting.cross_validation import HeldOut, fold_notes, held_out
from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import load_scheme
from encore.weighting.weigh import open_evidence
from tests.worlds.ratings import evidence_of_margins
from tests.worlds.studies import rate_study, study_of

BRADLEY_TERRY = load_scheme("bradley-terry")
NUM_PROMPTS = 8
NUM_PAIRS = 3 * NUM_PROMPTS


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Return a study of eight prompts with three pairs each, rated under ten rules."""
    records = [
        {"prompt": f"Question {n // 3}?", "chosen": f"Answer {n}.", "rejected": f"No {n}."}
        for n in range(NUM_PAIRS)
    ]
    path = study_of(records, tmp_path / "study")
    rate_study(path)
    return open_study(path)


def random_margins(num_pairs: int, num_rules: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-10, 11, size=(num_pairs, num_rules)) / 10


def held_out_by_fold(evidence: Evidence, *, seed: int = 0) -> list[set[str]]:
    """Return the ids of the pairs that each fold holds out, seen from the scheme."""
    learnt_by_fold: list[set[str]] = []

    def compute(training_evidence: Evidence, options: SchemeOptions) -> SchemeResult:
        learnt_by_fold.append(set(training_evidence.read_pairs().pair_id_P.tolist()))
        return BRADLEY_TERRY.compute(training_evidence, options)

    spy: WeightingScheme = dataclasses.replace(BRADLEY_TERRY, compute=compute)
    assert isinstance(held_out(spy, evidence, SchemeOptions(seed=seed)), HeldOut)
    pair_ids = set(evidence.read_pairs().complete().pair_id_P.tolist())
    return [pair_ids - learnt for learnt in learnt_by_fold]


def test_every_complete_pair_is_held_out_once_and_folds_are_of_one_size():
    margin_PR = random_margins(113, 3)
    margin_PR[:10, 1] = np.nan
    evidence = evidence_of_margins(margin_PR)
    tested = held_out_by_fold(evidence)
    assert sorted(map(len, tested)) == [20, 20, 21, 21, 21]
    assert len(set.union(*tested)) == 103
    accuracy = held_out(BRADLEY_TERRY, evidence, SchemeOptions())
    assert (accuracy.num_pairs, accuracy.num_groups, accuracy.grouped_by) == (103, 103, "pair")


def test_the_seed_draws_the_folds():
    # 40 pairs fall into five folds of eight. Of 40! / (8!^5 · 5!) = 6e23 divisions two seeds draw
    # the same one by chance never.
    evidence = evidence_of_margins(random_margins(40, 1))
    folds_by_seed = [
        {frozenset(fold) for fold in held_out_by_fold(evidence, seed=seed)} for seed in (0, 0, 1)
    ]
    assert folds_by_seed[0] == folds_by_seed[1] != folds_by_seed[2]


def test_pairs_of_one_prompt_are_in_one_fold(study):
    with open_evidence(study.path) as evidence:
        accuracy = held_out(BRADLEY_TERRY, evidence, SchemeOptions())
        tested = held_out_by_fold(evidence)
    assert (accuracy.grouped_by, accuracy.num_groups) == ("prompt", NUM_PROMPTS)
    assert accuracy.num_pairs == NUM_PAIRS
    assert list(fold_notes("bradley-terry", accuracy)) == []
    prompts_by_pair = {row["pair_id"]: str(row["prompt"]) for row in read_pairs(study).to_pylist()}
    prompts = [{prompts_by_pair[pair_id] for pair_id in fold} for fold in tested]
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == NUM_PROMPTS


def test_without_a_study_pairs_of_one_id_are_in_one_fold():
    pairs = evidence_of_margins(random_margins(40, 1)).read_pairs()
    twice = dataclasses.replace(
        pairs,
        source_P=np.array(["a", "b"] * 20, dtype=object),
        pair_id_P=np.repeat(pairs.pair_id_P[:20], 2),
    )
    evidence = evidence_of_margins(random_margins(40, 1)).with_pairs(twice)
    assert held_out(BRADLEY_TERRY, evidence, SchemeOptions()).num_groups == 20
    assert sum(map(len, held_out_by_fold(evidence))) == 20


def test_notes_state_too_few_pairs_and_unknown_prompts():
    of_one_pair = held_out(BRADLEY_TERRY, evidence_of_margins([[0.5, 0.1]]), SchemeOptions())
    assert of_one_pair is None
    assert "too few pairs" in next(fold_notes("x", of_one_pair))
    margin_PR = random_margins(3, 1)
    of_three_pairs = held_out(BRADLEY_TERRY, evidence_of_margins(margin_PR), SchemeOptions())
    assert of_three_pairs.num_folds == 3
    assert "grouped by pair_id" in next(fold_notes("x", of_three_pairs))
