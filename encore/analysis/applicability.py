"""Say how often each rule applies, where a judge may answer that it does not.

Such a rating is null and no failure. Entropy, ties, accuracy, verdict and weight are of the ratings
that are there, so of the responses to which the rule applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate
from encore.analysis.share_intervals import share_interval
from encore.warehouse import PairRatings, RuleKey, Warehouse

# Suffixes: G prompts, or pairs where no prompt has several.


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicability:
    """How often one rule applies in one source, or in all sources together.

    Shares are of the responses with a rating or with the answer that the rule does not apply. A
    failed rating says neither.

    Attributes:
        rule_id: The rule, as in the rule set.
        source: The data set, or ``all`` for all together.
        num_not_applicable: Number of responses to which the rule does not apply.
        num_pairs_not_applicable: Number of pairs with such a response.
        applies: Share of responses to which the rule applies, with its 95 % interval over prompts.
        applies_to_chosen: The share of chosen responses; None without any.
        applies_to_rejected: The share of rejected responses; None without any.
        applies_to_both: Share of pairs to whose two responses the rule applies; None without any.
    """

    rule_id: str
    source: str
    num_not_applicable: int
    num_pairs_not_applicable: int
    applies: Estimate
    applies_to_chosen: float | None
    applies_to_rejected: float | None
    applies_to_both: float | None


def applicability_rows(warehouse: Warehouse) -> dict[RuleKey, Mapping[str, Any]]:
    """Return the rows of ``rule_applicability.sql`` by source and rule; empty if all rules apply.

    Pairs are counted in parts, whose counts add up.
    """
    if not warehouse.has_rules_not_applying:
        return {}
    parts = [*warehouse.query_parts("applicability_counts")]
    warehouse.keep_rows("applicability_counts", pa.concat_tables(parts))
    return warehouse.rows_by_rule("rule_applicability")


def applicability_of(
    row: Mapping[str, Any], *, source: str, pairs: PairRatings | None, rule_index: int
) -> Applicability:
    """Return the applicability of a rule with its interval.

    Args:
        row: Row of ``rule_applicability.sql``.
        source: Name of the source.
        pairs: Ratings of every pair, if some prompts have several; else pairs are independent.
        rule_index: Index of the rule in them.
    """
    applies_G, known_G = _by_pair(row) if pairs is None else _by_prompt(pairs, rule_index)
    num_known = row["num_chosen"] + row["num_rejected"]
    num_applies = row["num_chosen_applies"] + row["num_rejected_applies"]
    return Applicability(
        rule_id=row["rule_id"],
        source=source,
        num_not_applicable=num_known - num_applies,
        num_pairs_not_applicable=row["num_pairs_not_applicable"],
        applies=share_interval(applies_G, known_G),
        **{name: row[name] for name in _SHARES},
    )


_SHARES = ("applies_to_chosen", "applies_to_rejected", "applies_to_both")


def _by_pair(row: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each pair how many responses the rule applies to, and of how many it is known."""
    num_both, num_neither = row["num_both_apply"], row["num_neither_applies"]
    num_one = row["num_pairs"] - num_both - num_neither
    # Pairs with one known answer.
    num_single = row["num_chosen"] + row["num_rejected"] - 2 * row["num_pairs"]
    num_single_applies = (
        row["num_chosen_applies"] + row["num_rejected_applies"] - 2 * num_both - num_one
    )
    numbers = (num_both, num_one, num_neither, num_single_applies, num_single - num_single_applies)
    return np.repeat([2, 1, 0, 1, 0], numbers), np.repeat([2, 2, 2, 1, 1], numbers)


def _by_prompt(pairs: PairRatings, rule_index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the same for each prompt, over all its pairs."""
    applies_P = (~np.isnan(pairs.rating_2PR[:, :, rule_index])).sum(axis=0)
    known_P = applies_P.copy()
    if pairs.not_applicable_2PR is not None:
        known_P += pairs.not_applicable_2PR[:, :, rule_index].sum(axis=0)
    group_P = pairs.group_P
    applies_G, known_G = (
        np.bincount(group_P, weights=number_P).astype(np.int64) for number_P in (applies_P, known_P)
    )
    return applies_G, known_G
