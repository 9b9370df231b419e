"""The statistics computed again in numpy from their definitions.

It shares no code with `encore`; it is slow and simple on purpose.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.stats

Row = tuple[str, str, str, str, float | None]


def rows_of(table: pa.Table) -> list[Row]:
    """Return (pair_id, source, response, rule_id, rating) of every row."""
    names = ("pair_id", "source", "response", "rule_id", "rating")
    columns = [table[name].to_pylist() for name in names]
    return [(*ids, None if x is None else float(x)) for *ids, x in zip(*columns, strict=True)]


def reference_analysis(rows: Sequence[Row], *, by_source: bool = False) -> dict[str, Any]:
    """Return the expected JSON of ``encore analyze --json``, without the null band."""
    groups = {"all": list(rows)}
    if by_source:
        sources = sorted({row[1] for row in rows})
        groups = {**{s: [row for row in rows if row[1] == s] for s in sources}, **groups}
    rules = {name: _rules(group, source=name) for name, group in groups.items()}
    return {
        "rules": [rule for group in rules.values() for rule in group],
        "correlation": [
            _correlation(group, source=name, entropy=entropy, accuracy=accuracy)
            for name, group in rules.items()
            for entropy in ("discrete", "differential")
            for accuracy in ("half", "strict", "untied", "inclusive")
        ],
    }


def reference_alpha(labels: np.ndarray) -> float:
    """Return Krippendorff's ordinal alpha by its definition, a pair of labels at a time.

    Args:
        labels: One row per rater, one column per unit, NaN where there is no label.
    """
    units = [unit[~np.isnan(unit)].tolist() for unit in labels.T]
    units = [unit for unit in units if len(unit) >= 2]
    counts = Counter(label for unit in units for label in unit)
    total = sum(counts.values())

    def distance(first: float, second: float) -> float:
        low, high = sorted((first, second))
        between = sum(count for label, count in counts.items() if low <= label <= high)
        return (between - (counts[first] + counts[second]) / 2) ** 2 if low < high else 0.0

    observed = sum(
        sum(itertools.starmap(distance, itertools.product(unit, unit))) / (len(unit) - 1)
        for unit in units
    )
    expected = sum(
        counts[first] * counts[second] * distance(first, second)
        for first, second in itertools.product(counts, counts)
    )
    return 1 - (total - 1) * observed / expected


def reference_weights(rows: Sequence[Row], *, tau: float) -> dict[str, float]:
    """Return ENCORE's weight of each rule: exp(-H / tau), normalised."""
    entropies = {rule["rule_id"]: rule["entropy_nats"] for rule in _rules(rows, source="all")}
    mass = np.exp(-np.array(list(entropies.values())) / tau)
    return dict(zip(entropies, (mass / mass.sum()).tolist(), strict=True))


def reference_margin_sds(rows: Sequence[Row]) -> dict[str, float]:
    """Return the standard deviation (ddof 1) of rating(chosen) - rating(rejected) by rule."""
    return {
        rule_id: float(np.std(margins, ddof=1)) if len(margins) > 1 else math.nan
        for rule_id, margins in _margins(rows).items()
    }


def reference_signs(rows: Sequence[Row], rule_ids: Sequence[str]) -> np.ndarray:
    """Return sign(chosen - rejected) of each (source, pair) and rule; 0 without a rating."""
    pairs = pairs_of(rows)
    keys = sorted({(source, pair) for source, pair, _ in pairs})
    sign = np.zeros((len(keys), len(rule_ids)))
    for i, (source, pair) in enumerate(keys):
        for k, rule_id in enumerate(rule_ids):
            chosen, rejected = pairs.get((source, pair, rule_id), (None, None))
            if chosen is not None and rejected is not None:
                sign[i, k] = np.sign(chosen - rejected)
    return sign


def kde_entropy(ratings: np.ndarray) -> float | None:
    """Return the differential entropy of the Gaussian kernel density, by direct summation.

    Scott's rule; a grid of 1/40 bandwidth that ends 12 bandwidths beyond the ratings.
    """
    levels, counts = np.unique(ratings, return_counts=True)
    if len(levels) < 2:
        return None
    h = np.std(ratings, ddof=1) * len(ratings) ** (-1 / 5)
    x = np.arange(levels[0] - 12 * h, levels[-1] + 12 * h, h / 40)
    density = np.zeros_like(x)
    for level, count in zip(levels, counts, strict=True):
        density += count / len(ratings) * scipy.stats.norm.pdf(x, loc=level, scale=h)
    terms = np.where(density > 0, density * np.log(np.where(density > 0, density, 1.0)), 0.0)
    return float(-terms.sum() * h / 40)


