"""What is measured of each rule: spread of its ratings, and how it ranks people's preferences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from encore.analysis.entropy import differential_entropy_nats, scott_bandwidth
from encore.analysis.pair_counts import PairCounts, count_pairs
from encore.warehouse import Warehouse

_Floats = NDArray[np.float64]

#: The ``source`` of statistics over all sources together.
POOLED = "all"

TiePolicy = Literal["half", "strict", "untied", "inclusive"]
TIE_POLICIES: tuple[TiePolicy, ...] = ("half", "strict", "untied", "inclusive")
EntropyKind = Literal["discrete", "differential"]
ENTROPY_KINDS: tuple[EntropyKind, ...] = ("discrete", "differential")
#: Two-sided 95 % quantile of the normal distribution.
Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How often the chosen response is rated higher, under each way to count ties.

    half: a tie counts one half. strict: as a miss. untied: not at all. inclusive: as a hit.
    None where there is no pair to count.
    """

    half: float | None
    strict: float | None
    untied: float | None
    inclusive: float | None

    @classmethod
    def of(cls, *, wins: int, ties: int, losses: int) -> Accuracy:
        """The accuracies of so many pairs."""
        hits = hits_by_policy(wins, ties, losses)
        return cls(**{policy: _share(*of_policy) for policy, of_policy in hits.items()})

    def for_policy(self, policy: TiePolicy) -> float | None:
        """The accuracy under one policy."""
        found: float | None = getattr(self, policy)
        return found


