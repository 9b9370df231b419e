"""The paper's three tables of RewardBench safety, and a check of its figures.

Safety is recomputed from the sub-scores, p from r and n.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from encore.analysis.correlation import fisher_interval, pearson_p_value
from encore.analysis.paper_figures import paper_figures
from encore.benchmarks.definition import load_benchmark

TableName = Literal["main", "fsfairx", "selection"]

#: The benchmark of all three tables; the paper does not print its counts.
BENCHMARK = "rewardbench-safety"
#: Largest difference of printed and recomputed Safety, in points, that rounding can explain. The
#: sub-scores have one decimal, some cut instead of rounded, so each may be 0.1 too low; Safety is
#: rounded by up to 0.05.
SAFETY_TOLERANCE = 0.15
#: The paper prints r with two decimals.
_HALF_STEP_OF_R = 0.005


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


def check_paper() -> dict[str, Any]:
    """Recompute the paper's figures: the JSON of ``encore paper --json``.

    ``subset_counts`` are the weights of the sub-scores. ``tables`` have the recomputed Safety of
    each row. ``correlations`` have an interval by Fisher's transformation, as if the rules were
    independent, and p from r and n, also at both ends of r's rounding (``p_low``, ``p_high``).
    ``follows`` is true if the printed p lies between these two.
    """
    figures = paper_figures()
    printed_p = {
        (figure["setting"], figure["source_in_paper"]): figure["paper_value"]  # in the caption
        for figure in figures
        if figure["quantity"] == "p, discrete"
    }
    return {
        "subset_counts": dict(subset_counts()),
        "tables": [
            table | {"rows": [asdict(row) for row in paper_rows() if row.table == table["name"]]}
            for table in printed()["tables"]
        ],
        "correlations": [
            _check_correlation(
                figure, printed_p.get((figure["setting"], figure["source_in_paper"]))
            )
            for figure in figures
            if figure["quantity"] != "p, discrete"
        ],
    }


def _check_correlation(figure: Mapping[str, Any], printed: float | None) -> dict[str, Any]:
    r, num_rules = figure["paper_value"], figure["num_rules"]
    p_low, p_value, p_high = (
        pearson_p_value(abs(r) + step, num_values=num_rules)
        for step in (_HALF_STEP_OF_R, 0.0, -_HALF_STEP_OF_R)
    )
    ci_low, ci_high = fisher_interval(r, num_values=num_rules)
    half_digit = 0.0 if printed is None else 0.5 * 10.0 ** math.floor(math.log10(printed))
    return {
        "setting": figure["setting"],
        "entropy": figure["quantity"].removeprefix("r, "),
        "where": figure["source_in_paper"],
        "num_rules": num_rules,
        "r": r,
        "ci_low": ci_low,
        "ci_high": ci_high,
        "p_value": p_value,
        "p_low": p_low,
        "p_high": p_high,
        "printed_p": printed,
        "follows": printed and p_low - half_digit <= printed <= p_high + half_digit,
    }
