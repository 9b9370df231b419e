"""Ratings to report on: rules that follow people more or less closely, and studies of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from encore.data.rating_runs import RatingManifest
from encore.data.records import slug
from encore.data.rule_sets import rules_digest
from encore.data.schemas import RATINGS
from encore.runs.run_files import claim_folder, run_key_of
from tests.worlds.studies import write_shard

#: Titles that try to get out of the page: tags, entities, mathematics, control and direction
#: characters, scripts that the drawing font lacks.
HOSTILE_TITLES = (
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(2)>",
    "\"quoted\" & 'apostrophed' &lt;b&gt;",
    "costs $5 and $10 {{ 7 * 7 }} {% raw %}",
    "right\u202eleft\x1b[31m\x00",
    "规则 🛡️ ]]> <!-- --> javascript:alert(3)",
)
HOSTILE_SOURCE = "<b>s</b>&\u202e"


def some_ratings(
    *,
    num_pairs: int = 240,
    rule_ids: Sequence[str] = ("calm", "fair", "kind", "mild", "neat", "open"),
    sources: Sequence[str] = ("hh", "pku"),
    num_levels: int = 11,
    null_share: float = 0.0,
) -> pa.Table:
    """A ratings table; later rules follow people less closely and spread their ratings more."""
    rng = np.random.default_rng(0)
    num_rules = len(rule_ids)
    better_P12 = np.stack([np.ones(num_pairs), np.zeros(num_pairs)], axis=1)[:, None, :]
    spread_R = np.linspace(0.3, 1.6, num_rules)[None, :, None]
    shared_P = rng.normal(size=(num_pairs, 1, 2))
    noise_PR2 = rng.normal(size=(num_pairs, num_rules, 2))
    raw_PR2 = 1.2 + 0.5 * better_P12 + spread_R * (noise_PR2 + 0.6 * shared_P)
    rating_PR2 = np.round((num_levels - 1) / (1 + np.exp(-raw_PR2))) / (num_levels - 1)
    is_null_PR2 = rng.random(rating_PR2.shape) < null_share
    shape = rating_PR2.shape
    pair_N, rule_N, response_N = (axis.ravel() for axis in np.indices(shape))
    return pa.table(
        {
            "pair_id": np.array([f"{place:032x}" for place in range(num_pairs)])[pair_N],
            "source": np.array(sources, dtype=object)[pair_N * len(sources) // num_pairs],
            "response": np.array(["chosen", "rejected"])[response_N],
            "rule_id": np.array(rule_ids, dtype=object)[rule_N],
            "rating": pa.array(rating_PR2.ravel(), mask=is_null_PR2.ravel()),
        }
    )


def write_rated_study(
    folder: Path,
    *,
    titles: Sequence[str] = ("Calm", "Fair", "Kind", "Mild", "Neat", "Open"),
    sources: Sequence[str] = ("hh", "pku"),
    judge: str = "tiny-judge",
    num_pairs: int = 240,
    null_share: float = 0.02,
) -> Path:
    """A study with one finished run; null ratings have the reason ``empty_reply``."""
    rule_ids = [slug(title) or f"rule-{place}" for place, title in enumerate(titles)]
    texts = {"description": "d", "preference_rule": "p", "rating_rule": "r"}
    rules = [
        {"rule_id": rule_id, "title": title, **texts}
        for rule_id, title in zip(rule_ids, titles, strict=True)
    ]
    identity = {
        "format": 1,
        "judge": {
            "backend": "transformers",
            "name": judge,
            "revision": "sha256:0123",
            "chat_template_sha256": "cafe",
            "max_model_len": 1024,
            "engine_args": {},
        },
        "prompt_sha256": "feed",
        "rules_sha256": rules_digest(rules),
        "decoding": {"temperature": 0.0, "max_reply_tokens": 16, "parser": 1},
        "data_sha256": "beef",
        "plan": {"shard_size": 100, "num_pairs": num_pairs, "overlong": "set-aside"},
    }
    manifest = RatingManifest(
        run_key=run_key_of(identity),
        identity=identity,
        rule_set="mine",
        rules=rules,
        versions={"python": "3.11.0", "vllm": "0.32.0"},
    )
    run_dir = folder / "ratings" / manifest.run_key
    claim_folder(run_dir, manifest)
    (folder / "study.json").write_text('{"encore_study": 1}\n')
    table = some_ratings(
        num_pairs=num_pairs, rule_ids=rule_ids, sources=sources, null_share=null_share
    )
    n = table.num_rows
    reasons = ["empty_reply" if one is None else None for one in table["rating"].to_pylist()]
    columns = {name: table[name] for name in table.column_names} | {
        "null_reason": reasons,
        "num_truncated_tokens": [0] * n,
        "raw_reply": [None] * n,
        "judge": [judge] * n,
        "run_key": [manifest.run_key] * n,
    }
    table = pa.table(columns, schema=RATINGS)
    rows_per_pair = manifest.rows_per_pair
    for shard in manifest.shards:
        rows = table.slice(shard.start * rows_per_pair, shard.num_pairs * rows_per_pair)
        write_shard(run_dir, manifest, shard, rows)
    return folder
