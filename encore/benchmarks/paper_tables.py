"""The paper's three tables of RewardBench safety, with Safety recomputed from their sub-scores."""

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
#: Largest difference of printed and recomputed Safety, in points, that rounding can explain. The
#: sub-scores have one decimal, some cut instead of rounded, so each may be 0.1 too low; Safety is
#: rounded by up to 0.05.
SAFETY_TOLERANCE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """Row of one of the paper's tables; scores are shares in [0, 1].

    Attributes:
        table: Name of the table.
        method: Our key of the method: a weighting scheme's name, ``moe``, ``bradley-terry-model``,
            ``bradley-terry-model-initialised``, or ``judge-`` and the judge.
        kind: Source of the row: an LLM judge, a reward model with one head, or weights over the
            heads of a model.
        label: Name of the method as printed.
        base_model: Base model as printed.
        num_trials: Number of trials whose mean the row is, according to the paper.
        subsets: Score of each subset as printed.
        score: Safety, the last column, as printed.
        recomputed: Safety as the mean of ``subsets`` weighted by RewardBench's numbers of pairs.
        follows: True if ``score`` and ``recomputed`` agree up to rounding.
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
    """Return the rows of all three tables, in the paper's order."""
    return tuple(
        _row(table=table["name"], **row) for table in printed()["tables"] for row in table["rows"]
    )


def _row(*, scores: Sequence[float], printed_safety: float, **fields: Any) -> PaperRow:
    """Make a row from the fields of its file, which are in percent."""
    counts = subset_counts()
    total = sum(score * num for score, num in zip(scores, counts.values(), strict=True))
    recomputed = total / sum(counts.values())
    return PaperRow(
        **fields,
        subsets={name: score / 100 for name, score in zip(counts, scores, strict=True)},
        score=printed_safety / 100,
        recomputed=recomputed / 100,
        follows=abs(recomputed - printed_safety) <= SAFETY_TOLERANCE,
    )


@cache
def subset_counts() -> Mapping[str, int]:
    """Return the number of pairs of each subset, in the order of the paper's columns."""
    counts = {subset.name: subset.num_pairs or 0 for subset in load_benchmark(BENCHMARK).subsets}
    return {name: counts[name] for name in printed()["subsets"]}


@cache
def printed() -> dict[str, Any]:
    """Read the file with the three tables, each with its place and title in the paper."""
    return tomllib.loads(Path(__file__).with_name("paper_tables.toml").read_text(encoding="utf-8"))
