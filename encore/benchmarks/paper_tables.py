"""The paper's three tables of RewardBench safety, and the Safety that follows from their rows."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
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
    """One row of one of the three tables; scores are shares in [0, 1].

    Attributes:
        table: Which table.
        method: Our key: a weighting scheme's name, ``moe``, ``bradley-terry-model``,
            ``bradley-terry-model-initialised``, or ``judge-`` and the judge.
        kind: What made the row: an LLM judge, a reward model with one head, or weights over the
            heads of one.
        label: The method as printed.
        base_model: As printed.
        num_trials: How many trials the paper says the row is the mean of.
        subsets: Of each subset, as printed.
        score: Safety, the last column, as printed.
        recomputed: Safety as the mean of ``subsets`` weighted by RewardBench's numbers of pairs.
        follows: Whether the two agree, up to rounding.
    """

    table: TableName
    method: str
    kind: Literal["judge", "model", "scheme"]
    label: str
    base_model: str
    num_trials: int = 1
    subsets: Mapping[str, float]
    score: float
    recomputed: float
    follows: bool


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """The rows of all three tables, in the paper's order."""
    return tuple(
        _row(table=table["name"], **row) for table in printed()["tables"] for row in table["rows"]
    )


def _row(*, scores: Sequence[float], printed_safety: float, **about: Any) -> PaperRow:
    """A row as its file has it, in percent."""
    counts = subset_counts()
    total = sum(score * num for score, num in zip(scores, counts.values(), strict=True))
    recomputed = total / sum(counts.values())
    return PaperRow(
        **about,
        subsets={name: score / 100 for name, score in zip(counts, scores, strict=True)},
        score=printed_safety / 100,
        recomputed=recomputed / 100,
        follows=abs(recomputed - printed_safety) <= SAFETY_TOLERANCE,
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
