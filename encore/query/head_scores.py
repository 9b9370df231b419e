"""Head scores for SQL: a row for each head, though files have a column for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from encore.query.arrow_files import ArrowTable, table_of_files
from encore.scoring.score_files import ScoreStatus, head_scores_schema

#: Every scoring has heads of its own, so its columns cannot be those of one table.
HEAD_SCORES = pa.schema(
    [
        *((name, pa.string()) for name in ("score_key", "model", "source", "pair_id", "subset")),
        *((name, pa.string()) for name in ("response", "head_id")),
        ("score", pa.float32()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """The files of one scoring as one wide table, and what its rows are to be marked with."""

    score_key: str
    model: str
    head_ids: tuple[str, ...]
    table: ArrowTable


@dataclass(frozen=True, slots=True, kw_only=True)
class LongScores:
    """The table `HEAD_SCORES` of several scorings; a query makes its rows, none are kept."""

    scorings: tuple[Scoring, ...]

    @property
    def schema(self) -> pa.Schema:
        """Of the long table."""
        return HEAD_SCORES


def head_scores_table(scores: Sequence[ScoreStatus]) -> ArrowTable | LongScores:
    """The scores of all scorings, of the shards that are done; to be read when asked for."""
    scorings = tuple(
        Scoring(
            score_key=found.manifest.score_key,
            model=found.manifest.model,
            head_ids=found.manifest.head_ids,
            table=table_of_files(found.paths, head_scores_schema(found.manifest.head_ids)),
        )
        for found in scores
        if found.paths
    )
    return LongScores(scorings=scorings) if scorings else HEAD_SCORES.empty_table()
