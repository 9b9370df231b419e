"""Build rated pairs, tables of ratings and evidence for tests; store tables in odd ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.analysis.analyze import analyze
from encore.analysis.pair_counts import NUM_BLOCKS, PairCounts
from encore.analysis.statistics import RuleStats, SourceStatistics, margin_correlations
from encore.data.annotations import ANSWERS_FILE, SAMPLE_FILE, Sample
from encore.data.records import RESPONSES
from encore.data.schemas import ANSWERS, RATINGS_CONTRACT
from encore.data.study import Study
from encore.warehouse import PairRatings
from encore.weighting.scheme import Evidence

# Suffixes: P pairs, R rules.

SOURCES = ("hh", "pku", "quelle-ä", "来源", "sp ace")
_RULE_NAMES = ("avoid-harm", "Regel 2 – äöü", "规则三", "rule'4", 'rule"5', "r6", "rule-7", "🛡️")


def ratings_table(rows: list[tuple[str, str, str, str, float | None]]) -> pa.Table:
    """Return a table of (pair_id, source, response, rule_id, rating) rows."""
    names = ("pair_id", "source", "response", "rule_id", "rating")
    records = [dict(zip(names, row, strict=True)) for row in rows]
    nullable = pa.schema([(field.name, field.type) for field in RATINGS_CONTRACT])
    return pa.Table.from_pylist(records, schema=nullable)


def random_table(rng: np.random.Generator, *, max_rows: int) -> pa.Table:
    """Return random ratings of several sources and rules in random order.

    They have 1 level to as many as ratings, ties, nulls and missing rows. The same pair ids occur
    in several sources.
    """
    num_rules = int(rng.integers(1, 13))
    rule_ids = [*_RULE_NAMES[:num_rules], *(f"rule-{k:02d}" for k in range(8, num_rules))]
    sources = rng.permutation(SOURCES)[: rng.integers(1, len(SOURCES))].tolist()
    num_pairs = int(rng.integers(3, max(4, max_rows // (2 * num_rules * len(sources)))))
    blocks = [
        _block(rng, source=source, rule_id=rule_id, num_pairs=num_pairs, rule_index=k)
        for source in sources
        for k, rule_id in enumerate(rule_ids)
        if k == 0 or rng.random() > 0.1  # some rules are missing in some sources
    ]
    table = pa.concat_tables(blocks)
    return table.take(pa.array(rng.permutation(table.num_rows)))


def write_odd_files(table: pa.Table, folder: Path, rng: np.random.Generator) -> None:
    """Write a table to files with different but equivalent types, beside files of other kinds."""
    cuts = np.sort(rng.integers(0, table.num_rows + 1, size=int(rng.integers(0, 4))))
    bounds = [0, *cuts.tolist(), table.num_rows]
    for i, (start, stop) in enumerate(pairwise(bounds)):
        name = f"deep/er/part[{i}].parquet" if i % 2 else f"it's shard-{i:03d}*.parquet"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _retyped(table.slice(start, stop - start), rng)
        pq.write_table(part, path, row_group_size=int(rng.integers(1, 5000)))
    for name in ("_tmp.parquet", ".hidden.parquet", "notes.txt", "shard-9.parquet.tmp"):
        (folder / name).write_text("not a ratings table")


def _block(
    rng: np.random.Generator, *, source: str, rule_id: str, num_pairs: int, rule_index: int
) -> pa.Table:
    """Return the ratings of a source's pairs under a rule; some are null, some are left out."""
    quality = rng.normal(size=(num_pairs, 1)) * rng.random()
    noise = rng.normal(size=(num_pairs, 2))
    raw = 1 / (1 + np.exp(-(quality + noise + np.array([0.3 * rng.normal(), 0.0]))))
    num_levels = int(rng.choice([1, 2, 3, 11, 101, 0])) if rule_index else 11
    rating = raw if num_levels == 0 else np.round(raw * (num_levels - 1)) / max(num_levels - 1, 1)
    is_null = rng.random((num_pairs, 2)) < rng.choice([0.0, 0.02, 0.3])
    has_row = rng.random((num_pairs, 2)) > rng.choice([0.0, 0.05, 0.5], p=[0.6, 0.2, 0.2])
    has_row[0] = True
    pair = np.array([f"{i:032x}" for i in range(num_pairs)])
    rows = np.flatnonzero(has_row.ravel())
    return pa.table(
        {
            "pair_id": pair[rows // 2],
            "source": [source] * len(rows),
            "response": np.array(RESPONSES)[rows % 2],
            "rule_id": [rule_id] * len(rows),
            "rating": pa.array(rating.ravel()[rows], mask=is_null.ravel()[rows]),
        }
    )


def _retyped(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    for name in ("pair_id", "source", "response", "rule_id"):
        kind = rng.integers(0, 4)
        column = table[name]
        if kind == 1:
            column = column.cast(pa.large_string())
        elif kind == 2:
            column = column.cast(pa.string_view())
        elif kind == 3:
            column = column.dictionary_encode()
        table = table.set_column(table.schema.get_field_index(name), name, column)
    if rng.random() < 0.3:  # columns of other kinds do no harm, and order means nothing
        table = table.append_column("raw_reply", pa.nulls(table.num_rows, pa.string()))
    return table.select(rng.permutation(table.column_names).tolist())


# --- rated pairs ----------------------------------------------------------------------------------


def rule_names(num_rules: int) -> tuple[str, ...]:
    """Return ``rule-00``, ``rule-01``, …"""
    return tuple(f"rule-{index:02d}" for index in range(num_rules))


def rated_pairs(
    chosen_PR: Any,
    rejected_PR: Any,
    *,
    rule_ids: Sequence[str] = (),
    source: str | Sequence[str] = "s",
) -> PairRatings:
    """Return pairs with these ratings, of one source or with a source each; NaN is missing."""
    chosen_PR, rejected_PR = np.array([chosen_PR, rejected_PR], dtype=np.float64)
    num_pairs, num_rules = chosen_PR.shape
    return PairRatings(
        rule_ids=tuple(rule_ids) or rule_names(num_rules),
        source_P=np.full(num_pairs, source, dtype=object),
        pair_id_P=np.array([f"{index:032x}" for index in range(num_pairs)], dtype=object),
        chosen_PR=chosen_PR,
        rejected_PR=rejected_PR,
    )


def table_of_pairs(pairs: PairRatings) -> pa.Table:
    """Return the pairs as a ratings table; NaN becomes null."""
    num_rules = len(pairs.rule_ids)
    rating = pairs.rating_2PR.transpose(1, 0, 2).ravel()
    return pa.table(
        {
            "pair_id": np.repeat(pairs.pair_id_P, 2 * num_rules),
            "source": np.repeat(pairs.source_P, 2 * num_rules),
            "response": np.tile(np.repeat(RESPONSES, num_rules), pairs.num_pairs),
            "rule_id": np.tile(np.array(pairs.rule_ids), 2 * pairs.num_pairs),
            "rating": pa.array(rating, mask=np.isnan(rating)),
        }
    )


def table_of(chosen_PR: Any, rejected_PR: Any, **names: Any) -> pa.Table:
    """Return the pairs of `rated_pairs` as a ratings table."""
    return table_of_pairs(rated_pairs(chosen_PR, rejected_PR, **names))


def pairs_of_margins(margin_PR: Any) -> PairRatings:
    """Return pairs with these margins; the rejected response is rated 0."""
    return rated_pairs(margin_PR, np.multiply(margin_PR, 0.0))


def write_labels(study: Study, label_PR: Any) -> None:
    """Write one person's labels as an imported sample of a study; NaN is no label.

    They are labels of the chosen responses of `rated_pairs`, under rules of `rule_names`.
    """
    sample = Sample(
        key="responses-0",
        kind="responses",
        scale=("0", "0.5", "1"),
        seed=0,
        run_key="",
        num_items=1,
    )
    folder = study.path / sample.path("")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SAMPLE_FILE).write_text(sample.model_dump_json())
    rows = [
        {
            "annotator": "ana",
            "item_id": f"{pair} {rule_id}",
            "source": "s",
            "response_id": f"{pair:032x}:chosen",
            "rule_id": rule_id,
            "label": float(label),
        }
        for pair, label_R in enumerate(label_PR)
        for rule_id, label in zip(rule_names(len(label_R)), label_R, strict=True)
        if not np.isnan(label)
    ]
    pq.write_table(pa.Table.from_pylist(rows, ANSWERS), folder / ANSWERS_FILE)


# --- evidence for schemes -------------------------------------------------------------------------


@cache
def _measured_rule() -> RuleStats:
    return analyze(table_of([[0.2], [0.7]], [[0.0], [0.5]])).rules[0]


def stats(rule_id: str, entropy_nats: float | None, **changes: Any) -> RuleStats:
    """Return statistics of a rule with this entropy, 7 nulls and two levels."""
    num_ratings = 0 if entropy_nats is None else 100
    fields: dict[str, Any] = {"num_ratings": num_ratings, "num_unparsed": 7, "num_levels": 2}
    fields |= {"rule_id": rule_id, "entropy_nats": entropy_nats, **changes}
    return dataclasses.replace(_measured_rule(), **fields)


def evidence_of_entropies(
    entropies: Sequence[float | None], *, pairs: PairRatings | None = None
) -> Evidence:
    """Return evidence of rules with these entropies; without pairs, reading them fails."""

    def read_pairs() -> PairRatings:
        assert pairs is not None, "a scheme that uses no labels has read the pairs"
        return pairs

    num_pairs = 50 if pairs is None else pairs.num_pairs
    rule_ids = rule_names(len(entropies)) if pairs is None else pairs.rule_ids
    rules = tuple(
        stats(rule_id, entropy, num_pairs=num_pairs, num_pairs_total=num_pairs)
        for rule_id, entropy in zip(rule_ids, entropies, strict=True)
    )
    correlation_RR = np.eye(len(rules))
    if pairs is not None:
        # The correlations are of all pairs, about 0, as `margin_correlations` has them.
        margin_PR = np.nan_to_num(pairs.margin_PR)
        product_RR = margin_PR.T @ margin_PR
        sums_2RR = np.stack([product_RR, np.tile(np.diag(product_RR), (len(rules), 1)).T])
        correlation_RR = margin_correlations(sums_2RR)
    return Evidence(rules=rules, read_pairs=read_pairs, correlation_RR=correlation_RR)


def evidence_of_margins(margin_PR: Any) -> Evidence:
    """Return evidence of rules of rising entropy over pairs with these margins."""
    pairs = pairs_of_margins(margin_PR)
    entropies = [0.1 * (index + 1) for index in range(len(pairs.rule_ids))]
    return evidence_of_entropies(entropies, pairs=pairs)


def statistics_of_margins(margin_PR: NDArray[np.float64]) -> SourceStatistics:
    """Return the counts that verdicts need; every rule has the same entropy, and no levels."""
    num_pairs, num_rules = margin_PR.shape
    wins_R, losses_R, ties_R = ((np.sign(margin_PR) == sign).sum(axis=0) for sign in (1, -1, 0))
    rules = [
        stats(
            rule_id, 0.5, tie_rate=ties / num_pairs, num_pairs=num_pairs, num_pairs_total=num_pairs
        )
        for rule_id, ties in zip(rule_names(num_rules), ties_R.tolist(), strict=True)
    ]
    blocks = [margin_PR[start::NUM_BLOCKS] for start in range(NUM_BLOCKS)]
    counts = PairCounts(
        num_pairs=num_pairs,
        num_one_sided=0,
        wins_R=wins_R,
        losses_R=losses_R,
        ties_R=ties_R,
        sign_gram_RR=np.zeros((num_rules, num_rules), dtype=np.int64),
        margin_sums_B2RR=np.stack(
            [
                [block_PR.T @ block_PR, np.tile((block_PR**2).sum(axis=0), (num_rules, 1)).T]
                for block_PR in blocks
            ]
        ),
        cells=(None,) * num_rules,
        levels=(None,) * num_rules,
    )
    return SourceStatistics(
        source="all", rules=tuple(rules), counts=counts, mean_squared_surprisals=(None,) * num_rules
    )
