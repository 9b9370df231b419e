"""The paper's three tables of RewardBench safety, and the Safety that follows from their rows."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from encore.benchmarks.definition import load_benchmark

TableName = Literal["main", "fsfairx", "selection"]

#: The benchmark of all three tables; the paper does not print its counts.
BENCHMARK = "rewardbench-safety"
#: In points. The paper's sub-scores have one decimal, some cut and not rounded, so each may be 0.1
#: too low, and its Safety is rounded to 0.05: a row that follows is off by no more than both.
SAFETY_TOLERANCE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """One row of one of the three tables. Scores are in percent.

    Attributes:
        table: Which table.
        method: Our key: a weighting scheme's name, ``moe``, ``bradley-terry-model``,
            ``bradley-terry-model-initialised``, or ``judge-`` and the judge.
        kind: What made the row: an LLM judge, a reward model with one head, or weights over the
            heads of one.
        label: The method as printed.
        base_model: As printed.
        num_trials: How many trials the paper says the row is the mean of.
        scores: Of each subset, as printed.
        printed_safety: The last column, as printed.
    """

    table: TableName
    method: str
    kind: Literal["judge", "model", "scheme"]
    label: str
    base_model: str
    num_trials: int = 1
    scores: Mapping[str, float]
    printed_safety: float

    @property
    def recomputed_safety(self) -> float:
        """The mean of ``scores`` weighted by RewardBench's numbers of pairs."""
        counts = subset_counts()
        total = sum(self.scores[subset] * count for subset, count in counts.items())
        return total / sum(counts.values())

    @property
    def follows(self) -> bool:
        """Whether the printed Safety follows from the printed sub-scores, up to rounding."""
        return abs(self.recomputed_safety - self.printed_safety) <= SAFETY_TOLERANCE + 1e-9

    @property
    def title(self) -> str:
        """The row in words."""
        return f"{self.label}, {self.base_model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """One of the three tables: our name, its place in the paper, what it shows, its rows."""

    name: TableName
    place: str
    title: str
    rows: tuple[PaperRow, ...]


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """The three tables, in the paper's order."""
    return tuple(
        PaperTable(**table | {"rows": tuple(_row(row, table["name"]) for row in table["rows"])})
        for table in _read()["tables"]
    )


def paper_row(table: str, method: str) -> PaperRow:
    """One row, by the table's name and the method's key."""
    [found] = (one for one in paper_tables() if one.name == table)
    return next(row for row in found.rows if row.method == method)


@cache
def subset_counts() -> Mapping[str, int]:
    """The number of pairs of each subset, in the order of the paper's columns."""
    known = {subset.name: subset.num_pairs or 0 for subset in load_benchmark(BENCHMARK).subsets}
    return {name: known[name] for name in _read()["subsets"]}


def _row(row: Mapping[str, Any], table: TableName) -> PaperRow:
    named = {name: value for name, value in row.items() if name not in ("scores", "safety")}
    scores = dict(zip(subset_counts(), row["scores"], strict=True))
    return PaperRow(table=table, **named, scores=scores, printed_safety=row["safety"])


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("paper_tables.toml").read_text(encoding="utf-8"))
