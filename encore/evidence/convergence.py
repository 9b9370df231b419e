"""How many ratings are enough? Weight error against sample size, by drawing samples of pairs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError
from encore.evidence.error_curve import ErrorCurve, fit_error_curve
from encore.evidence.level_codes import LevelCodes, level_codes
from encore.evidence.paired_input import read_paired
from encore.evidence.recommendation import (
    MIN_PAIRS,
    Recommendation,
    misfitting_curve,
    recommend,
    too_few_pairs,
    unknown_levels,
)
from encore.pair_ratings import PairRatings
from encore.weighting.encore import entropy_weights
from encore.weighting.scheme import SchemeOptions

__all__ = [
    "ConvergenceCurve",
    "ConvergencePoint",
    "Recommendation",
    "convergence",
    "convergence_of_pairs",
]

# Suffixes: D draws, S sample sizes, R rules, L cells of a histogram.

NUM_DRAWS = 400
TARGETS = (0.05, 0.02, 0.01)
_CONFIDENCE = 0.95
_MIN_DRAWS = 40
#: The smallest sample.
_MIN_SIZE = 25
#: The largest sample holds at most so many ratings: 50,000 pairs under 10 rules.
_MAX_RATINGS = 1_000_000
#: Ratings and histogram cells that all draws together may go through: seconds, tens at the worst.
_WORK = 1_000_000_000

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergencePoint:
    """Samples of one size, drawn from the data at hand; errors are shares: 0.01 is 1 %.

    An error is the largest over rules of |weight / weight from all data - 1|. None where a sample
    missed every rating of a rule, so that it had no weights.

    Attributes:
        num_pairs: Pairs in the sample.
        num_ratings_per_rule: Ratings of an average rule in so many pairs.
        error_median: Median over draws.
        error_95: 95 % of draws have at most this error.
        error_95_population: The same against the true weights, those of all pairs of this kind,
            rated or not: ``error_95`` divided by sqrt(1 - n/N). A sample is part of the data that
            it is compared with, and is therefore closer to them than to the truth.
    """

    num_pairs: int
    num_ratings_per_rule: int
    error_median: float | None
    error_95: float | None
    error_95_population: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceCurve:
    """Error of ENCORE's weights against sample size.

    Attributes:
        rule_ids: The rules.
        num_pairs: All pairs, N.
        num_ratings_per_rule: Ratings of an average rule in all of them.
        tau: Temperature of the weights.
        seed: Of the draws.
        num_draws: How many samples of each size.
        points: One per size, ascending; none for fewer than `MIN_PAIRS` pairs.
        fit: The curve through the 95 % errors, as errors against the truth; None without points.
        error_95_now: What the curve says of the weights from all N pairs; None if it promises
            nothing.
        recommendations: One per target.
        notes: Plain sentences on what limits these figures.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are not in it.
    """

    rule_ids: tuple[str, ...]
    num_pairs: int
    num_ratings_per_rule: int
    tau: float
    seed: int
    num_draws: int
    points: tuple[ConvergencePoint, ...]
    fit: ErrorCurve | None
    error_95_now: float | None
    recommendations: tuple[Recommendation, ...]
    notes: tuple[str, ...] = ()
    num_shards: int = 0
    num_missing_shards: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return dataclasses.asdict(self)


def convergence(
    ratings: str | Path | Any,
    *,
    tau: float = 2.0,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
    targets: Sequence[float] = TARGETS,
    run: str | None = None,
    judge: str | None = None,
) -> ConvergenceCurve:
    """How close ENCORE's weights from fewer pairs come to the true ones, and how many are enough.

    All sources are pooled. See `convergence_of_pairs` for what is drawn.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        tau: Temperature of the weights (the paper's default).
        seed: Of the draws.
        num_draws: Samples of each size; fewer are drawn, and said, where they would take minutes.
        targets: Errors, as shares, to recommend a number of ratings for.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.

    Raises:
        InputError: No ratings table, a rule without ratings, an impossible parameter.
    """
    source = read_paired(ratings, run=run, judge=judge)
    curve = convergence_of_pairs(
        source.pairs, tau=tau, seed=seed, num_draws=num_draws, targets=targets
    )
    return dataclasses.replace(
        curve, num_shards=source.num_shards, num_missing_shards=source.num_missing_shards
    )


def convergence_of_pairs(
    pairs: PairRatings,
    *,
    tau: float = 2.0,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
    targets: Sequence[float] = TARGETS,
) -> ConvergenceCurve:
    """The curve of pairs in memory; parameters and errors as for `convergence`.

    Every draw takes whole pairs without replacement, in random order; its first n pairs are the
    sample of size n. So samples of one size are independent draws, and those of one draw nested.
    """
    _check(num_draws=num_draws, targets=targets)
    tau = SchemeOptions(tau=tau).tau
    codes = level_codes(pairs, with_replacement=False)
    count_L = codes.count_all()
    weight_R = _weights(codes.entropies(count_L), pairs.rule_ids, tau=tau)
    per_pair = float(codes.num_ratings(count_L).mean()) / pairs.num_pairs
    sizes = _sample_sizes(pairs.num_pairs, num_rules=len(pairs.rule_ids))
    affordable = _affordable_draws(codes, sizes, num_draws=num_draws)
    error_DS = _errors(codes, weight_R, sizes, num_draws=affordable, tau=tau, seed=seed)
    points = tuple(
        _point(np.sort(error_DS[:, place]), size, pairs.num_pairs, per_pair)
        for place, size in enumerate(sizes)
    )
    known = [(point.num_pairs, point.error_95) for point in points if point.error_95 is not None]
    fit = fit_error_curve(
        [size for size, _ in known], [error for _, error in known], num_pairs=pairs.num_pairs
    )
    problem = _problem(codes, count_L, fit, pairs) if points else too_few_pairs(pairs.num_pairs)
    return ConvergenceCurve(
        rule_ids=pairs.rule_ids,
        num_pairs=pairs.num_pairs,
        num_ratings_per_rule=round(pairs.num_pairs * per_pair),
        tau=tau,
        seed=seed,
        num_draws=affordable,
        points=points,
        fit=fit,
        error_95_now=fit.error(pairs.num_pairs) if fit and not problem else None,
        recommendations=tuple(
            Recommendation(target=target, sentence=problem)
            if fit is None or problem
            else recommend(target, fit, num_pairs=pairs.num_pairs, ratings_per_pair=per_pair)
            for target in targets
        ),
        notes=tuple(_notes(points, pairs.num_pairs, affordable, num_draws=num_draws)),
    )


def _problem(
    codes: LevelCodes, count_L: NDArray[np.int64], fit: ErrorCurve | None, pairs: PairRatings
) -> str:
    """Why the curve promises nothing; empty if it does."""
    single_R = count_L[codes.first_cell_R] / codes.num_ratings(count_L)
    worst = int(single_R.argmax())
    return unknown_levels(pairs.rule_ids[worst], single_share=float(single_R[worst])) or (
        misfitting_curve(fit)
    )


# --- drawing --------------------------------------------------------------------------------------


def _check(*, num_draws: int, targets: Sequence[float]) -> None:
    if num_draws < _MIN_DRAWS:
        raise InputError(
            f"number of draws {num_draws}: expected at least {_MIN_DRAWS}, or the 95 % quantile "
            "means nothing"
        )
    for target in targets:
        if not 0 < target < 1:
            raise InputError(f"target {target}: expected a share between 0 and 1 (0.01 is 1 %)")


def _weights(entropy_R: _Floats, rule_ids: Sequence[str], *, tau: float) -> _Floats:
    for rule_id, entropy in zip(rule_ids, entropy_R, strict=True):
        if math.isnan(entropy):
            raise InputError(
                f"rule {rule_id}: none of its ratings is a number, so it has no entropy and no "
                "weight; leave the rule out of the ratings or rate it again"
            )
    return entropy_weights(entropy_R, tau=tau)


def _sample_sizes(num_pairs: int, *, num_rules: int) -> list[int]:
    """Sizes in pairs, each about sqrt(2) times the one before."""
    if num_pairs < MIN_PAIRS:
        return []
    largest = min(num_pairs // 2, max(_MAX_RATINGS // (2 * num_rules), MIN_PAIRS // 2))
    num_sizes = 1 + round(2 * math.log2(largest / _MIN_SIZE))
    sizes = np.geomspace(_MIN_SIZE, largest, num=num_sizes).round().astype(int)
    return sorted(set(sizes.tolist()))


def _affordable_draws(codes: LevelCodes, sizes: Sequence[int], *, num_draws: int) -> int:
    if not sizes:
        return 0
    work = sizes[-1] * 2 * len(codes.first_cell_R) + len(sizes) * codes.num_cells
    return min(num_draws, max(_MIN_DRAWS, _WORK // work))


def _errors(
    codes: LevelCodes,
    weight_R: _Floats,
    sizes: Sequence[int],
    *,
    num_draws: int,
    tau: float,
    seed: int,
) -> _Floats:
    """Largest relative error of a weight in every draw and size, [D, S]; infinite where none."""
    rng = np.random.default_rng(seed)
    error_DS = np.empty((num_draws, len(sizes)))
    for draw in range(num_draws):
        row_N = rng.choice(codes.num_pairs, sizes[-1], replace=False)
        count_L = np.zeros(codes.num_cells, dtype=np.int64)
        for place, (start, stop) in enumerate(pairwise([0, *sizes])):
            count_L += codes.count(row_N[start:stop])
            entropy_R = codes.entropies(count_L)
            if np.isnan(entropy_R).any():
                error_DS[draw, place] = math.inf
                continue
            error_DS[draw, place] = _largest_error(entropy_weights(entropy_R, tau=tau), weight_R)
    return error_DS


def _largest_error(weight_R: _Floats, true_R: _Floats) -> float:
    """Over rules; a weight that is 0 to all digits (a tiny tau) has no relative error."""
    known_R = true_R > 0
    return float(np.abs(weight_R[known_R] / true_R[known_R] - 1).max())


def _point(sorted_error_D: _Floats, size: int, num_pairs: int, per_pair: float) -> ConvergencePoint:
    error_95 = _quantile(sorted_error_D, _CONFIDENCE)
    finite_share = math.sqrt(1 - size / num_pairs)
    return ConvergencePoint(
        num_pairs=size,
        num_ratings_per_rule=round(size * per_pair),
        error_median=_quantile(sorted_error_D, 0.5),
        error_95=error_95,
        error_95_population=None if error_95 is None else error_95 / finite_share,
    )


def _quantile(sorted_error_D: _Floats, share: float) -> float | None:
    """The smallest error that at least this share of draws do not exceed; None if infinite."""
    value = float(sorted_error_D[math.ceil(share * len(sorted_error_D)) - 1])
    return value if math.isfinite(value) else None


def _notes(
    points: Sequence[ConvergencePoint], num_pairs: int, affordable: int, *, num_draws: int
) -> list[str]:
    notes = []
    if points and points[-1].num_pairs < num_pairs // 2:
        notes.append(
            f"the largest samples drawn have {points[-1].num_pairs:,} of {num_pairs:,} pairs; "
            "beyond that the fitted curve speaks"
        )
    if points and affordable < num_draws:
        notes.append(
            f"{affordable} samples of each size were drawn instead of {num_draws}, because the "
            "ratings have so many levels"
        )
    unknown = [point.num_pairs for point in points if point.error_95 is None]
    if unknown:
        notes.append(
            f"in samples of up to {max(unknown):,} pairs some rule too often has no rating at "
            "all, and then there are no weights"
        )
    return notes
