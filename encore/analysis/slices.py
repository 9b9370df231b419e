"""Slice the answer by a column of the pairs: does a rule agree with people equally everywhere?

Suffixes: P pairs, R rules, G prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate
from encore.analysis.rule_verdicts import ERROR_RATE
from encore.analysis.share_intervals import share_interval
from encore.analysis.untied_accuracy import design_effect, equal_shares_p
from encore.core.errors import InputError
from encore.core.number_text import count, counted, first_names
from encore.data.pair_columns import column_of_pairs
from encore.warehouse import PairRatings, Ratings, read_pairs_of

#: A slice with fewer pairs is too small: its interval would be wider than 35 points.
MIN_PAIRS = 30
#: Numbers are cut into so many slices of about equally many pairs.
NUM_QUANTILES = 4
#: A column of texts with more values has no slices that say anything.
_MAX_VALUES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSlice:
    """Agreement of one rule with people's preferences in one slice.

    Attributes:
        rule_id: The rule, as in the rule set.
        slice: Value of the column, or its range.
        untied: Accuracy over pairs without a tie, with its 95 % interval over prompts.
        num_untied_pairs: Number of pairs with two different ratings.
        num_pairs: Number of pairs with both responses rated.
    """

    rule_id: str
    slice: str
    untied: Estimate
    num_untied_pairs: int
    num_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleHeterogeneity:
    """Test that one rule agrees with people equally often in all slices.

    Attributes:
        rule_id: The rule, as in the rule set.
        p_value: P-value of this rule alone; None if fewer than two slices have untied pairs.
        corrected_p: The p-value times the number of rules, at most 1.
        differs: True if the corrected p-value is below 5 %.
    """

    rule_id: str
    p_value: float | None
    corrected_p: float | None
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedAnswer:
    """Result of `slice_by`.

    Attributes:
        column: Name of the column.
        slices: Number of pairs of each slice that is large enough, in its order.
        too_small: Number of pairs of each other slice; it is in no figure.
        num_without: Number of pairs without a value.
        rows: Each rule in each slice.
        tests: The test of each rule.
    """

    column: str
    slices: dict[str, int]
    too_small: dict[str, int]
    num_without: int
    rows: tuple[RuleSlice, ...]
    tests: tuple[RuleHeterogeneity, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of ``encore analyze --by COLUMN --json``."""
        return asdict(self)

    @property
    def notes(self) -> Iterator[str]:
        """Yield sentences on pairs that are in no slice."""
        if self.too_small:
            names = [f"{name} ({counted(size, 'pair')})" for name, size in self.too_small.items()]
            yield f"--by {self.column}: too small, and left out: {first_names(names)}"
        if self.num_without:
            without = counted(self.num_without, "pair")
            yield f"--by {self.column}: {without} without a value left out"


def slice_by(ratings: Ratings, column: str) -> SlicedAnswer:
    """Return the agreement of each rule with people in each slice, and a test of its equality.

    Numbers are cut at their quartiles. Slices with fewer than `MIN_PAIRS` pairs are left out.

    Args:
        ratings: Ratings of a study with pairs.
        column: A column of `encore.data.pair_columns.column_of_pairs`.

    Raises:
        InputError: The ratings are of no study, there is no such column, or it has too many values.
    """
    if ratings.study is None:
        raise InputError(
            f"--by {column}: {ratings.label} is no study, so its pairs have no columns; name the "
            "study that the ratings belong to"
        )
    values = column_of_pairs(ratings.study, column)
    pairs = read_pairs_of(ratings)
    keys = zip(pairs.source_P.tolist(), pairs.pair_id_P.tolist(), strict=True)
    return slice_pairs(pairs, [values.get(key) for key in keys], column=column)


