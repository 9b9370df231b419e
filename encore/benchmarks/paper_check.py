"""Recomputation of the paper's own figures: Safety from its sub-scores, p from r and n."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from encore.analysis.correlation import fisher_interval, pearson_p_value
from encore.analysis.paper_figures import paper_figures
from encore.benchmarks.paper_tables import paper_rows, printed, subset_counts

#: The paper prints r with two decimals.
_HALF_STEP_OF_R = 0.005


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