def hits_by_policy(wins: Any, ties: Any, losses: Any) -> dict[TiePolicy, tuple[Any, Any]]:
    """What counts as right, and of how many pairs, under each policy; of numbers or of arrays."""
    total = wins + ties + losses
    return {
        "half": (wins + ties / 2, total),
        "strict": (wins, total),
        "untied": (wins, total - ties),
        "inclusive": (wins + ties, total),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStats:
    """One rule in one source, or in all together.

    Attributes:
        rule_id: The rule.
        source: The data set; `POOLED` for all.
        num_ratings: Ratings that are not null, of chosen and rejected responses.
        num_unparsed: Null ratings.
        num_levels: Distinct ratings.
        entropy_nats: Entropy of the ratings; None without any.
        entropy_miller_madow_nats: The same without the bias of N ratings, to first order (Miller
            1955): their entropy is on average (levels - 1) / (2 N) below that of what they were
            drawn from. Levels that did not come up are not counted, so some bias stays.
        differential_entropy_nats: Entropy of their kernel density; None for fewer than two levels.
        kde_bandwidth: Scott's rule: sd (ddof 1) * num_ratings^(-1/5), in units of rating.
        top_level: The most frequent rating, the lowest of equally frequent ones.
        top_level_share: Its share of ``num_ratings``.
        num_pairs: Pairs with both responses rated.
        num_pairs_total: All pairs of the source.
        tie_rate: Share of ``num_pairs`` whose two ratings are equal; None without any.
        accuracy: Under each tie policy, over ``num_pairs``.
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
        """Share of the source's pairs whose two responses the rule rated."""
        return self.num_pairs / self.num_pairs_total

    def entropy(self, kind: EntropyKind) -> float | None:
        """The entropy of one kind, in nats."""
        return self.entropy_nats if kind == "discrete" else self.differential_entropy_nats


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """The rules of one source in their order, and the counts behind them, in that order.

    Attributes:
        source: The data set; `POOLED` for all.
        rules: Their statistics.
        counts: How pairs came out.
        mean_squared_surprisals: Mean square of ln(1 / share of its level) over ratings; None where
            there is none.
    """

    source: str
    rules: tuple[RuleStats, ...]
    counts: PairCounts
    mean_squared_surprisals: tuple[float | None, ...]


#: A row of ``rule_statistics.sql``.
_Row = Mapping[str, Any]
#: A source and a rule; the source is None for all sources together, as in the queries.
_Key = tuple[str | None, str]


def rating_statistics(warehouse: Warehouse) -> tuple[SourceStatistics, ...]:
    """Statistics of every source, sorted, then of all sources together.

    Raises:
        InputError: A rating is there more than once.
    """
    rows = warehouse.query("rule_statistics").to_pylist()
    spreads: dict[_Key, _Row] = {(row["source"], row["rule_id"]): row for row in rows}
    densities = _densities(warehouse, spreads)
    sources = sorted({source for source, _ in spreads if source is not None})
    rule_ids = warehouse.in_order({rule_id for _, rule_id in spreads})
    # None: too many levels to list, or none.
    listed = {rule_id: spreads[None, rule_id]["levels"] for rule_id in sorted(rule_ids)}
    levels = {rule_id: None if one is None else np.array(one) for rule_id, one in listed.items()}
    found = count_pairs(warehouse, sources=sources, levels=levels)
    statistics = []
    for source in (*sources, None):
        keys: list[_Key] = [(source, one) for one in rule_ids if (source, one) in spreads]
        counts = found[source].select_rules([[*levels].index(rule_id) for _, rule_id in keys])
        rules = [
            _rule_stats(spreads[key], densities.get(key, (None, None)), counts, place)
            for place, key in enumerate(keys)
        ]
        statistics.append(
            SourceStatistics(
                source=POOLED if source is None else source,
                rules=tuple(rules),
                counts=counts,
                mean_squared_surprisals=tuple(
                    spreads[key]["mean_squared_surprisal"] for key in keys
                ),
            )
        )
    return tuple(statistics)


def _densities(
    warehouse: Warehouse, spreads: Mapping[_Key, _Row]
) -> dict[_Key, tuple[float, float]]:
    """Bandwidth and entropy of each kernel density: of rules that have at least two levels."""
    names = ("position", "variance", "num_ratings", "bandwidth")
    several = {key: row for key, row in spreads.items() if row["num_levels"] > 1}
    if any(row["levels"] is None for row in several.values()):
        cells = warehouse.query("rule_density_cells")
    densities = {}
    for (source, rule_id), row in several.items():
        if row["levels"] is None:
            sources = cells["source"]
            is_own = pc.is_null(sources) if source is None else pc.equal(sources, source)
            own = cells.filter(pc.and_(is_own, pc.equal(cells["rule_id"], rule_id)))
            position_C, variance_C, number_C, (bandwidth, *_) = (own[n].to_numpy() for n in names)
        else:
            level_L, number_C = np.array(row["levels"]), np.array(row["num_ratings_of_level"])
            bandwidth = scott_bandwidth(level_L, number_C)
            position_C, variance_C = (level_L - level_L[0]) / bandwidth, np.zeros_like(level_L)
        entropy_nats = differential_entropy_nats(
            position_C, variance_C, number_C.astype(np.float64), bandwidth=bandwidth
        )
        densities[source, rule_id] = (float(bandwidth), entropy_nats)
    return densities


def _rule_stats(
    spread: _Row, density: tuple[float, float] | tuple[None, None], counts: PairCounts, place: int
) -> RuleStats:
    wins, losses, ties = (
        int(count_R[place]) for count_R in (counts.wins_R, counts.losses_R, counts.ties_R)
    )
    num_pairs = wins + losses + ties
    corrected_nats = spread["entropy_nats"]
    if corrected_nats is not None:
        corrected_nats += (spread["num_levels"] - 1) / (2 * spread["num_ratings"])
    names = ("rule_id", "num_ratings", "num_unparsed", "num_levels")
    kept = {name: spread[name] for name in (*names, "entropy_nats", "top_level", "top_level_share")}
    return RuleStats(
        **kept,
        source=POOLED if spread["source"] is None else spread["source"],
        entropy_miller_madow_nats=corrected_nats,
        kde_bandwidth=density[0],
        differential_entropy_nats=density[1],
        num_pairs=num_pairs,
        num_pairs_total=counts.num_pairs,
        tie_rate=_share(ties, num_pairs),
        accuracy=Accuracy.of(wins=wins, ties=ties, losses=losses),
    )


def middle_95(value_D: _Floats) -> tuple[float, float]:
    """The ends of the middle 95 % of some draws."""
    low, high = np.quantile(value_D, [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return float(low), float(high)


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
