"""What can be recomputed from the paper alone: Safety, pairs behind percentages, p-values."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

from encore.analysis.paper_figures import PaperFigure, paper_figures, paper_settings
from encore.benchmarks.paper_tables import PaperRow, paper_tables, subset_counts
from encore.weighting.composed import Z_95

#: The paper prints r with two decimals.
_HALF_STEP_OF_R = 0.005
#: Percentages are printed in steps of 0.1.
_STEP = Fraction(1, 10)


def check_paper() -> dict[str, Any]:
    """The JSON of ``encore paper --json``: what follows from the paper's figures shipped here.

    ``subset_counts`` weigh the sub-scores; ``tables`` have the Safety that follows from each row;
    ``correlations`` have an interval by Fisher's transformation, as if the rules were independent,
    and p from r and n, also at both ends of r's rounding (``p_low``, ``p_high``). ``follows`` says
    whether the printed p can be one of those between; ``same_p_elsewhere`` names the correlations
    over as many rules that can have it.
    """
    return {
        "subset_counts": dict(subset_counts()),
        "tables": [
            {
                "name": table.name,
                "place": table.place,
                "title": table.title,
                "rows": [_row_dict(row) for row in table.rows],
            }
            for table in paper_tables()
        ],
        "correlations": [_checked(figure) for figure in _correlations()],
    }


def pairs_right(row: PaperRow, *, unit: Fraction) -> dict[str, Fraction | None]:
    """The number of pairs that each printed percentage stands for.

    Args:
        row: Of one of the paper's tables.
        unit: What is counted: whole pairs, a judge's halves, or parts of a trial.

    Returns:
        By subset the number of units nearest to the percentage, as pairs, if it is printed so:
        exactly, rounded or cut. None where no such number is.
    """
    found: dict[str, Fraction | None] = {}
    for subset, num_pairs in subset_counts().items():
        value = Fraction(str(row.scores[subset]))  # the decimal number, not the binary one
        below = math.floor(value * num_pairs / 100 / unit) * unit
        off = {num: 100 * num / num_pairs - value for num in (below, below + unit)}
        nearest = sorted(off, key=lambda num, off=off: abs(off[num]))  # type: ignore[misc]
        fits = (
            num
            for num in nearest
            if num <= num_pairs and (abs(off[num]) <= _STEP / 2 or 0 < off[num] < _STEP)
        )
        found[subset] = next(fits, None)
    return found


def p_of_r(r: float, *, num_rules: int) -> float:
    """The two-sided p of Pearson's r for independent normal variables, as in scipy."""
    return 2 * float(_null(num_rules).sf(abs(r)))


def r_of_p(p: float, *, num_rules: int) -> float:
    """The size of Pearson's r that has a two-sided p: the inverse of `p_of_r`."""
    return float(_null(num_rules).isf(p / 2))


def p_fits(r: float, *, num_rules: int, p: float) -> bool:
    """Whether a p printed with one digit can belong to an r printed with two decimals."""
    low, high = _p_range(r, num_rules)
    half_digit = 0.5 * 10.0 ** math.floor(math.log10(p))
    return low - half_digit <= p <= high + half_digit


def _null(num_rules: int) -> Any:
    from scipy.stats import beta

    return beta(num_rules / 2 - 1, num_rules / 2 - 1, loc=-1, scale=2)


def _p_range(r: float, num_rules: int) -> tuple[float, float]:
    far, near = abs(r) + _HALF_STEP_OF_R, abs(r) - _HALF_STEP_OF_R
    return p_of_r(far, num_rules=num_rules), p_of_r(near, num_rules=num_rules)


def _correlations() -> list[PaperFigure]:
    return [figure for figure in paper_figures() if figure.quantity != "p, discrete"]


def _checked(figure: PaperFigure) -> dict[str, Any]:
    r, num_rules = figure.value, paper_settings()[figure.setting].num_rules
    printed = next(  # in the same figure's caption
        (
            other.value
            for other in paper_figures()
            if other.quantity == "p, discrete"
            and (other.setting, other.source_in_paper) == (figure.setting, figure.source_in_paper)
        ),
        None,
    )
    follows = None if printed is None else p_fits(r, num_rules=num_rules, p=printed)
    half_width = Z_95 / math.sqrt(num_rules - 3)
    p_low, p_high = _p_range(r, num_rules)
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
        "r_of_printed_p": None if printed is None else -r_of_p(printed, num_rules=num_rules),
        "follows": follows,
        "same_p_elsewhere": [
            f"{other.value:.2f} ({other.setting}, {other.quantity.removeprefix('r, ')} entropy)"
            for other in (_correlations() if printed and not follows else [])
            if paper_settings()[other.setting].num_rules == num_rules
            and p_fits(other.value, num_rules=num_rules, p=printed or 0)
        ],
    }


def _row_dict(row: PaperRow) -> dict[str, Any]:
    # A reward model's tie is a loss, a judge's half a pair; a mean of three trials has thirds.
    unit = Fraction(1, 2) if row.kind == "judge" else Fraction(1, row.num_trials)
    counted = pairs_right(row, unit=unit)
    shown = dataclasses.asdict(row)
    del shown["table"]
    return {
        **shown,
        "num_right": {name: None if num is None else float(num) for name, num in counted.items()},
        "is_one_run": None not in pairs_right(row, unit=Fraction(1)).values(),
        "recomputed_safety": row.recomputed_safety,
        "follows": row.follows,
    }
