"""The statistics of each judge that rated the same pairs, and how far the judges agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.analyze import Analysis, analyze_input
from encore.errors import InputError
from encore.evidence.agreement import agreement
from encore.pair_ratings import PairRatings, read_pair_ratings
from encore.ratings_input import RatingsOfJudge, ratings_by_judge
from encore.warehouse import Warehouse

# Suffixes: P pairs, R rules, N ratings.


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnalysis:
    """What one judge's ratings give.

    Attributes:
        judge: The judge's name; with its run key where it has several runs.
        analysis: As `encore.analysis.analyze.analyze` makes it.
    """

    judge: str
    analysis: Analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAgreement:
    """How far two judges agree about one rule, over what both rated.

    Attributes:
        judge: One judge.
        other_judge: The other.
        rule_id: The rule.
        num_ratings: Responses that both gave a rating; without any, the next five are None.
        agreement: Share of them with two equal ratings.
        mean_absolute_difference: In units of rating.
        mean_difference: The other's rating minus the first's: which judge is stricter.
        kappa: Cohen's kappa of equal ratings: 1 is perfect, 0 what chance gives. None, as the
            next, where both always say the same level.
        weighted_kappa: Kappa with squared differences (Lin's concordance).
        num_pairs: Pairs whose two responses both judges gave a rating.
        same_preference: Share of them that both judges rank the same way, ties included.
    """

    judge: str
    other_judge: str
    rule_id: str
    num_ratings: int
    agreement: float | None
    mean_absolute_difference: float | None
    mean_difference: float | None
    kappa: float | None
    weighted_kappa: float | None
    num_pairs: int
    same_preference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeComparison:
    """Several judges over the same pairs.

    Attributes:
        judges: Each judge's own analysis.
        agreement: One row per two judges and rule that both rated.
        notes: Plain sentences on what limits the comparison.
    """

    judges: tuple[JudgeAnalysis, ...]
    agreement: tuple[JudgeAgreement, ...]
    notes: tuple[str, ...]

    @property
    def num_shards(self) -> int:
        """Planned shards of all judges."""
        return sum(one.analysis.num_shards for one in self.judges)

    @property
    def num_missing_shards(self) -> int:
        """Those that are not in it."""
        return sum(one.analysis.num_missing_shards for one in self.judges)

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore analyze --by-judge --json``."""
        return {
            "judges": [{"judge": one.judge, **one.analysis.as_dict()} for one in self.judges],
            "agreement": [dataclasses.asdict(row) for row in self.agreement],
            "notes": list(self.notes),
        }


def compare_judges(ratings: str | Path | Any, *, by_source: bool = False) -> JudgeComparison:
    """Analyse each judge's ratings on its own, and compare every two judges.

    A judge that has several runs counts once for each. Comparing holds the ratings of two judges
    in memory: 16 bytes a pair and rule for each.

    Args:
        ratings: A study with several runs, or a table with a column ``judge``; as for
            `encore.analysis.analyze.analyze`.
        by_source: Statistics for each source, followed by those of all together.

    Raises:
        InputError: No ratings table, or fewer than two judges in it.
    """
    found = ratings_by_judge(ratings)
    if len(found) < 2:
        raise InputError(
            f"{found[0].ratings.label}: only one judge ({found[0].judge}) rated; a comparison "
            "takes two or more, so leave out --by-judge"
        )
    judges = tuple(
        JudgeAnalysis(judge=one.judge, analysis=analyze_input(one.ratings, by_source=by_source))
        for one in found
    )
    rows = tuple(row for both in combinations(found, 2) for row in _agreement_of_inputs(*both))
    return JudgeComparison(judges=judges, agreement=rows, notes=tuple(_notes(found, rows)))


def judge_agreement(
    first: PairRatings, second: PairRatings, *, judge: str, other_judge: str
) -> Iterator[JudgeAgreement]:
    """Compare two judges' ratings of the pairs that both rated, rule by rule.

    Args:
        first: One judge's, of any pairs.
        second: The other's, of the same rules in the same order.
        judge: What to call the first.
        other_judge: What to call the second.
    """
    row_P, other_row_P = _matching_rows(first, second)
    first, second = first.take(row_P), second.take(other_row_P)
    for place, rule_id in enumerate(first.rule_ids):
        rating_N = np.concatenate([first.chosen_PR[:, place], first.rejected_PR[:, place]])
        other_N = np.concatenate([second.chosen_PR[:, place], second.rejected_PR[:, place]])
        is_common_N = ~(np.isnan(rating_N) | np.isnan(other_N))
        found = agreement(rating_N[is_common_N], other_N[is_common_N])
        margin_P, other_margin_P = first.margin_PR[:, place], second.margin_PR[:, place]
        is_whole_P = ~(np.isnan(margin_P) | np.isnan(other_margin_P))
        is_same_P = np.sign(margin_P[is_whole_P]) == np.sign(other_margin_P[is_whole_P])
        yield JudgeAgreement(
            judge=judge,
            other_judge=other_judge,
            rule_id=rule_id,
            num_ratings=int(np.count_nonzero(is_common_N)),
            agreement=found.agreement if found else None,
            mean_absolute_difference=found.mean_absolute_difference if found else None,
            mean_difference=found.mean_difference if found else None,
            kappa=found.kappa if found else None,
            weighted_kappa=found.weighted_kappa if found else None,
            num_pairs=len(is_same_P),
            same_preference=float(is_same_P.mean()) if len(is_same_P) else None,
        )


def _agreement_of_inputs(one: RatingsOfJudge, other: RatingsOfJudge) -> tuple[JudgeAgreement, ...]:
    with Warehouse(one.ratings) as warehouse, Warehouse(other.ratings) as other_warehouse:
        other_rules = set(_rule_ids(other_warehouse))
        shared = [rule_id for rule_id in _rule_ids(warehouse) if rule_id in other_rules]
        first = read_pair_ratings(warehouse, rule_ids=shared)
        second = read_pair_ratings(other_warehouse, rule_ids=shared)
    return tuple(judge_agreement(first, second, judge=one.judge, other_judge=other.judge))


def _rule_ids(warehouse: Warehouse) -> list[str]:
    found: list[str] = warehouse.query("rule_ids")["rule_id"].to_pylist()
    return found


def _matching_rows(
    first: PairRatings, second: PairRatings
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where each pair of both stands in one and in the other."""
    row_of = {key: row for row, key in enumerate(_keys(second))}
    rows = [(row, row_of[key]) for row, key in enumerate(_keys(first)) if key in row_of]
    row_P2 = np.array(rows, dtype=np.intp).reshape(-1, 2)
    return row_P2[:, 0], row_P2[:, 1]


def _keys(pairs: PairRatings) -> Iterator[tuple[str, str]]:
    return zip(pairs.source_P.tolist(), pairs.pair_id_P.tolist(), strict=True)


def _notes(found: Sequence[RatingsOfJudge], rows: Sequence[JudgeAgreement]) -> Iterator[str]:
    compared = {(row.judge, row.other_judge) for row in rows if row.num_ratings}
    for one, other in combinations(found, 2):
        if (one.judge, other.judge) not in compared:
            yield (
                f"judges {one.judge} and {other.judge} rated no response in common under the same "
                "rule: nothing to compare"
            )
