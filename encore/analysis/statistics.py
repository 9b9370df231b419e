"""What is measured of each rule: spread of its ratings, and how it ranks people's preferences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from encore.analysis.entropy import differential_entropy_nats, miller_madow_nats, scott_bandwidth
from encore.analysis.pair_counts import PairCells, PairCounts, PairOutcomes, count_pairs
from encore.warehouse import Ratings, Warehouse

# Suffix: L levels.

_Floats = NDArray[np.float64]

#: The ``source`` of statistics over all sources together.
POOLED = "all"

TiePolicy = Literal["half", "strict", "untied", "inclusive"]
TIE_POLICIES: tuple[TiePolicy, ...] = ("half", "strict", "untied", "inclusive")
EntropyKind = Literal["discrete", "differential"]
ENTROPY_KINDS: tuple[EntropyKind, ...] = ("discrete", "differential")


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
        total = wins + ties + losses
        return cls(
            half=_share(wins + ties / 2, total),
            strict=_share(wins, total),
            untied=_share(wins, total - ties),
            inclusive=_share(wins + ties, total),
        )

    def under(self, policy: TiePolicy) -> float | None:
        """The accuracy under one policy."""
        found: float | None = getattr(self, policy)
        return found


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
        entropy_miller_madow_nats: The same, corrected for the finite number of ratings.
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
        outcomes: How pairs came out.
        cells: How often each two ratings stand against each other; None for a rule of too many
            levels.
        surprisal_variances: Variance of ln(1 / share of its level) over ratings; None without any.
        num_one_sided: Pairs with ratings of one response only.
    """

    source: str
    rules: tuple[RuleStats, ...]
    outcomes: PairOutcomes
    cells: tuple[PairCells | None, ...]
    surprisal_variances: tuple[float | None, ...]
    num_one_sided: int


#: A row of a query.
_Row = Mapping[str, Any]
#: A source and a rule; the source is None for all sources together, as in the queries.
_Key = tuple[str | None, str]
#: Bandwidth and entropy of a kernel density; None for fewer than two levels.
_Density = tuple[float, float] | tuple[None, None]


def read_statistics(ratings: Ratings) -> tuple[SourceStatistics, ...]:
    """Statistics of each source of some ratings, then of all together."""
    with Warehouse(ratings) as warehouse:
        return rating_statistics(warehouse)


def rating_statistics(warehouse: Warehouse) -> tuple[SourceStatistics, ...]:
    """Statistics of every source, sorted, then of all sources together.

    Raises:
        InputError: A rating is there more than once.
    """
    spreads = {_key(row): row for row in warehouse.query("rule_statistics").to_pylist()}
    densities = _densities(warehouse, spreads)
    sources = sorted({source for source, _ in spreads if source is not None})
    rule_ids = warehouse.in_order({rule_id for _, rule_id in spreads})
    counts = count_pairs(
        warehouse,
        sources=sources,
        levels={rule_id: _levels(spreads[None, rule_id]) for rule_id in rule_ids},
    )
    return tuple(
        _source_statistics(source, counts[source], rule_ids, spreads, densities)
        for source in (*sources, None)
    )


def _key(row: _Row) -> _Key:
    return row["source"], row["rule_id"]


def _levels(spread: _Row) -> _Floats | None:
    """The levels of a rule, ascending; None where they are too many to list, or none."""
    return None if spread["levels"] is None else np.array(spread["levels"], dtype=np.float64)


def _densities(warehouse: Warehouse, spreads: Mapping[_Key, _Row]) -> dict[_Key, _Density]:
    """The kernel density of each source and rule that has at least two levels."""
    densities: dict[_Key, _Density] = {}
    if any(row["num_levels"] > 1 and row["levels"] is None for row in spreads.values()):
        cells = warehouse.query("rule_density_cells")
        names = ("position", "variance", "num_ratings", "bandwidth")
        columns = [cells[name].to_numpy() for name in names]
        keys = zip(cells["source"].to_pylist(), cells["rule_id"].to_pylist(), strict=True)
        for key, group in groupby(enumerate(keys), lambda item: item[1]):
            places = [place for place, _ in group]
            *of_rule, bandwidth_C = (column[places[0] : places[-1] + 1] for column in columns)
            densities[key] = _density(*of_rule, bandwidth=float(bandwidth_C[0]))
    for key, row in spreads.items():
        level_L = _levels(row)
        if level_L is not None and len(level_L) > 1:
            num_ratings_L = np.array(row["num_ratings_of_level"])
            bandwidth = scott_bandwidth(level_L, num_ratings_L)
            position_L = (level_L - level_L[0]) / bandwidth
            densities[key] = _density(
                position_L, np.zeros_like(level_L), num_ratings_L, bandwidth=bandwidth
            )
    return densities


def _density(
    position_C: _Floats, variance_C: _Floats, num_ratings_C: NDArray[np.int64], *, bandwidth: float
) -> _Density:
    entropy_nats = differential_entropy_nats(
        position_C, variance_C, num_ratings_C.astype(np.float64), bandwidth=bandwidth
    )
    return bandwidth, entropy_nats


def _source_statistics(
    source: str | None,
    counts: PairCounts,
    rule_ids: Sequence[str],
    spreads: Mapping[_Key, _Row],
    densities: Mapping[_Key, _Density],
) -> SourceStatistics:
    places = [place for place, rule_id in enumerate(rule_ids) if (source, rule_id) in spreads]
    keys: list[_Key] = [(source, rule_ids[place]) for place in places]
    outcomes = counts.outcomes.of_rules(places)
    return SourceStatistics(
        source=POOLED if source is None else source,
        rules=tuple(
            _rule_stats(spreads[key], densities.get(key, (None, None)), outcomes, place)
            for place, key in enumerate(keys)
        ),
        outcomes=outcomes,
        cells=tuple(counts.cells[place] for place in places),
        surprisal_variances=tuple(_surprisal_variance(spreads[key]) for key in keys),
        num_one_sided=counts.num_one_sided,
    )


def _rule_stats(spread: _Row, density: _Density, outcomes: PairOutcomes, place: int) -> RuleStats:
    wins, losses, ties = (
        int(count_R[place]) for count_R in (outcomes.wins_R, outcomes.losses_R, outcomes.ties_R)
    )
    num_pairs = wins + losses + ties
    kept = ("rule_id", "num_ratings", "num_unparsed", "num_levels", "top_level", "top_level_share")
    return RuleStats(
        **{name: spread[name] for name in kept},
        source=POOLED if spread["source"] is None else spread["source"],
        entropy_nats=spread["entropy_nats"],
        entropy_miller_madow_nats=miller_madow_nats(
            spread["entropy_nats"],
            num_levels=spread["num_levels"],
            num_ratings=spread["num_ratings"],
        ),
        kde_bandwidth=density[0],
        differential_entropy_nats=density[1],
        num_pairs=num_pairs,
        num_pairs_total=outcomes.num_pairs,
        tie_rate=_share(ties, num_pairs),
        accuracy=Accuracy.of(wins=wins, ties=ties, losses=losses),
    )


def _surprisal_variance(spread: _Row) -> float | None:
    if spread["entropy_nats"] is None:
        return None
    return float(max(spread["mean_squared_surprisal"] - spread["entropy_nats"] ** 2, 0.0))


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
