"""Every row that head scores of a benchmark and ratings of a training study give.

Weights come from the training ratings alone: no answer of the benchmark enters any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.rows import TableRow, compared
from encore.benchmarks.scheme_table import DEFAULT_TAUS, ROWS, SchemeRowOptions, SchemeTable
from encore.errors import EncoreError, InputError
from encore.scores.head_scores import HeadScores
from encore.weighting.evidence import Evidence
from encore.weighting.head_weights import head_weights
from encore.weighting.opening import open_evidence

__all__ = [
    "DEFAULT_TAUS",
    "SchemeRowOptions",
    "SchemeRows",
    "refuse_other_rules",
    "scheme_rows",
    "weigh_evidence",
    "weigh_rows",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchemeRows:
    """Rows that are not compared yet, the reference first, and what limits them."""

    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]


def scheme_rows(
    scores: HeadScores,
    pairs: BenchmarkPairs,
    *,
    ratings: str | Path | Any,
    run: str | None = None,
    judge: str | None = None,
    taus: Sequence[float] = DEFAULT_TAUS,
    seed: int = 0,
    options: SchemeRowOptions | None = None,
) -> tuple[TableRow, ...]:
    """Every scheme's row, uniform weights first, each other compared with it.

    Args:
        scores: Of the benchmark's pairs, in their order (`encore.benchmarks.scoring`).
        pairs: Of the benchmark.
        ratings: Of the training study: as for `encore.weighting.weigh.weights`.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.
        taus: Temperatures of scheme ``encore``; unless ``options`` are given.
        seed: Of draws and bootstrap; unless ``options`` are given.
        options: All of the above and more.

    Raises:
        InputError: Scores of other pairs, rules that are not the heads, no ratings table.
    """
    options = options or SchemeRowOptions(taus=tuple(taus), seed=seed)
    found = weigh_rows(scores, pairs, ratings=ratings, run=run, judge=judge, options=options)
    return compared(found.rows, pairs=pairs, seed=options.seed)


def weigh_rows(
    scores: HeadScores,
    pairs: BenchmarkPairs,
    *,
    ratings: str | Path | Any,
    run: str | None = None,
    judge: str | None = None,
    options: SchemeRowOptions,
) -> SchemeRows:
    """The same rows before they are compared, with notes on what limits them."""
    with open_evidence(ratings, run=run, judge=judge) as evidence:
        return weigh_evidence(scores, pairs, evidence=evidence, options=options)


def weigh_evidence(
    scores: HeadScores, pairs: BenchmarkPairs, *, evidence: Evidence, options: SchemeRowOptions
) -> SchemeRows:
    """The same from evidence that is open."""
    _check_order(scores, pairs)
    refuse_other_rules(evidence, scores.head_ids)
    table = SchemeTable.of(scores, pairs, evidence=evidence, options=options)
    rows = [table.reference()]
    left_out: list[str] = []
    for name in dict.fromkeys(options.schemes):
        try:
            rows += tuple(ROWS[name](table))
        except EncoreError as error:  # bad input, or no optimum
            if len(options.schemes) == 1:
                raise
            left_out.append(f"left out: {error}")
    notes = (*_notes(evidence), *_of_rows(rows))
    noted = tuple(replace(row, notes=notes) for row in rows)
    return SchemeRows(rows=noted, notes=(*left_out, *notes))


def refuse_other_rules(evidence: Evidence, head_ids: Sequence[str]) -> None:
    """Refuse evidence whose rules are not the heads.

    Raises:
        InputError: Which rules have no head, which heads no weight.
    """
    head_weights(dict.fromkeys(evidence.rule_ids, 0.0), head_ids=head_ids)


def _check_order(scores: HeadScores, pairs: BenchmarkPairs) -> None:
    ids = [pair.pair_id for pair in pairs.pairs]
    if scores.pair_id_P.tolist() != ids:
        raise InputError(
            f"head scores of {scores.num_pairs} pairs are not those of the {len(ids)} pairs of "
            f"{pairs.benchmark.name} in their order; align them with "
            "encore.benchmarks.scoring.aligned_scores"
        )


def _notes(evidence: Evidence) -> Iterator[str]:
    missing = evidence.origin.num_missing_shards
    if missing:
        yield (
            f"weights are from an incomplete run: {missing} of {evidence.origin.num_shards} shards "
            "of its ratings are missing"
        )
    for rule in evidence.rules:
        if rule.num_levels == 1:
            yield (
                f"rule {rule.rule_id} has one and the same rating everywhere: encore gives it the "
                "largest weight, and what its head says then comes from no rating"
            )


def _of_rows(rows: Sequence[TableRow]) -> Iterator[str]:
    for row in rows:
        if row.uses_labels and row.params.get("scale") == 0:
            yield (
                f"{row.name}: no weighting of the rules agrees with people's preferences, so all "
                "rules weigh alike and the row is uniform's"
            )
