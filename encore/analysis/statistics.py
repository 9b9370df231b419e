"""What is measured of each rule: spread of its ratings, and how it ranks people's preferences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.analysis.entropy import differential_entropy_nats, miller_madow_nats, scott_bandwidth
from encore.analysis.outcomes import PairOutcomes, take_rules
from encore.analysis.pair_cells import PairCells
from encore.analysis.pair_counts import PairCounts, count_pairs
from encore.warehouse import Warehouse

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

    def under(self, policy: TiePolicy) -> float | None:
        """The accuracy under one policy."""
        values = {
            "half": self.half,
            "strict": self.strict,
            "untied": self.untied,
            "inclusive": self.inclusive,
        }
        return values[policy]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Density:
    bandwidth: float
    entropy_nats: float


#: A source and a rule; the source is None for all sources together, as in the queries.
_Key = tuple[str | None, str]


def rating_statistics(
    warehouse: Warehouse, *, rule_order: Sequence[str] | None = None
) -> tuple[SourceStatistics, ...]:
    """Statistics of every source, sorted, then of all sources together.

    Args:
        warehouse: The ratings.
        rule_order: Order of the rules; rules that it does not name follow, sorted.

    Raises:
        InputError: A rating is there more than once.
    """
    spreads = {
        (row["source"], row["rule_id"]): row
        for row in warehouse.query("rule_statistics").to_pylist()
    }
    densities = _densities(warehouse, spreads)
    sources = sorted({source for source, _ in spreads if source is not None})
    rule_ids = _ordered({rule_id for _, rule_id in spreads}, rule_order or ())
    counts = count_pairs(
        warehouse,
        sources=sources,
        levels={rule_id: _levels(spreads[None, rule_id]) for rule_id in rule_ids},
    )
    return tuple(
        _source_statistics(source, counts[source], rule_ids, spreads, densities)
        for source in (*sources, None)
    )


def _ordered(rule_ids: set[str], rule_order: Sequence[str]) -> tuple[str, ...]:
    known = [rule_id for rule_id in rule_order if rule_id in rule_ids]
    return (*known, *sorted(rule_ids.difference(known)))


def _levels(spread: Mapping[str, Any]) -> _Floats | None:
    """The levels of a rule, ascending; None where they are too many to list, or none."""
    return None if spread["levels"] is None else np.array(spread["levels"], dtype=np.float64)


def _densities(
    warehouse: Warehouse, spreads: Mapping[_Key, Mapping[str, Any]]
) -> dict[_Key, _Density]:
    """The kernel density of each source and rule that has at least two levels."""
    has_many = any(row["num_levels"] > 1 and row["levels"] is None for row in spreads.values())
    cells = warehouse.query("rule_density_cells") if has_many else None
    densities = {} if cells is None else _densities_of_cells(cells)
    for key, row in spreads.items():
        level_L = _levels(row)
        if level_L is not None and len(level_L) > 1:
            densities[key] = _density_of_levels(level_L, np.array(row["num_ratings_of_level"]))
    return densities


def _density_of_levels(level_L: _Floats, num_ratings_L: NDArray[np.int64]) -> _Density:
    bandwidth = scott_bandwidth(level_L, num_ratings_L)
    entropy_nats = differential_entropy_nats(
        (level_L - level_L[0]) / bandwidth,
        np.zeros_like(level_L),
        num_ratings_L.astype(np.float64),
        bandwidth=bandwidth,
    )
    return _Density(bandwidth=bandwidth, entropy_nats=entropy_nats)


def _densities_of_cells(cells: pa.Table) -> dict[_Key, _Density]:
    """The kernel density of each source and rule in a result of ``rule_density_cells.sql``."""
    sources, rule_ids = cells["source"].to_pylist(), cells["rule_id"].to_pylist()
    keys: list[_Key] = list(zip(sources, rule_ids, strict=True))
    starts = [place for place, key in enumerate(keys) if place == 0 or key != keys[place - 1]]
    densities = {}
    for start, stop in pairwise([*starts, len(keys)]):
        rows = cells.slice(start, stop - start)
        bandwidth = rows["bandwidth"][0].as_py()
        entropy_nats = differential_entropy_nats(
            rows["position"].to_numpy(),
            rows["variance"].to_numpy(),
            rows["num_ratings"].to_numpy().astype(float),
            bandwidth=bandwidth,
        )
        densities[keys[start]] = _Density(bandwidth=bandwidth, entropy_nats=entropy_nats)
    return densities


def _source_statistics(
    source: str | None,
    counts: PairCounts,
    rule_ids: Sequence[str],
    spreads: Mapping[_Key, Mapping[str, Any]],
    densities: Mapping[_Key, _Density],
) -> SourceStatistics:
    places = [place for place, rule_id in enumerate(rule_ids) if (source, rule_id) in spreads]
    keys: list[_Key] = [(source, rule_ids[place]) for place in places]
    outcomes = take_rules(counts.outcomes, places)
    return SourceStatistics(
        source=POOLED if source is None else source,
        rules=tuple(
            _rule_stats(spreads[key], densities.get(key), outcomes, place)
            for place, key in enumerate(keys)
        ),
        outcomes=outcomes,
        cells=tuple(counts.cells[place] for place in places),
        surprisal_variances=tuple(_surprisal_variance(spreads[key]) for key in keys),
        num_one_sided=counts.num_one_sided,
    )


def _rule_stats(
    spread: Mapping[str, Any], density: _Density | None, outcomes: PairOutcomes, place: int
) -> RuleStats:
    wins = int(outcomes.wins_R[place])
    losses = int(outcomes.losses_R[place])
    ties = int(outcomes.ties_R[place])
    num_pairs = wins + losses + ties
    entropy_nats = spread["entropy_nats"]
    return RuleStats(
        rule_id=spread["rule_id"],
        source=POOLED if spread["source"] is None else spread["source"],
        num_ratings=spread["num_ratings"],
        num_unparsed=spread["num_unparsed"],
        num_levels=spread["num_levels"],
        entropy_nats=entropy_nats,
        entropy_miller_madow_nats=None
        if entropy_nats is None
        else miller_madow_nats(
            entropy_nats, num_levels=spread["num_levels"], num_ratings=spread["num_ratings"]
        ),
        differential_entropy_nats=density.entropy_nats if density else None,
        kde_bandwidth=density.bandwidth if density else None,
        top_level=spread["top_level"],
        top_level_share=spread["top_level_share"],
        num_pairs=num_pairs,
        num_pairs_total=outcomes.num_pairs,
        tie_rate=_share(ties, num_pairs),
        accuracy=Accuracy(
            half=_share(wins + ties / 2, num_pairs),
            strict=_share(wins, num_pairs),
            untied=_share(wins, wins + losses),
            inclusive=_share(wins + ties, num_pairs),
        ),
    )


def _surprisal_variance(spread: Mapping[str, Any]) -> float | None:
    if spread["entropy_nats"] is None:
        return None
    return float(max(spread["mean_squared_surprisal"] - spread["entropy_nats"] ** 2, 0.0))


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