def slice_pairs(
    pairs: PairRatings, values: Sequence[str | float | None], *, column: str
) -> SlicedAnswer:
    """Return the agreement of each rule in each slice of these pairs, as `slice_by` does.

    Args:
        pairs: The pairs with their ratings.
        values: Value of the column for each pair; None where there is none.
        column: Name of the column.

    Raises:
        InputError: The column has too many values.
    """
    names, slice_P = _slices(values, column=column)
    sizes = {name: int((slice_P == index).sum()) for index, name in enumerate(names)}
    large = {name: size for name, size in sizes.items() if size >= MIN_PAIRS}
    rows, tests = [], []
    for rule_index, rule_id in enumerate(pairs.rule_ids):
        counts = []
        for name in large:
            of_slice = pairs.take(slice_P == names.index(name))
            row, effective_counts = _rule_slice(of_slice, rule_index, name=name)
            rows.append(row)
            counts.append(effective_counts)
        tests.append(_test(rule_id, counts, num_rules=len(pairs.rule_ids)))
    return SlicedAnswer(
        column=column,
        slices=large,
        too_small={name: size for name, size in sizes.items() if size < MIN_PAIRS},
        num_without=int((slice_P < 0).sum()),
        rows=tuple(rows),
        tests=tuple(tests),
    )


def _slices(
    values: Sequence[str | float | None], *, column: str
) -> tuple[list[str], NDArray[np.intp]]:
    """Return the names of the slices, and the index of each pair's, shape [P]; -1 without a value.

    Raises:
        InputError: There are too many texts.
    """
    present = [value for value in values if value is not None]
    slice_P = np.full(len(values), -1)
    has_value_P = np.array([value is not None for value in values])
    if present and all(isinstance(value, float) for value in present):
        number_N = np.array(present, dtype=np.float64)
        edges = np.quantile(number_N, np.linspace(0, 1, NUM_QUANTILES + 1)[1:-1])
        slice_P[has_value_P] = np.searchsorted(np.unique(edges), number_N)
        used = np.unique(slice_P[has_value_P])
        slice_P[has_value_P] = np.searchsorted(used, slice_P[has_value_P])
        ranges = (number_N[slice_P[has_value_P] == index] for index in range(len(used)))
        return [_range_name(number_S) for number_S in ranges], slice_P
    names = sorted(map(str, {*present}))
    if len(names) > _MAX_VALUES:
        raise InputError(
            f"--by {column}: it has {count(len(names))} different texts; expected at most "
            f"{_MAX_VALUES}, or numbers"
        )
    slice_P[has_value_P] = [names.index(str(value)) for value in present]
    return names, slice_P


def _range_name(number_S: NDArray[np.float64]) -> str:
    """Return the least and the largest number of a slice."""
    low, high = float(number_S.min()), float(number_S.max())
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _rule_slice(
    pairs: PairRatings, rule_index: int, *, name: str
) -> tuple[RuleSlice, tuple[int, int]]:
    """Return a rule's agreement in a slice, and how many independent pairs it won and lost."""
    margin_P, group_P = pairs.margin_PR[:, rule_index], pairs.group_P
    won_G, lost_G = (np.bincount(group_P[is_P]) for is_P in (margin_P > 0, margin_P < 0))
    num_groups = int(group_P.max(initial=-1)) + 1
    won_G, lost_G = (np.pad(count_G, (0, num_groups - len(count_G))) for count_G in (won_G, lost_G))
    largest = int(np.bincount(group_P).max())
    won, lost = int(won_G.sum()), int(lost_G.sum())
    effect = design_effect(won_G, lost_G) if won + lost else 1.0
    row = RuleSlice(
        rule_id=pairs.rule_ids[rule_index],
        slice=name,
        untied=share_interval(won_G, won_G + lost_G, largest_group=largest),
        num_untied_pairs=won + lost,
        num_pairs=int((~np.isnan(margin_P)).sum()),
    )
    return row, (round(won / effect), round(lost / effect))


def _test(rule_id: str, counts: Sequence[tuple[int, int]], *, num_rules: int) -> RuleHeterogeneity:
    """Return the test of one rule over all slices that have untied pairs of it."""
    used = [(won, lost) for won, lost in counts if won + lost]
    p_value = equal_shares_p(used) if len(used) > 1 else None
    corrected = None if p_value is None else min(1.0, p_value * num_rules)
    return RuleHeterogeneity(
        rule_id=rule_id,
        p_value=p_value,
        corrected_p=corrected,
        differs=corrected is not None and corrected < ERROR_RATE,
    )
