"""Accuracy on pairs that a scheme did not learn from: five folds, every prompt whole in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from encore.analysis.statistics import Accuracy
from encore.data.pairs import read_pairs
from encore.data.study import Study
from encore.pair_ratings import PairRatings
from encore.weighting.composed import Outcome, complete_pairs, outcome_of
from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions, WeightingScheme

# Suffixes: P pairs, N pairs of a study, G groups of pairs.

NUM_FOLDS = 5
GroupedBy = Literal["prompt", "pair"]

_Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Folds:
    """A fold for each pair; pairs of one group are in one fold.

    Attributes:
        fold_P: From 0, shape [P].
        num_folds: `NUM_FOLDS`, or the number of groups where there are fewer.
        num_groups: Distinct prompts or pair ids.
        grouped_by: ``prompt`` where a study knows the prompts of all pairs, else ``pair``: then
            pairs of the same prompt may be in different folds.
    """

    fold_P: _Codes
    num_folds: int
    num_groups: int
    grouped_by: GroupedBy


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Accuracy of a scheme's weights on pairs that they were not learnt from.

    Attributes:
        outcome: Of all pairs, each under the weights learnt from the other folds.
        num_folds: As in `Folds`.
        num_groups: As in `Folds`.
        grouped_by: As in `Folds`.
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
        evidence: Its pairs are read.
        options: Of the scheme; the seed draws the folds.

    Returns:
        None where there are fewer than two groups of pairs to part.
    """
    pairs = complete_pairs(evidence.read_pairs())
    folds = make_folds(pairs, study=evidence.study, seed=options.seed)
    if folds is None:
        return None
    composed_P = np.empty(pairs.num_pairs)
    for fold in range(folds.num_folds):
        is_held_out_P = folds.fold_P == fold
        learnt = scheme.weigh(evidence.over(pairs.take(~is_held_out_P)), options)
        composed_P[is_held_out_P] = pairs.margin_PR[is_held_out_P] @ np.array(learnt.weights)
    return HeldOut(
        outcome=outcome_of(composed_P),
        num_folds=folds.num_folds,
        num_groups=folds.num_groups,
        grouped_by=folds.grouped_by,
    )


def make_folds(pairs: PairRatings, *, study: Study | None, seed: int) -> Folds | None:
    """Folds of pairs by lot, group by group; None where there are fewer than two groups.

    Args:
        pairs: Sorted, so that the same ratings give the same folds however they are stored.
        study: Knows prompts; None where there is none.
        seed: Of the lot.

    Raises:
        InputError: The study's pairs were changed since they were ingested.
    """
    prompt_P = _prompts(pairs, study) if study is not None else None
    if prompt_P is None:
        _, group_P = np.unique(pairs.pair_id_P.astype(str), return_inverse=True)
    else:
        group_P = _by_first_appearance(prompt_P)
    num_groups = int(group_P.max(initial=-1)) + 1
    if num_groups < 2:
        return None
    num_folds = min(NUM_FOLDS, num_groups)
    fold_G = np.random.default_rng(seed).permutation(num_groups) % num_folds
    return Folds(
        fold_P=fold_G[group_P],
        num_folds=num_folds,
        num_groups=num_groups,
        grouped_by="pair" if prompt_P is None else "prompt",
    )


def _prompts(pairs: PairRatings, study: Study) -> _Codes | None:
    """A number for the prompt of each pair, the same for equal ones; None if a pair has none."""
    known = read_pairs(study)
    keys_N = zip(known["source"].to_pylist(), known["pair_id"].to_pylist(), strict=True)
    prompt_of = dict(zip(keys_N, _prompt_codes(known["prompt"]), strict=True))
    keys_P = zip(pairs.source_P.tolist(), pairs.pair_id_P.tolist(), strict=True)
    found = [prompt_of.get(key, -1) for key in keys_P]
    return None if -1 in found else np.array(found, dtype=np.int64)


def _prompt_codes(prompts: pa.ChunkedArray) -> list[int]:
    """A number for each prompt of a column, the same for prompts of the same roles and texts."""
    texts = pa.chunked_array([_texts(chunk) for chunk in prompts.chunks], type=pa.large_string())
    codes: list[int] = texts.combine_chunks().dictionary_encode().indices.to_pylist()
    return codes


def _texts(prompts: pa.ListArray) -> pa.Array:
    """One text for each prompt: roles and texts joined by separator characters.

    Should a text hold one of them, two prompts may at worst count as the same.
    """
    wide = pa.large_string()
    role, content = (prompts.values.field(name).cast(wide) for name in ("role", "content"))
    line = pc.binary_join_element_wise(role, content, pa.scalar("\x1f", wide))
    lines = pa.ListArray.from_arrays(prompts.offsets, line)
    return pc.binary_join(lines, pa.scalar("\x1e", wide))


def _by_first_appearance(code_P: _Codes) -> _Codes:
    """The same numbers, counted anew from 0 in the order in which they appear."""
    _, first_G, group_P = np.unique(code_P, return_index=True, return_inverse=True)
    rank_G = np.empty_like(first_G)
    rank_G[np.argsort(first_G)] = np.arange(len(first_G))
    return np.asarray(rank_G[group_P], dtype=np.int64)
