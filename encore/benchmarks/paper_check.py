"""What can be recomputed from the paper alone: Safety, pairs behind percentages, p-values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from encore.analysis.paper_figures import PaperFigure, paper_figures, paper_settings
from encore.benchmarks.paper_tables import PaperRow, PaperTable, paper_tables, subset_counts
from encore.weighting.composed import Z_95

#: The paper prints r with two decimals.
_HALF_STEP_OF_R = 0.005
#: Percentages are printed in steps of 0.1.
_STEP = Fraction(1, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCorrelation:
    """A correlation of the paper, what it says about the truth, and its p.

    Attributes:
        setting: Data, judge and number of rules, in the paper's terms.
        entropy: ``discrete`` or ``differential``.
        where: Where it stands in the paper.
        num_rules: Of the correlation: n.
        r: Pearson's, as printed.
        ci_low: 95 % interval by Fisher's transformation, as if the rules were independent.
        ci_high: Upper end.
        p_value: Two-sided, from r and n.
        p_low: The same if r lay at the far end of its rounding.
        p_high: At the near end.
        printed_p: As printed beside r; None where none is.
        r_of_printed_p: The correlation, negative as r, that has the printed p with this n.
        follows: Whether the printed p is one of those between ``p_low`` and ``p_high`` when it is
            rounded to one digit; None where none is printed.
        same_p_elsewhere: Printed correlations over as many rules that do have the printed p, where
            this one has not.
    """

    setting: str
    entropy: str
    where: str
    num_rules: int
    r: float
    ci_low: float
    ci_high: float
    p_value: float
    p_low: float
    p_high: float
    printed_p: float | None
    r_of_printed_p: float | None
    follows: bool | None
    same_p_elsewhere: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperCheck:
    """The paper checked against itself.

    Attributes:
        subset_counts: Pairs of each of RewardBench's safety subsets, which weigh the sub-scores.
        tables: The three tables, each row with the Safety that follows from it.
        correlations: Each with its interval and p.
    """

    subset_counts: Mapping[str, int]
    tables: tuple[PaperTable, ...]
    correlations: tuple[CheckedCorrelation, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore paper --json``."""
        return {
            "subset_counts": dict(self.subset_counts),
            "tables": [
                {
                    "name": table.name,
                    "place": table.place,
                    "title": table.title,
                    "rows": [_row_dict(row) for row in table.rows],
                }
                for table in self.tables
            ],
            "correlations": [dataclasses.asdict(row) for row in self.correlations],
        }


def check_paper() -> PaperCheck:
    """Recompute what follows from the paper alone. Reads nothing but the figures shipped here."""
    return PaperCheck(
        subset_counts=subset_counts(),
        tables=paper_tables(),
        correlations=tuple(_checked(figure) for figure in _correlations()),
    )


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


def _num_rules(figure: PaperFigure) -> int:
    return paper_settings()[figure.setting].num_rules


def _checked(figure: PaperFigure) -> CheckedCorrelation:
    r, num_rules = figure.value, _num_rules(figure)
    place = (figure.setting, figure.source_in_paper)
    printed = next(  # in the same figure's caption
        (
            other.value
            for other in paper_figures()
            if other.quantity == "p, discrete" and (other.setting, other.source_in_paper) == place
        ),
        None,
    )
    follows = None if printed is None else p_fits(r, num_rules=num_rules, p=printed)
    half_width = Z_95 / math.sqrt(num_rules - 3)
    p_low, p_high = _p_range(r, num_rules)
    return CheckedCorrelation(
        setting=figure.setting,
        entropy=figure.quantity.removeprefix("r, "),
        where=figure.source_in_paper,
        num_rules=num_rules,
        r=r,
        ci_low=math.tanh(math.atanh(r) - half_width),
        ci_high=math.tanh(math.atanh(r) + half_width),
        p_value=p_of_r(r, num_rules=num_rules),
        p_low=p_low,
        p_high=p_high,
        printed_p=printed,
        r_of_printed_p=None if printed is None else -r_of_p(printed, num_rules=num_rules),
        follows=follows,
        same_p_elsewhere=_elsewhere(printed, num_rules) if printed and not follows else (),
    )


def _elsewhere(p: float, num_rules: int) -> tuple[str, ...]:
    return tuple(
        f"{other.value:.2f} ({other.setting}, {other.quantity.removeprefix('r, ')} entropy)"
        for other in _correlations()
        if _num_rules(other) == num_rules and p_fits(other.value, num_rules=num_rules, p=p)
    )


def _row_dict(row: PaperRow) -> dict[str, Any]:
    # A reward model's tie is a loss, a judge's half a pair; a mean of three trials has thirds.
    unit = Fraction(1, 2) if row.kind == "judge" else Fraction(1, row.num_trials)
    counted = pairs_right(row, unit=unit)
    return {
        "method": row.method,
        "kind": row.kind,
        "label": row.label,
        "base_model": row.base_model,
        "num_trials": row.num_trials,
        "scores": dict(row.scores),
        "num_right": {name: None if num is None else float(num) for name, num in counted.items()},
        "is_one_run": None not in pairs_right(row, unit=Fraction(1)).values(),
        "printed_safety": row.printed_safety,
        "recomputed_safety": row.recomputed_safety,
        "follows": row.follows,
    }
