"""Accuracy on pairs that a scheme did not learn from: five folds, every prompt whole in one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import Accuracy
from encore.data.pairs import read_pairs
from encore.data.study import Study
from encore.warehouse import PairRatings
from encore.weighting.composed import Outcome, outcome_of
from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions, WeightingScheme

# Suffixes: P pairs, G groups of pairs.

NUM_FOLDS = 5
GroupedBy = Literal["prompt", "pair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Accuracy of a scheme's weights on pairs that they were not learnt from.

    Attributes:
        outcome: Of all pairs, each under the weights learnt from the other folds.
        num_folds: `NUM_FOLDS`, or the number of groups where there are fewer.
        num_groups: Distinct prompts or pair ids; each is whole in one fold.
        grouped_by: ``prompt`` where a study knows the prompts of all pairs, else ``pair``: then
            pairs of the same prompt may be in different folds.
    """

    outcome: Outcome
    num_folds: int
    num_groups: int
    grouped_by: GroupedBy

    @property
    def accuracy(self) -> Accuracy:
        """Under each tie policy."""
        return self.outcome.accuracy


def held_out(scheme: WeightingScheme, evidence: Evidence, options: SchemeOptions) -> HeldOut | None:
    """Accuracy of a scheme by cross-validation over the pairs that every rule rated fully.

    Args:
        scheme: The scheme; weighs once for each fold.
        evidence: Its pairs are read; they are sorted, so that the same ratings give the same folds
            however they are stored.
        options: Of the scheme; the seed draws the folds.

    Returns:
        None where there are fewer than two groups of pairs to part.

    Raises:
        InputError: The study's pairs were changed since they were ingested.
    """
    pairs = evidence.read_pairs().complete()
    group_P, grouped_by = _groups(pairs, evidence.study)
    num_groups = int(group_P.max(initial=-1)) + 1
    if num_groups < 2:
        return None
    num_folds = min(NUM_FOLDS, num_groups)
    fold_G = np.random.default_rng(options.seed).permutation(num_groups) % num_folds
    fold_P = fold_G[group_P]
    composed_P = np.empty(pairs.num_pairs)
    for fold in range(num_folds):
        is_held_out_P = fold_P == fold
        learnt = scheme.weigh(evidence.over(pairs.take(~is_held_out_P)), options)
        composed_P[is_held_out_P] = pairs.margin_PR[is_held_out_P] @ np.array(learnt.weights)
    return HeldOut(
        outcome=outcome_of(composed_P),
        num_folds=num_folds,
        num_groups=num_groups,
        grouped_by=grouped_by,
    )


def _groups(pairs: PairRatings, study: Study | None) -> tuple[NDArray[np.int64], GroupedBy]:
    """The group of each pair, counted from 0, shape [P]: its prompt where a study knows all."""
    prompt_of = _prompt_hashes(study) if study is not None else {}
    keys = zip(pairs.source_P.tolist(), pairs.pair_id_P.tolist(), strict=True)
    prompts = [prompt_of.get(key) for key in keys]
    if None in prompts:
        return _numbered(sorted(pairs.pair_id_P.tolist()), of=pairs.pair_id_P.tolist()), "pair"
    return _numbered(prompts, of=prompts), "prompt"


def _prompt_hashes(study: Study) -> dict[tuple[str, str], int]:
    """Of each pair of a study a hash of its prompt's roles and texts."""
    columns = read_pairs(study).select(["source", "pair_id", "prompt"])
    return {
        (row["source"], row["pair_id"]): hash(repr(row["prompt"]))
        for batch in columns.to_batches()
        for row in batch.to_pylist()
    }


def _numbered(values: Iterable[Any], *, of: Iterable[Any]) -> NDArray[np.int64]:
    """For each of some values its number, in the order of their first appearance."""
    number_of = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([number_of[value] for value in of], dtype=np.int64)