def pairs_of(rows: Sequence[Row]) -> dict[tuple[str, str, str], list[float | None]]:
    """Return the ratings of the chosen and the rejected response, by source, pair and rule."""
    pairs: dict[tuple[str, str, str], list[float | None]] = defaultdict(lambda: [None, None])
    for pair_id, source, response, rule_id, rating in rows:
        pairs[source, pair_id, rule_id][0 if response == "chosen" else 1] = rating
    return pairs


def _margins(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return rating(chosen) - rating(rejected) of every pair with both ratings, by rule."""
    margins: dict[str, list[float]] = defaultdict(list)
    for (_, _, rule_id), (chosen, rejected) in pairs_of(rows).items():
        if chosen is not None and rejected is not None:
            margins[rule_id].append(chosen - rejected)
    return margins


def _rules(rows: Sequence[Row], *, source: str) -> list[dict[str, Any]]:
    by_rule: dict[str, list[float | None]] = defaultdict(list)
    for *_, rule_id, rating in rows:
        by_rule[rule_id].append(rating)
    margins = _margins(rows)
    num_pairs_total = len({(row[1], row[0]) for row in rows})
    rules = []
    for rule_id in sorted(by_rule):
        ratings = np.array([x for x in by_rule[rule_id] if x is not None])
        levels, counts = np.unique(ratings, return_counts=True)
        outcome = np.sign(margins[rule_id])
        rule = {
            "rule_id": rule_id,
            "source": source,
            "num_ratings": len(ratings),
            "num_unparsed": len(by_rule[rule_id]) - len(ratings),
            "num_levels": len(levels),
            "entropy_nats": float(scipy.stats.entropy(counts)) if len(ratings) else None,
            "entropy_miller_madow_nats": _miller_madow(counts),
            "top_level": float(levels[np.argmax(counts)]) if len(ratings) else None,
            "top_level_share": float(counts.max() / counts.sum()) if len(ratings) else None,
            "differential_entropy_nats": kde_entropy(ratings),
            "num_pairs": len(outcome),
            "coverage": len(outcome) / num_pairs_total,
            "tie_rate": _mean(outcome == 0),
            "accuracy": {
                "half": _mean((outcome > 0) + 0.5 * (outcome == 0)),
                "strict": _mean(outcome > 0),
                "untied": _mean(outcome[outcome != 0] > 0),
                "inclusive": _mean(outcome >= 0),
            },
        }
        rules.append(rule)
    return rules


def _miller_madow(counts: np.ndarray) -> float | None:
    """Return the plug-in entropy plus (levels - 1) / (2 N)."""
    if not len(counts):
        return None
    return float(scipy.stats.entropy(counts)) + (len(counts) - 1) / (2 * int(counts.sum()))


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _correlation(
    rules: Sequence[Mapping[str, Any]], *, source: str, entropy: str, accuracy: str
) -> dict[str, Any]:
    key = "entropy_nats" if entropy == "discrete" else "differential_entropy_nats"
    points = [
        (rule[key], rule["accuracy"][accuracy])
        for rule in rules
        if rule[key] is not None and rule["accuracy"][accuracy] is not None
    ]
    row: dict[str, Any] = {"source": source, "entropy": entropy, "accuracy": accuracy}
    row |= dict.fromkeys(("pearson_r", "p_value", "ci_low", "ci_high"))
    row |= dict.fromkeys(("spearman_rho", "spearman_p_value"))
    x, y = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    if len(points) < 3 or np.allclose(x, x[0], atol=1e-13) or np.allclose(y, y[0], atol=1e-13):
        return row
    pearson = scipy.stats.pearsonr(x, y)
    # Three points give no interval for r: scipy divides by n - 3 = 0.
    interval = (-1.0, 1.0) if len(points) == 3 else pearson.confidence_interval(0.95)
    ranked = scipy.stats.spearmanr(np.round(x, 12), np.round(y, 12))
    return row | {
        "pearson_r": float(pearson.statistic),
        "p_value": float(pearson.pvalue),
        "ci_low": float(interval[0]),
        "ci_high": float(interval[1]),
        "spearman_rho": float(ranked.statistic),
        "spearman_p_value": float(ranked.pvalue),
    }
