"""Measure each rule: the spread of its ratings, and how it ranks people's preferences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from encore.analysis.applicability import Applicability, applicability_of, applicability_rows
from encore.analysis.entropy import differential_entropy_nats, miller_madow_nats
from encore.analysis.pair_counts import PairCounts, count_pairs
from encore.warehouse import PairRatings, RuleKey, Warehouse, open_warehouse, read_pair_ratings

_Floats = NDArray[np.float64]

#: Value of ``source`` in statistics over all sources together.
POOLED = "all"

TiePolicy = Literal["half", "strict", "untied", "inclusive"]
TIE_POLICIES: tuple[TiePolicy, ...] = ("half", "strict", "untied", "inclusive")
EntropyKind = Literal["discrete", "differential"]
ENTROPY_KINDS: tuple[EntropyKind, ...] = ("discrete", "differential")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Share of pairs whose chosen response is rated higher, under each tie policy.

    A share is None where there is no pair to count.

    Attributes:
        half: Accuracy if a tie counts one half.
        strict: Accuracy if a tie is a miss.
        untied: Accuracy over pairs without a tie.
        inclusive: Accuracy if a tie is a hit.
    """

    half: float | None
    strict: float | None
    untied: float | None
    inclusive: float | None

    @classmethod
    def from_counts(cls, *, wins: int, ties: int, losses: int) -> Accuracy:
        """Return the accuracies for these numbers of pairs."""
        hits = hits_by_policy(wins, ties, losses)
        return cls(**{policy: _share(*hits_and_total) for policy, hits_and_total in hits.items()})

    def for_policy(self, policy: TiePolicy) -> float | None:
        """Return the accuracy under one tie policy."""
        accuracy: float | None = getattr(self, policy)
        return accuracy


