"""What the heads are to learn: the ratings of a study's own pairs, missing ones left missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError
from encore.warehouse import PairRatings, open_ratings
from encore.weighting.opening import open_evidence

# Suffixes: P pairs, R rules.

#: A pair's place: its source, its id.
PairKey = tuple[str, str]

_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Targets:
    """The ratings of some pairs; NaN where one is missing.

    Attributes:
        rule_ids: The R rules, in the order of the heads.
        chosen_PR: Ratings of the preferred responses, shape [P, R].
        rejected_PR: Ratings of the other responses, shape [P, R].
        num_unknown: Rated pairs that are none of these.
    """

    rule_ids: tuple[str, ...]
    chosen_PR: _Floats
    rejected_PR: _Floats
    num_unknown: int

    @property
    def is_rated_P(self) -> NDArray[np.bool_]:
        """Which pairs have at least one rating, shape [P]."""
        is_there_PR = ~np.isnan(self.chosen_PR) | ~np.isnan(self.rejected_PR)
        return np.asarray(is_there_PR.any(axis=1))

    def take(self, row_N: NDArray[np.int64] | NDArray[np.bool_]) -> Targets:
        """Some pairs, by index or mask."""
        return Targets(
            rule_ids=self.rule_ids,
            chosen_PR=self.chosen_PR[row_N],
            rejected_PR=self.rejected_PR[row_N],
            num_unknown=self.num_unknown,
        )


def read_targets(
    ratings: str | Path | Any,
    *,
    keys: Sequence[PairKey],
    run: str | None = None,
    judge: str | None = None,
) -> Targets:
    """The ratings of some pairs, in the order of ``keys``.

    Args:
        ratings: A study, a run's folder, Parquet files or a table, as for `encore.analyze`.
        keys: Source and pair id of the P pairs.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.

    Raises:
        InputError: No ratings; ratings of other pairs only; a rule without a single rating of
            these pairs; a rating that is there more than once.
    """
    label = str(ratings) if isinstance(ratings, str | Path) else "table"
    with open_evidence(open_ratings(ratings, run=run, judge=judge)) as evidence:
        rated = evidence.read_pairs()
    targets = _of_pairs(rated, keys)
    if targets.num_unknown == rated.num_pairs:
        raise InputError(_why_none_match(label, rated, keys))
    refuse_unrated(targets, label=label)
    return targets


def refuse_unrated(targets: Targets, *, label: str) -> None:
    """Refuse a rule that rated none of the pairs.

    Raises:
        InputError: There is one: its id.
    """
    num_ratings_R = _num_ratings(targets.chosen_PR) + _num_ratings(targets.rejected_PR)
    for rule_id, num_ratings in zip(targets.rule_ids, num_ratings_R, strict=True):
        if num_ratings == 0:
            raise InputError(
                f"ratings {label}: rule {rule_id} has no rating of any of the "
                f"{len(targets.chosen_PR)} pairs to learn from, so its head has nothing to learn; "
                "leave the rule out of the ratings or rate it again"
            )


def mean_ratings(chosen_PR: _Floats, rejected_PR: _Floats) -> NDArray[np.float64]:
    """The mean of each rule's ratings, chosen and rejected pooled, shape [R]; NaN without any."""
    num_R = _num_ratings(chosen_PR) + _num_ratings(rejected_PR)
    sum_R = _sums(chosen_PR) + _sums(rejected_PR)
    mean_R = np.full(len(num_R), np.nan)
    np.divide(sum_R, num_R, out=mean_R, where=num_R > 0)
    return mean_R


def _num_ratings(rating_PR: _Floats) -> NDArray[np.int64]:
    return np.asarray((~np.isnan(rating_PR)).sum(axis=0), dtype=np.int64)


def _sums(rating_PR: _Floats) -> NDArray[np.float64]:
    return np.asarray(np.nansum(rating_PR, axis=0, dtype=np.float64), dtype=np.float64)


def _of_pairs(rated: PairRatings, keys: Sequence[PairKey]) -> Targets:
    row_of = {key: row for row, key in enumerate(keys)}
    rated_keys = zip(rated.source_P.tolist(), rated.pair_id_P.tolist(), strict=True)
    row_N = np.array([row_of.get(key, -1) for key in rated_keys], dtype=np.int64)
    is_known_N = row_N >= 0
    sides = {}
    for name, rating_NR in (("chosen", rated.chosen_PR), ("rejected", rated.rejected_PR)):
        side_PR = np.full((len(keys), len(rated.rule_ids)), np.nan, dtype=np.float32)
        side_PR[row_N[is_known_N]] = rating_NR[is_known_N]
        sides[name] = side_PR
    return Targets(
        rule_ids=rated.rule_ids,
        chosen_PR=sides["chosen"],
        rejected_PR=sides["rejected"],
        num_unknown=int((~is_known_N).sum()),
    )


def _why_none_match(label: str, rated: PairRatings, keys: Sequence[PairKey]) -> str:
    message = (
        f"ratings {label}: none of its {rated.num_pairs} rated pairs is among the "
        f"{len(keys)} pairs of the study"
    )
    ids = {pair_id for _, pair_id in keys}
    if ids.intersection(rated.pair_id_P.tolist()):
        found = ", ".join(sorted(set(rated.source_P.tolist())))
        expected = ", ".join(sorted({source for source, _ in keys}))
        return (
            f"{message}: the ids are the same, the sources are not (ratings: {found}; study: "
            f"{expected}); ingest the data under the label that the ratings name as source"
        )
    example, own = rated.pair_id_P[0], keys[0][1]
    return (
        f"{message} (for example pair {example!r}; the study has {own!r}); give the ratings of "
        "this study's pairs, or ingest the data that was rated"
    )
