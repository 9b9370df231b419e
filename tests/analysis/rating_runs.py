"""A finished run of three rules, written as shards without any judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from encore.data.rules import rules_digest
from encore.rating_runs import RatingManifest
from encore.runs import run_key_of
from encore.schemas import RATINGS
from tests.rating_shards import write_run, write_shard

RULES = ("zeta", "alpha", "mid")  # not in alphabetical order: the rule set's order is kept
SHARD_SIZE = 4


def add_run(study: Path, *, num_pairs: int = 10, judge: str = "tiny", seed: int = 0) -> Path:
    """Add a run with random ratings to a study."""
    texts = ("title", "description", "preference_rule", "rating_rule")
    rules = [{"rule_id": rule_id, **dict.fromkeys(texts, "x")} for rule_id in RULES]
    identity = {
        "judge": {"name": judge},
        "seed": seed,
        "rules_sha256": rules_digest(rules),
        "plan": {"num_pairs": num_pairs, "shard_size": SHARD_SIZE},
    }
    manifest = RatingManifest(
        run_key=run_key_of(identity), identity=identity, rule_set="mine", rules=rules, versions={}
    )
    run_dir = study / "ratings" / manifest.run_key
    write_run(run_dir, manifest)
    (study / "study.json").write_text('{"encore_study": 1}\n')
    rng = np.random.default_rng(seed)
    for shard in manifest.shards:
        keys = [
            (f"{pair:032x}", response, rule_id)
            for pair in range(shard.start, shard.stop)
            for response in ("chosen", "rejected")
            for rule_id in RULES
        ]
        pair_ids, responses, rule_ids = zip(*keys, strict=True)
        n = len(keys)
        columns = {
            "pair_id": pair_ids,
            "source": ["hh"] * n,
            "response": responses,
            "rule_id": rule_ids,
            "rating": rng.integers(0, 11, size=n) / 10,
            "null_reason": [None] * n,
            "num_truncated_tokens": [0] * n,
            "raw_reply": [None] * n,
            "judge": [judge] * n,
            "run_key": [manifest.run_key] * n,
        }
        table = pa.table(columns, schema=RATINGS)
        write_shard(run_dir, manifest, shard, table)
    return run_dir