def hits_by_policy(wins: Any, ties: Any, losses: Any) -> dict[TiePolicy, tuple[Any, Any]]:
    """Return the hits and the counted pairs under each tie policy, for numbers or arrays."""
    total = wins + ties + losses
    return {
        "half": (wins + ties / 2, total),
        "strict": (wins, total),
        "untied": (wins, total - ties),
        "inclusive": (wins + ties, total),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStats:
    """Statistics of one rule in one source, or in all sources together.

    Attributes:
        rule_id: The rule, as in the rule set.
        source: The data set, or `POOLED` for all together.
        num_ratings: Ratings that are not null, of chosen and rejected responses.
        num_unparsed: Number of null ratings, without those whose rule does not apply.
        num_levels: Number of distinct ratings.
        entropy_nats: Entropy of the ratings in nats; None without ratings.
        entropy_miller_madow_nats: The entropy corrected for the bias of N ratings, to first order
            (Miller 1955): a sample's entropy is on average (levels - 1) / (2 N) too low. Levels
            that did not occur are not counted, so some bias remains.
        differential_entropy_nats: Entropy of the ratings' kernel density; None for fewer than two
            levels.
        kde_bandwidth: Scott's rule: sd (ddof 1) * num_ratings^(-1/5), in units of rating.
        top_level: The most frequent rating, the lowest of equally frequent ones.
        top_level_share: Share of ``num_ratings`` that are ``top_level``.
        num_pairs: Pairs with both responses rated.
        num_pairs_total: All pairs of the source, rated fully or not.
        tie_rate: Share of ``num_pairs`` whose two ratings are equal; None without pairs.
        accuracy: Accuracy under each tie policy, over ``num_pairs``.
    """

    rule_id: str
    source: str
    num_ratings: int
    num_unparsed: int
    num_levels: int
    entropy_nats: float | None
    entropy_miller_madow_nats: float | None = None
    differential_entropy_nats: float | None
    kde_bandwidth: float | None
    top_level: float | None = None
    top_level_share: float | None = None
    num_pairs: int
    num_pairs_total: int
    tie_rate: float | None
    accuracy: Accuracy

    @property
    def coverage(self) -> float:
        """Return the share of the source's pairs whose two responses the rule rated."""
        return self.num_pairs / self.num_pairs_total

    @property
    def is_constant(self) -> bool:
        """Return True if all ratings are equal; of expected ones, if labels and pairs are."""
        return self.num_levels == 1 and self.tie_rate in (None, 1.0)

    def entropy(self, kind: EntropyKind) -> float | None:
        """Return the entropy of one kind, in nats."""
        return self.entropy_nats if kind == "discrete" else self.differential_entropy_nats


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """Statistics of all rules of one source, and the counts behind them, in the rules' order.

    Attributes:
        source: The data set, or `POOLED` for all together.
        rules: Statistics of each rule.
        counts: Counts of pairs by outcome and by ratings.
        mean_squared_surprisals: For each rule the mean of ln(1 / p)² over its ratings, p being the
            share of the rating's level; None without ratings.
        num_prompts: Number of prompts that the pairs are of; None if prompts are not known, so that
            pairs are taken as independent.
        pairs: Ratings of every pair with its prompt, if some prompts have several pairs. They
            belong together in every interval. None if each pair is the only one of its prompt.
        by_level: The same of the levels that the judge gave, if its expected ratings are read.
        applicability: How often each rule applies; empty if no judge said that one does not.
    """

    source: str
    rules: tuple[RuleStats, ...]
    counts: PairCounts
    mean_squared_surprisals: tuple[float | None, ...]
    num_prompts: int | None = None
    pairs: PairRatings | None = None
    by_level: SourceStatistics | None = None
    applicability: tuple[Applicability, ...] = ()

    def num_missing_pairs(self, rule_index: int) -> int:
        """Return the number of pairs that lack a rating of a rule that may apply to them."""
        rule = self.rules[rule_index]
        num_missing = rule.num_pairs_total - rule.num_pairs
        if self.applicability:
            num_missing -= self.applicability[rule_index].num_pairs_not_applicable
        return num_missing

    def outcomes_by_prompt(self, rule_index: int) -> NDArray[np.int64]:
        """Return the wins, ties, losses and missing ratings of a rule in each prompt, shape [4, G].

        It may be called if prompts have several pairs.
        """
        assert self.pairs is not None
        margin_P, group_P = self.pairs.margin_PR[:, rule_index], self.pairs.group_P
        is_failed_P = self.pairs.is_failed_PR[:, rule_index]
        num_groups = int(group_P.max(initial=-1)) + 1
        is_outcome_4P = (margin_P > 0, margin_P == 0, margin_P < 0, is_failed_P)
        return np.stack(
            [np.bincount(group_P[is_P], minlength=num_groups) for is_P in is_outcome_4P]
        )

    @property
    def correlation_RR(self) -> _Floats:
        """Return the correlation of the rules' ratings within pairs, shape [R, R].

        Each rating is taken less the mean of its pair's two ratings. What makes all ratings of a
        prompt high or low under two rules is therefore no correlation, and the labels do not enter.
        It is the sum of the products of two margins, by the root of the product of their sums of
        squares, over the pairs that both rules rated fully. NaN where a rule has ties only.
        """
        # Sums of floats depend on the order of rows in their last digits.
        return margin_correlations(self.counts.margin_sums_B2RR.sum(axis=0)).round(10)

    def correlation_intervals(self) -> tuple[_Floats, _Floats, _Floats]:
        """Return `correlation_RR` with the ends of its 95 % intervals, each of shape [R, R].

        On Fisher's scale, atanh, the error is that of leaving out one block of pairs after another
        (jackknife); the width is that of Student's t. A correlation of 1 has no width.
        """
        from scipy.special import stdtrit

        block_B2RR, correlation_RR = self.counts.margin_sums_B2RR, self.correlation_RR
        block_B2RR = block_B2RR[block_B2RR.any(axis=(1, 2, 3))]
        num_blocks = len(block_B2RR)
        if num_blocks < 2:
            ends_RR = np.where(np.isnan(correlation_RR), np.nan, 1.0)
            return correlation_RR, -ends_RR, ends_RR
        left_out_BRR = margin_correlations(block_B2RR.sum(axis=0) - block_B2RR)
        with np.errstate(divide="ignore", invalid="ignore"):
            change_BRR = np.nan_to_num(left_out_BRR - correlation_RR)
            change_BRR -= change_BRR.mean(axis=0)
            error_RR = np.sqrt((num_blocks - 1) * (change_BRR**2).mean(axis=0))
            reach_RR = float(stdtrit(num_blocks - 1, 0.975)) * error_RR / (1 - correlation_RR**2)
            centre_RR = np.arctanh(correlation_RR)
            low_RR, high_RR = np.tanh(centre_RR - reach_RR), np.tanh(centre_RR + reach_RR)
        is_whole_RR = np.abs(correlation_RR) == 1
        return (
            correlation_RR,
            np.where(is_whole_RR, correlation_RR, low_RR),
            np.where(is_whole_RR, correlation_RR, high_RR),
        )


def margin_correlations(margin_sums_2RR: _Floats) -> _Floats:
    """Return the correlation of two rules' margins, taken about 0, shape [..., R, R].

    Args:
        margin_sums_2RR: Sums of products and of squares, as in
            `encore.analysis.pair_counts.PairCounts.margin_sums_B2RR`, shape [..., 2, R, R].
    """
    product_RR, square_RR = np.moveaxis(margin_sums_2RR, -3, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_RR = product_RR / np.sqrt(square_RR * np.swapaxes(square_RR, -1, -2))
    return np.asarray(np.clip(ratio_RR, -1, 1), dtype=np.float64)


#: Columns of ``rule_statistics.sql`` and ``rule_outcomes.sql`` that are fields of `RuleStats`.
_COLUMNS = (
    *("rule_id", "num_ratings", "num_unparsed", "num_levels"),
    *("entropy_nats", "top_level", "top_level_share", "num_pairs", "tie_rate"),
)


#: Fields of `RuleStats` that are of the judge's levels, whatever kind of rating is read.
_LEVEL_FIELDS = (
    *("num_levels", "top_level", "top_level_share"),
    *("entropy_nats", "entropy_miller_madow_nats"),
)


def rating_statistics(warehouse: Warehouse) -> tuple[SourceStatistics, ...]:
    """Return the statistics of each source, sorted by name, then of all sources together.

    Of expected ratings, the entropies are those of the levels: numbers that hardly repeat have
    none that says anything.

    Raises:
        InputError: A pair, response and rule has more than one rating.
    """
    statistics = _statistics(warehouse)
    if warehouse.ratings.kind == "level":
        return statistics
    with open_warehouse(warehouse.ratings.by_level) as levels:
        parts = zip(statistics, _statistics(levels), strict=True)
    return tuple(_with_levels(part, by_level) for part, by_level in parts)


def _with_levels(part: SourceStatistics, by_level: SourceStatistics) -> SourceStatistics:
    """Return the statistics of a source's expected ratings with the entropies of its levels."""
    rules = (
        dataclasses.replace(rule, **{name: getattr(level, name) for name in _LEVEL_FIELDS})
        for rule, level in zip(part.rules, by_level.rules, strict=True)
    )
    return dataclasses.replace(part, rules=tuple(rules), by_level=by_level)


def _statistics(warehouse: Warehouse) -> tuple[SourceStatistics, ...]:
    warehouse.keep("rating_levels")
    spreads = warehouse.rows_by_rule("rule_statistics")
    sorted_rule_ids = sorted({rule_id for _, rule_id in spreads})
    rule_ids = warehouse.in_order(sorted_rule_ids)
    counts_by_source = count_pairs(warehouse)
    outcomes = warehouse.rows_by_rule("rule_outcomes")
    applicability = applicability_rows(warehouse)
    densities = _densities(warehouse)
    pairs, are_prompts_known = _pairs_with_prompts(
        warehouse, rule_ids, num_pairs=counts_by_source[None].num_pairs
    )
    statistics = []
    for source in (*sorted(name for name in counts_by_source if name is not None), None):
        keys: list[RuleKey] = [
            (source, rule_id) for rule_id in rule_ids if (source, rule_id) in spreads
        ]
        counts = counts_by_source[source].select_rules(
            [sorted_rule_ids.index(rule_id) for _, rule_id in keys]
        )
        own_pairs, num_prompts = None, counts.num_pairs if are_prompts_known else None
        if pairs is not None:
            own_pairs = pairs if source is None else pairs.take(pairs.source_P == source)
            own_pairs = own_pairs.select_rules([rule_id for _, rule_id in keys])
            num_groups = len(np.unique(own_pairs.group_P))
            num_prompts = num_groups if are_prompts_known else None
            if num_groups < own_pairs.num_pairs:
                counts = counts.by_prompt(own_pairs)
            else:
                own_pairs = None
        rules = [
            _rule_stats(
                {**spreads[key], **outcomes[key]},
                densities.get(key, (None, None)),
                num_pairs_total=counts.num_pairs,
            )
            for key in keys
        ]
        statistics.append(
            SourceStatistics(
                source=POOLED if source is None else source,
                rules=tuple(rules),
                counts=counts,
                mean_squared_surprisals=tuple(
                    spreads[key]["mean_squared_surprisal"] for key in keys
                ),
                num_prompts=num_prompts,
                pairs=own_pairs,
                applicability=tuple(
                    applicability_of(
                        applicability[key],
                        source=POOLED if source is None else source,
                        pairs=own_pairs,
                        rule_index=rule_index,
                    )
                    for rule_index, key in enumerate(keys)
                    if applicability
                ),
            )
        )
    return tuple(statistics)


def _pairs_with_prompts(
    warehouse: Warehouse, rule_ids: Sequence[str], *, num_pairs: int
) -> tuple[PairRatings | None, bool]:
    """Return all pairs if some share a prompt, else None; and True if all prompts are known.

    All ratings are held in memory only if prompts repeat: 16 bytes per pair and rule.
    """
    pair_key_N, prompt_key_N = warehouse.known_prompts
    if len(np.unique(prompt_key_N)) == len(pair_key_N):
        return None, 0 < num_pairs <= len(pair_key_N)
    pairs = read_pair_ratings(warehouse, rule_ids=rule_ids)
    return (None if pairs.prompt_P is None else pairs), pairs.grouped_by == "prompt"


def _densities(warehouse: Warehouse) -> dict[RuleKey, tuple[float, float]]:
    """Return bandwidth and entropy of the kernel density of each rule with at least two levels."""
    cells = warehouse.query("rule_density_cells")
    keys = list(zip(cells["source"].to_pylist(), cells["rule_id"].to_pylist(), strict=True))
    columns = ("position", "variance", "num_ratings", "bandwidth")
    position_C, variance_C, num_ratings_C, bandwidth_C = (
        np.asarray(np.from_dlpack(cells[column].combine_chunks()))  # `to_numpy` imports pandas
        for column in columns
    )
    densities = {}
    start = 0
    for key, rows in groupby(keys):  # the cells of a source and rule follow each other
        stop = start + sum(1 for _ in rows)
        bandwidth = float(bandwidth_C[start])
        entropy_nats = differential_entropy_nats(
            position_C[start:stop],
            variance_C[start:stop],
            num_ratings_C[start:stop].astype(np.float64),
            bandwidth=bandwidth,
        )
        densities[key] = (bandwidth, entropy_nats)
        start = stop
    return densities


def _rule_stats(
    row: Mapping[str, Any],
    density: tuple[float, float] | tuple[None, None],
    *,
    num_pairs_total: int,
) -> RuleStats:
    """Return the statistics of a row of ``rule_statistics.sql`` and ``rule_outcomes.sql``."""
    corrected_nats = None
    if row["entropy_nats"] is not None:
        corrected_nats = miller_madow_nats(
            row["entropy_nats"], num_levels=row["num_levels"], num_ratings=row["num_ratings"]
        )
    return RuleStats(
        **{column: row[column] for column in _COLUMNS},
        source=POOLED if row["source"] is None else row["source"],
        entropy_miller_madow_nats=corrected_nats,
        kde_bandwidth=density[0],
        differential_entropy_nats=density[1],
        num_pairs_total=num_pairs_total,
        accuracy=Accuracy(**{policy: row[f"{policy}_accuracy"] for policy in TIE_POLICIES}),
    )


def _share(part: float, total: int) -> float | None:
    return part / total if total else None
