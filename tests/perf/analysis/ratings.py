"""Ratings of any size for measurements: as a finished run, and as files from elsewhere.

All ids are 32 hex digits. Ten rules on eleven levels, of different spread and signal, 1 % nulls.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from encore.data.rules import rules_digest
from encore.rating_runs import RatingManifest
from encore.runs import Shard, run_key_of
from encore.schemas import RATINGS, RATINGS_CONTRACT
from tests.rating_shards import write_run, write_shard

NUM_RULES = 10
NUM_LEVELS = 11
RATINGS_PER_PAIR = 2 * NUM_RULES
SHARD_PAIRS = 1000
RULE_IDS = tuple(f"rule-of-some-length-{k}" for k in range(NUM_RULES))


def write_run_of_ratings(study: Path, *, num_pairs: int) -> Path:
    """A study with one finished run in shards of 1,000 pairs; the run's folder."""
    texts = ("title", "description", "preference_rule", "rating_rule")
    rules = [{"rule_id": rule_id, **dict.fromkeys(texts, "x")} for rule_id in RULE_IDS]
    identity = {
        "judge": {"name": "simulated"},
        "rules_sha256": rules_digest(rules),
        "plan": {"num_pairs": num_pairs, "shard_size": SHARD_PAIRS},
    }
    manifest = RatingManifest(
        run_key=run_key_of(identity), identity=identity, rule_set="x", rules=rules, versions={}
    )
    run_dir = study / "ratings" / manifest.run_key
    write_run(run_dir, manifest)
    (study / "study.json").write_text('{"encore_study": 1}\n')
    for shard in manifest.shards:
        write_shard(run_dir, manifest, shard, _as_rated(shard, manifest.run_key))
    return run_dir


def write_foreign_ratings(
    folder: Path, run_dir: Path, *, num_files: int, is_shuffled: bool
) -> None:
    """The ratings of a run as files of five columns; in any order of rows if shuffled."""
    folder.mkdir()
    shards = sorted(run_dir.glob("shard-*.parquet"))
    rng = np.random.default_rng(1)
    for index, some in enumerate(np.array_split(np.arange(len(shards)), num_files)):
        columns = list(RATINGS_CONTRACT.names)
        tables = [pq.ParquetFile(shards[place]).read(columns=columns) for place in some]
        table = pa.concat_tables(tables)
        if is_shuffled:
            table = table.take(pa.array(rng.permutation(table.num_rows)))
        pq.write_table(table, folder / f"part-{index:05d}.parquet", compression="zstd")


def _as_rated(shard: Shard, run_key: str) -> pa.Table:
    """All ratings of a shard's pairs in the order in which a judge gives them."""
    rng = np.random.default_rng(shard.index)
    num_pairs = shard.num_pairs
    spread = np.linspace(0.1, 0.5, NUM_RULES)
    quality = rng.normal(size=(num_pairs, 2, 1)) + np.array([0.2, -0.2])[:, None]
    raw = 0.6 + 0.1 * quality + spread * rng.normal(size=(num_pairs, 2, NUM_RULES))
    rating = np.round(np.clip(raw, 0, 1) * (NUM_LEVELS - 1)) / (NUM_LEVELS - 1)
    num_rows = num_pairs * RATINGS_PER_PAIR
    is_null = rng.random(num_rows) < 0.01
    pair_ids = np.array([rng.bytes(16).hex() for _ in range(num_pairs)])
    sources = np.where(rng.random(num_pairs) < 0.6, "hh", "pku")
    columns = {
        "pair_id": np.repeat(pair_ids, RATINGS_PER_PAIR),
        "source": np.repeat(sources, RATINGS_PER_PAIR),
        "response": np.tile(np.repeat(["chosen", "rejected"], NUM_RULES), num_pairs),
        "rule_id": np.tile(np.array(RULE_IDS), 2 * num_pairs),
        "rating": pa.array(rating.ravel(), mask=is_null),
        "null_reason": pa.array(np.full(num_rows, "not_a_number"), mask=~is_null),
        "num_truncated_tokens": np.zeros(num_rows, dtype=np.int32),
        "raw_reply": pa.nulls(num_rows, pa.string()),
        "judge": ["simulated"] * num_rows,
        "run_key": [run_key] * num_rows,
    }
    return pa.table(columns, schema=RATINGS)
