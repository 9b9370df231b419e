"""Everything a study knows about one pair: text, prompts, replies, ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.data.pairs import read_pairs, records_of
from encore.data.records import PreferencePair
from encore.data.study import Study
from encore.errors import InputError
from encore.rating.prompts import prompt_digest, render_conversation, render_rating_prompt
from encore.rating_runs import RatingManifest, read_run, run_status


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedResponse:
    """One rating with the prompt that asked for it, before any cut from the left."""

    rule_id: str
    response: str
    rating: float | None
    null_reason: str | None
    raw_reply: str | None
    num_truncated_tokens: int
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInRun:
    """A pair's ratings in one run; empty when its shard is not done or it was not planned.

    ``is_prompt_current`` is False when the run was made with another rating prompt than this
    version's, so that the prompts shown are not the ones asked.
    """

    run_key: str
    judge: str
    is_prompt_current: bool
    ratings: tuple[RatedResponse, ...]


def find_pair(study: Study, pair_id: str) -> tuple[PreferencePair, ...]:
    """The pair whose id is, or begins with, ``pair_id``: once for each source that has it.

    Raises:
        InputError: None matches, or several do.
    """
    pairs = read_pairs(study)
    found = records_of(pairs.filter(pc.starts_with(pairs["pair_id"], pattern=pair_id.lower())))
    ids = sorted({pair.pair_id for pair in found})
    if not ids:
        raise InputError(
            f"pair {pair_id!r}: not in {study.path}; ids are the pair_id column of its "
            "pairs/*.parquet files"
        )
    if len(ids) > 1:
        shown = ", ".join(ids[:4])
        raise InputError(f"pair {pair_id!r}: {len(ids)} pairs match ({shown}, …); give more digits")
    return tuple(found)


def pair_in_run(pair: PreferencePair, run_dir: Path) -> PairInRun:
    """A pair's ratings in a run, from shards that validate."""
    manifest = read_run(run_dir)
    rows = [
        row
        for path in run_status(run_dir).paths
        for row in pq.read_table(
            path, filters=[("pair_id", "=", pair.pair_id), ("source", "=", pair.source)]
        ).to_pylist()
    ]
    return PairInRun(
        run_key=manifest.run_key,
        judge=manifest.judge,
        is_prompt_current=manifest.identity["prompt_sha256"] == prompt_digest(),
        ratings=_rated(pair, manifest, rows),
    )


def _rated(
    pair: PreferencePair, manifest: RatingManifest, rows: Sequence[dict[str, object]]
) -> tuple[RatedResponse, ...]:
    rating_rules = {rule["rule_id"]: rule["rating_rule"] for rule in manifest.rules}
    conversations = {
        "chosen": render_conversation(pair.prompt, pair.chosen),
        "rejected": render_conversation(pair.prompt, pair.rejected),
    }
    shown = ("rule_id", "response", "rating", "null_reason", "raw_reply", "num_truncated_tokens")
    return tuple(
        RatedResponse(
            **{name: row[name] for name in shown},  # type: ignore[arg-type]
            prompt=render_rating_prompt(
                conversations[str(row["response"])], rating_rule=rating_rules[str(row["rule_id"])]
            ),
        )
        for row in rows
    )
