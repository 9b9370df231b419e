"""Everything a study knows about one pair: text, prompts, replies, ratings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.data.pairs import read_pairs, records_of
from encore.data.rating_runs import RatingManifest, run_status
from encore.data.records import PreferencePair
from encore.data.schemas import EXPECTED
from encore.data.study import Study
from encore.rating.prompts import prompt_of, render_conversation

#: Where a run has them: those of `EXPECTED` are there with ``--decode expected``.
_SHOWN = (
    *("rule_id", "response", "rating", "null_reason", "raw_reply", "num_truncated_tokens"),
    *EXPECTED.names,
)


def find_pair(study: Study, pair_id: str) -> tuple[PreferencePair, ...]:
    """The pair whose id is, or begins with, ``pair_id``: once for each source that has it.

    Raises:
        InputError: None matches, or several do.
    """
    pairs = read_pairs(study)
    found = records_of(pairs.filter(pc.starts_with(pairs["pair_id"], pattern=pair_id.lower())))
    ids = sorted({pair.pair_id for pair in found})
    if len(ids) != 1:
        raise InputError(
            f"pair {pair_id!r}: {len(ids)} pairs of {study.path} match ({', '.join(ids[:4])}); "
            "give enough digits of one pair_id of its pairs/*.parquet files"
        )
    return tuple(found)


def pair_in_run(pair: PreferencePair, run_dir: Path) -> dict[str, Any]:
    """A pair's ratings in a run, each with its prompt before any cut from the left, as JSON values.

    There are none where its shard is not done or it was not planned. ``is_prompt_current`` is False
    where the run was made with another rating prompt than this version's, so that the prompts shown
    are not the ones asked.
    """
    status = run_status(run_dir)
    return pair_in_files(pair, status.manifest, status.paths)


def pair_in_files(
    pair: PreferencePair, manifest: RatingManifest, paths: Sequence[Path]
) -> dict[str, Any]:
    """As `pair_in_run`, read from some of the run's shards."""
    filters = [("pair_id", "=", pair.pair_id), ("source", "=", pair.source)]
    rows = [row for path in paths for row in pq.read_table(path, filters=filters).to_pylist()]
    rating_rules = {rule["rule_id"]: rule["rating_rule"] for rule in manifest.rules}
    prompt = prompt_of(manifest.identity)
    ratings = []
    for row in rows:
        conversation = render_conversation(pair.prompt, pair.response_text(row["response"]))
        parts = prompt.parts(conversation, rating_rule=rating_rules[row["rule_id"]])
        shown = {name: row[name] for name in _SHOWN if name in row}
        ratings.append(shown | {"prompt": "".join(parts)})
    return {
        "run_key": manifest.run_key,
        "judge": manifest.judge,
        "is_prompt_current": manifest.identity["prompt_sha256"] == prompt.digest,
        "ratings": ratings,
    }
