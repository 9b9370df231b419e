"""Is the judge itself stable? Ratings against a repeated rating of some of the same responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError
from encore.evidence.agreement import agreement
from encore.evidence.overlap import Overlap, find_overlap
from encore.evidence.paired_input import read_paired
from encore.evidence.weight_shift import WeightShift, weight_shifts
from encore.pair_ratings import PairRatings
from encore.weighting.scheme import SchemeOptions

# Suffixes: N responses (chosen ones of all pairs, then rejected ones), R rules.

NUM_DRAWS = 1000
_MIN_DRAWS = 100
#: Ratings that all draws together may go through: seconds, tens at the worst.
_WORK = 2_000_000_000
#: Resampling fewer pairs than these gives intervals that are too narrow.
_FEW_PAIRS = 30
#: Two ratings that differ by less are one rating in two precisions.
_PRECISION = 1e-6

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetestRow:
    """One rule, on the responses that are rated in both inputs.

    A rating is missing if it is null or its row is not there. Everything from ``agreement`` on
    looks at the responses that the rule rated both times, and is None without any.

    Attributes:
        rule_id: The rule.
        num_ratings: Responses rated both times.
        num_missing_first: Rated in the repetition only.
        num_missing_repeated: Rated the first time only.
        num_missing_both: Not rated by this rule in either.
        agreement: Share of equal ratings.
        mean_absolute_difference: In units of rating.
        mean_difference: Repeated minus first.
        kappa: Cohen's kappa of equal ratings: 1 is perfect, 0 what chance gives. None, as the
            next, where both are always the same level.
        weighted_kappa: Kappa with squared differences, for ordered levels (Lin's concordance).
        entropy_first: Entropy of the first ratings, in nats.
        entropy_repeated: Of the repeated ones.
        entropy_difference: Repeated minus first.
        entropy_difference_low: Lower end of the 95 % interval over resampled pairs.
        entropy_difference_high: Upper end.
        weight_first: ENCORE's weight by the first ratings.
        weight_repeated: By the repeated ones.
        weight_change: weight_repeated / weight_first - 1.
        weight_change_low: Lower end of the 95 % interval over resampled pairs.
        weight_change_high: Upper end.
    """

    rule_id: str
    num_ratings: int
    num_missing_first: int
    num_missing_repeated: int
    num_missing_both: int
    agreement: float | None = None
    mean_absolute_difference: float | None = None
    mean_difference: float | None = None
    kappa: float | None = None
    weighted_kappa: float | None = None
    entropy_first: float | None = None
    entropy_repeated: float | None = None
    entropy_difference: float | None = None
    entropy_difference_low: float | None = None
    entropy_difference_high: float | None = None
    weight_first: float | None = None
    weight_repeated: float | None = None
    weight_change: float | None = None
    weight_change_low: float | None = None
    weight_change_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retest:
    """What a repeated rating says about the judge.

    A response is rated in an input if at least one rule has a number for it there.

    Attributes:
        num_responses: Rated in both inputs.
        num_first_only: Rated in the first input only; not looked at.
        num_repeated_only: Rated in the repetition only; not looked at.
        num_pairs: Pairs that the responses belong to: what the intervals resample.
        tau: Temperature of the weights.
        seed: Of the resampling.
        num_draws: How many resamples.
        agreement: Share of equal ratings over all rules; None if no rule rated a response twice.
        largest_weight_change: Largest |weight_change| of a rule; None without weights.
        rows: One per rule.
        sentence: The result in words.
        notes: Plain sentences on what limits these figures.
        num_missing_shards: Shards of either run's plan that are not in it.
    """

    num_responses: int
    num_first_only: int
    num_repeated_only: int
    num_pairs: int
    tau: float
    seed: int
    num_draws: int
    agreement: float | None
    largest_weight_change: float | None
    rows: tuple[RetestRow, ...]
    sentence: str
    notes: tuple[str, ...] = ()
    num_missing_shards: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return dataclasses.asdict(self)


def retest(
    ratings: str | Path | Any,
    repeated: str | Path | Any,
    *,
    tau: float = 2.0,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
    run: str | None = None,
    judge: str | None = None,
    repeated_run: str | None = None,
    repeated_judge: str | None = None,
) -> Retest:
    """Compare ratings with a repeated rating (another seed, another order) of some responses.

    Responses are matched by source, pair_id and response. About 500 of them show whether the
    judge's own noise moves the weights.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        repeated: The repetition, likewise; it may hold fewer responses, or others besides.
        tau: Temperature of the weights (the paper's default).
        seed: Of the resampling.
        num_draws: Resamples; fewer, and said, where the two inputs share millions of ratings.
        run: Which run of ``ratings``, where there are several: a unique prefix of its key.
        judge: Which judge of ``ratings``, where there are several.
        repeated_run: Which run of ``repeated``.
        repeated_judge: Which judge of ``repeated``.

    Raises:
        InputError: No ratings table, different rules, or no response that is rated in both.
    """
    tau = SchemeOptions(tau=tau).tau
    if num_draws < _MIN_DRAWS:
        raise InputError(f"number of draws {num_draws}: expected at least {_MIN_DRAWS}")
    first = read_paired(ratings, run=run, judge=judge)
    second = read_paired(repeated, run=repeated_run, judge=repeated_judge)
    overlap = find_overlap(first, second)
    work = 4 * overlap.first.num_pairs * len(overlap.first.rule_ids)
    affordable = min(num_draws, max(_MIN_DRAWS, _WORK // work))
    shifts = weight_shifts(*overlap.common(), tau=tau, seed=seed, num_draws=affordable)
    rows = tuple(_row(overlap, place, shift) for place, shift in enumerate(shifts))
    changes = [abs(row.weight_change) for row in rows if row.weight_change is not None]
    return Retest(
        num_responses=overlap.num_responses,
        num_first_only=overlap.num_first_only,
        num_repeated_only=overlap.num_repeated_only,
        num_pairs=overlap.first.num_pairs,
        tau=tau,
        seed=seed,
        num_draws=affordable,
        agreement=_share_equal(rows),
        largest_weight_change=max(changes, default=None),
        rows=rows,
        sentence=_sentence(overlap.num_responses, rows),
        notes=tuple(_notes(overlap, rows, affordable, num_draws=num_draws)),
        num_missing_shards=first.num_missing_shards + second.num_missing_shards,
    )


def _row(overlap: Overlap, place: int, shift: WeightShift | None) -> RetestRow:
    first_N = _responses(overlap.first)[:, place]
    repeated_N = _responses(overlap.repeated)[:, place]
    is_first_N, is_repeated_N = ~np.isnan(first_N), ~np.isnan(repeated_N)
    is_both_N = is_first_N & is_repeated_N
    found = agreement(first_N[is_both_N], repeated_N[is_both_N])
    measured: dict[str, Any] = {}
    if found is not None:
        measured |= dataclasses.asdict(found)
    if shift is not None:
        measured |= dataclasses.asdict(shift)
    return RetestRow(
        rule_id=overlap.first.rule_ids[place],
        num_ratings=int(is_both_N.sum()),
        num_missing_first=int((is_repeated_N & ~is_first_N).sum()),
        num_missing_repeated=int((is_first_N & ~is_repeated_N).sum()),
        num_missing_both=overlap.num_responses - int((is_first_N | is_repeated_N).sum()),
        **measured,
    )


def _responses(pairs: PairRatings) -> _Floats:
    """Chosen and then rejected responses, shape [N, R]."""
    return np.concatenate([pairs.chosen_PR, pairs.rejected_PR])


def _share_equal(rows: Sequence[RetestRow]) -> float | None:
    total = sum(row.num_ratings for row in rows)
    equal = sum(row.num_ratings * row.agreement for row in rows if row.agreement is not None)
    return equal / total if total else None


# --- words ----------------------------------------------------------------------------------------


def _sentence(num_responses: int, rows: Sequence[RetestRow]) -> str:
    equal = _share_equal(rows)
    changed = [row for row in rows if row.weight_change is not None]
    if equal is None or not changed:
        return (
            f"{num_responses:,} responses are rated in both, but by no rule twice: there is "
            "nothing to compare"
        )
    most = max(changed, key=lambda row: abs(row.weight_change or 0.0))
    total = sum(row.num_ratings for row in rows)
    return (
        f"{num_responses:,} responses rated twice: {equal:.1%} of {total:,} ratings are equal; "
        "rated again, ENCORE's weights "
        f"change by at most {abs(most.weight_change or 0.0):.1%} (rule {most.rule_id})"
    )


def _notes(
    overlap: Overlap, rows: Sequence[RetestRow], affordable: int, *, num_draws: int
) -> list[str]:
    notes = []
    if overlap.first.num_pairs < _FEW_PAIRS:
        notes.append(
            f"intervals from {overlap.first.num_pairs} resampled pairs are too narrow to trust; "
            "rate about 250 pairs again"
        )
    if affordable < num_draws:
        notes.append(f"{affordable} resamples instead of {num_draws}: the two share many ratings")
    notes.extend(
        f"rule {row.rule_id} rated no response both times: it has no figures and no weight here"
        for row in rows
        if row.num_ratings == 0
    )
    one_sided = sum(row.num_missing_first + row.num_missing_repeated for row in rows)
    if one_sided:
        notes.append(
            f"{one_sided:,} ratings are missing in one of the two only and not compared; a null "
            "that comes and goes is instability too"
        )
    gap_NR = np.abs(_responses(overlap.repeated) - _responses(overlap.first))
    if ((gap_NR > 0) & (gap_NR < _PRECISION)).any():
        notes.append(
            "some ratings differ by less than a millionth: the two inputs hold them in different "
            "precision (float and double), and they do not count as equal"
        )
    return notes
