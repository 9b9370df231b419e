"""Build rated pairs and evidence for tests, from margins, entropies or tables of ratings."""

from __future__ import annotations

import atexit
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from encore.analysis.analyze import analyze
from encore.analysis.statistics import RuleStats
from encore.data.annotations import ANSWERS_FILE, SAMPLE_FILE, Sample
from encore.data.schemas import ANSWERS
from encore.data.study import Study
from encore.warehouse import PairRatings
from encore.weighting.scheme import Evidence
from tests.worlds.ratings import ratings_table

# Suffixes: P pairs, R rules.

RESPONSES = ("chosen", "rejected")


def rule_names(num_rules: int) -> tuple[str, ...]:
    """Return ``rule-00``, ``rule-01``, …"""
    return tuple(f"rule-{index:02d}" for index in range(num_rules))


def rated_pairs(
    chosen_PR: Any, rejected_PR: Any, *, rule_ids: Sequence[str] = (), source: str = "s"
) -> PairRatings:
    """Return pairs with these ratings; NaN is missing."""
    chosen_PR, rejected_PR = np.array([chosen_PR, rejected_PR], dtype=np.float64)
    num_pairs, num_rules = chosen_PR.shape
    return PairRatings(
        rule_ids=tuple(rule_ids) or rule_names(num_rules),
        source_P=np.array([source] * num_pairs, dtype=object),
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


def table_of(
    chosen_PR: Any, rejected_PR: Any, *, rule_ids: Sequence[str], source: str = "s"
) -> pa.Table:
    """Return ratings as a ratings table; NaN becomes null."""
    return table_of_pairs(rated_pairs(chosen_PR, rejected_PR, rule_ids=rule_ids, source=source))


def write_labels(
    study: Study, labels: Mapping[tuple[str, str], float], *, source: str = "s"
) -> None:
    """Write one person's labels, by response_id and rule_id, as an imported sample of a study."""
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
            "item_id": f"{response_id} {rule_id}",
            "source": source,
            "response_id": response_id,
            "rule_id": rule_id,
            "label": label,
        }
        for (response_id, rule_id), label in labels.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows, ANSWERS), folder / ANSWERS_FILE)


@cache
def labelled_study() -> Study:
    """Return a study with labels of 30 pairs under 20 rules, as `pairs_of_margins` has them."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    rng, study = np.random.default_rng(0), Study(Path(folder.name))
    write_labels(
        study,
        {
            (f"{pair:032x}:chosen", rule_id): float(rng.choice([0.0, 0.5, 1.0]))
            for pair in range(30)
            for rule_id in rule_names(20)
        },
    )
    return study


@cache
def _some_rule() -> RuleStats:
    rows = [(f"p{i}", "s", response, "r", i / 10) for i in range(3) for response in RESPONSES]
    return analyze(ratings_table(rows)).rules[0]


def stats(rule_id: str, entropy_nats: float | None, **changes: Any) -> RuleStats:
    """Return statistics of a rule with this entropy, 7 nulls and two levels."""
    num_ratings = 0 if entropy_nats is None else 100
    fields: dict[str, Any] = {"num_ratings": num_ratings, "num_unparsed": 7, "num_levels": 2}
    fields |= {"rule_id": rule_id, "entropy_nats": entropy_nats, **changes}
    return dataclasses.replace(_some_rule(), **fields)


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
    return Evidence(rules=rules, read_pairs=read_pairs)


def pairs_of_margins(margin_PR: Any, *, rule_ids: Sequence[str] = ()) -> PairRatings:
    """Return pairs with these margins; the rejected response is rated 0."""
    return rated_pairs(margin_PR, np.multiply(margin_PR, 0.0), rule_ids=rule_ids)


def evidence_of_margins(margin_PR: Any) -> Evidence:
    """Return evidence of rules of rising entropy over pairs with these margins."""
    pairs = pairs_of_margins(margin_PR)
    entropies = [0.1 * (index + 1) for index in range(len(pairs.rule_ids))]
    return evidence_of_entropies(entropies, pairs=pairs)
