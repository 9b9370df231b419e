"""The responses that two ratings tables have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError
from encore.evidence.paired_input import PairedInput
from encore.pair_ratings import PairRatings

# Suffixes: P pairs, R rules, 2 the two responses of a pair.

_Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overlap:
    """The pairs of two inputs with a response that is rated in both, side by side.

    A response is rated in an input if at least one rule has a number for it there. Responses that
    are rated in one input only are missing in both of these.

    Attributes:
        first: The pairs by the first input.
        repeated: The same pairs by the other, same rules in the same order.
        num_responses: Rated in both.
        num_first_only: Rated in the first input only.
        num_repeated_only: Rated in the other only.
    """

    first: PairRatings
    repeated: PairRatings
    num_responses: int
    num_first_only: int
    num_repeated_only: int

    def common(self) -> tuple[PairRatings, PairRatings]:
        """Both, with only the ratings that both have: what changes is then not the coverage."""
        chosen_PR = np.isnan(self.first.chosen_PR) | np.isnan(self.repeated.chosen_PR)
        rejected_PR = np.isnan(self.first.rejected_PR) | np.isnan(self.repeated.rejected_PR)
        return (
            _without(self.first, chosen_PR, rejected_PR),
            _without(self.repeated, chosen_PR, rejected_PR),
        )


def find_overlap(first: PairedInput, repeated: PairedInput) -> Overlap:
    """Match responses by source, pair_id and response.

    Raises:
        InputError: The rules differ, or no response is rated in both.
    """
    _check_rules(first, repeated)
    is_first, is_repeated = _is_rated(first.pairs), _is_rated(repeated.pairs)
    row_P2 = _matching_rows(first.pairs, repeated.pairs)
    is_both_P2 = is_first[row_P2[:, 0]] & is_repeated[row_P2[:, 1]]
    num_both = int(is_both_P2.sum())
    if not num_both:
        raise InputError(
            f"retest of {first.label}: none of its {int(is_first.sum())} rated responses is among "
            f"the {int(is_repeated.sum())} of {repeated.label}; responses are matched by source, "
            "pair_id and response: rate some of the same pairs again"
        )
    has_any_P = is_both_P2.any(axis=1)
    row_P2, is_missing_P2 = row_P2[has_any_P], ~is_both_P2[has_any_P]
    ours = first.pairs.take(row_P2[:, 0])
    theirs = _with_rules(repeated.pairs.take(row_P2[:, 1]), first.pairs.rule_ids)
    return Overlap(
        first=_without(ours, is_missing_P2[:, :1], is_missing_P2[:, 1:]),
        repeated=_without(theirs, is_missing_P2[:, :1], is_missing_P2[:, 1:]),
        num_responses=num_both,
        num_first_only=int(is_first.sum()) - num_both,
        num_repeated_only=int(is_repeated.sum()) - num_both,
    )


def _check_rules(first: PairedInput, repeated: PairedInput) -> None:
    ours, theirs = set(first.pairs.rule_ids), set(repeated.pairs.rule_ids)
    if ours != theirs:
        only = [
            f"only in {where}: {', '.join(sorted(rules))}"
            for where, rules in (("the first", ours - theirs), ("the repetition", theirs - ours))
            if rules
        ]
        raise InputError(
            f"retest of {first.label} by {repeated.label}: expected the same rules in both; "
            f"{'; '.join(only)}; rate again under the same rule set"
        )


def _matching_rows(first: PairRatings, repeated: PairRatings) -> NDArray[np.intp]:
    """Rows of the same pair in both, one per pair in both, shape [P, 2]."""
    row_of = {key: row for row, key in enumerate(_keys(repeated))}
    rows = [(row, row_of[key]) for row, key in enumerate(_keys(first)) if key in row_of]
    return np.array(rows, dtype=np.intp).reshape(-1, 2)


def _keys(pairs: PairRatings) -> Iterator[tuple[str, str]]:
    return zip(pairs.source_P.tolist(), pairs.pair_id_P.tolist(), strict=True)


def _is_rated(pairs: PairRatings) -> _Bools:
    """Whether any rule has a number for each pair's chosen and rejected response, shape [P, 2]."""
    sides = (pairs.chosen_PR, pairs.rejected_PR)
    return np.stack([~np.isnan(side_PR).all(axis=1) for side_PR in sides], axis=1)


def _with_rules(pairs: PairRatings, rule_ids: tuple[str, ...]) -> PairRatings:
    place_R = [pairs.rule_ids.index(rule_id) for rule_id in rule_ids]
    return dataclasses.replace(
        pairs,
        rule_ids=rule_ids,
        chosen_PR=pairs.chosen_PR[:, place_R],
        rejected_PR=pairs.rejected_PR[:, place_R],
    )


def _without(pairs: PairRatings, is_chosen_out: _Bools, is_rejected_out: _Bools) -> PairRatings:
    """The pairs with some ratings made missing; masks broadcast to [P, R]."""
    return dataclasses.replace(
        pairs,
        chosen_PR=np.where(is_chosen_out, np.nan, pairs.chosen_PR),
        rejected_PR=np.where(is_rejected_out, np.nan, pairs.rejected_PR),
    )
