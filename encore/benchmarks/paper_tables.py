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


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """The rows of all three tables, in the paper's order."""
    names = tuple(subset_counts())
    return tuple(
        PaperRow(
            **{**row, "scores": dict(zip(names, row["scores"], strict=True))}, table=table["name"]
        )
        for table in printed()["tables"]
        for row in table["rows"]
    )


@cache
def subset_counts() -> Mapping[str, int]:
    """The number of pairs of each subset, in the order of the paper's columns."""
    known = {subset.name: subset.num_pairs or 0 for subset in load_benchmark(BENCHMARK).subsets}
    return {name: known[name] for name in printed()["subsets"]}


@cache
def printed() -> dict[str, Any]:
    """The three tables as their file has them, each with its place and title in the paper."""
    return tomllib.loads(Path(__file__).with_name("paper_tables.toml").read_text(encoding="utf-8"))
