"""What can be recomputed from the paper alone: Safety from its sub-scores, p from r and n."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from encore.analysis.paper_figures import PaperFigure, paper_figures, paper_settings
from encore.analysis.statistics import Z_95
from encore.benchmarks.paper_tables import PaperRow, paper_rows, printed, subset_counts

#: The paper prints r with two decimals.
_HALF_STEP_OF_R = 0.005


def check_paper() -> dict[str, Any]:
    """The JSON of ``encore paper --json``: what follows from the paper's figures shipped here.

    ``subset_counts`` weigh the sub-scores; ``tables`` have the Safety that follows from each row;
    ``correlations`` have an interval by Fisher's transformation, as if the rules were independent,
    and p from r and n, also at both ends of r's rounding (``p_low``, ``p_high``). ``follows`` says
    whether the printed p can be one of those between.
    """
    figures = paper_figures()
    printed_p = {
        (one.setting, one.source_in_paper): one.value  # in the same figure's caption
        for one in figures
        if one.quantity == "p, discrete"
    }
    return {
        "subset_counts": dict(subset_counts()),
        "tables": [
            table | {"rows": [_row_dict(row) for row in paper_rows() if row.table == table["name"]]}
            for table in printed()["tables"]
        ],
        "correlations": [
            _checked(one, printed_p.get((one.setting, one.source_in_paper)))
            for one in figures
            if one.quantity != "p, discrete"
        ],
    }


def p_of_r(r: float, *, num_rules: int) -> float:
    """The two-sided p of Pearson's r for independent normal variables, as in scipy."""
    from scipy.stats import beta

    return 2 * float(beta(num_rules / 2 - 1, num_rules / 2 - 1, loc=-1, scale=2).sf(abs(r)))


def _checked(figure: PaperFigure, printed: float | None) -> dict[str, Any]:
    r, num_rules = figure.value, paper_settings()[figure.setting].num_rules
    p_low, p_high = (
        p_of_r(abs(r) + step, num_rules=num_rules) for step in (_HALF_STEP_OF_R, -_HALF_STEP_OF_R)
    )
    half_digit = 0.0 if printed is None else 0.5 * 10.0 ** math.floor(math.log10(printed))
    half_width = Z_95 / math.sqrt(num_rules - 3)
    return {
        "setting": figure.setting,
        "entropy": figure.quantity.removeprefix("r, "),
        "where": figure.source_in_paper,
        "num_rules": num_rules,
        "r": r,
        "ci_low": math.tanh(math.atanh(r) - half_width),
        "ci_high": math.tanh(math.atanh(r) + half_width),
        "p_value": p_of_r(r, num_rules=num_rules),
        "p_low": p_low,
        "p_high": p_high,
        "printed_p": printed,
        "follows": printed and p_low - half_digit <= printed <= p_high + half_digit,
    }


def _row_dict(row: PaperRow) -> dict[str, Any]:
    shown = dataclasses.asdict(row)
    del shown["table"]
    return shown | {"recomputed_safety": row.recomputed_safety, "follows": row.follows}
