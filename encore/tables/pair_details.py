"""One pair of a study with its text, prompts, replies and ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.data.pairs import read_pairs, records_of
from encore.data.rating_runs import RatingManifest, RatingStatus, list_runs, run_status
from encore.data.records import PreferencePair, Rule
from encore.data.schemas import EXPECTED
from encore.data.study import Study, as_study
from encore.rating.decision_prompts import prompt_of_run
from encore.rating.prompts import render_conversation
from encore.warehouse.ratings import select_run

#: Columns of a rating, where the run has them. Those of `EXPECTED` need ``--decode expected``.
_RATING_COLUMNS = (
    *("rule_id", "response", "rating", "null_reason", "raw_reply", "num_truncated_tokens"),
    *EXPECTED.names,
)


def find_pair(study: Study, pair_id: str) -> tuple[PreferencePair, ...]:
    """Return the pair whose id is, or begins with, ``pair_id``: one record per source that has it.

    Raises:
        InputError: No pair matches, or several do.
    """
    pairs = read_pairs(study)
    matching_pairs = records_of(
        pairs.filter(pc.starts_with(pairs["pair_id"], pattern=pair_id.lower()))
    )
    ids = sorted({pair.pair_id for pair in matching_pairs})
    if len(ids) != 1:
        raise InputError(
            f"pair {pair_id!r}: {len(ids)} pairs of {study.path} match ({', '.join(ids[:4])}); "
            "give enough digits of one pair_id of its pairs/*.parquet files"
        )
    return tuple(matching_pairs)


def chosen_statuses(
    study: Study, *, run: str | None = None, judge: str | None = None
) -> tuple[RatingStatus, ...]:
    """Check the shards of all rating runs of a study, or of one run, and return the runs by key.

    Args:
        study: The opened study.
        run: Unique prefix of the key of the one run. None and no ``judge``: all runs.
        judge: Judge of the one run, instead of ``run``.

    Raises:
        InputError: The study has no such run or judge.
        EncoreError: A `run.json` is damaged.
    """
    run_dirs = list_runs(study.ratings_dir)
    if run is not None or judge is not None:
        run_dirs = (select_run(study.path, run_dirs, run=run, judge=judge),)
    return tuple(map(run_status, run_dirs))


def show(
    study: Study | str | Path, pair_id: str, *, run: str | None = None, judge: str | None = None
) -> list[dict[str, Any]]:
    """Return a pair with its texts, and its prompts, replies and ratings in every run, as JSON.

    >>> first = read_pairs(as_study("study"))["pair_id"][0].as_py()
    >>> (pair,) = show("study", first)
    >>> pair["prompt"], len(pair["runs"][0]["ratings"])
    (({'role': 'user', 'content': 'Question 0?'},), 6)

    Args:
        study: The study, or its directory.
        pair_id: The pair's id, or a unique beginning of it.
        run: Unique prefix of the key of the run to show. None and no ``judge``: all runs.
        judge: Judge of the run to show, instead of ``run``.

    Raises:
        InputError: No pair matches, or several do. Equal pairs of several sources all match.
    """
    study = as_study(study)
    statuses = chosen_statuses(study, run=run, judge=judge)
    return [
        asdict(pair)
        | {"runs": [pair_in_run(pair, status.manifest, status.paths) for status in statuses]}
        for pair in find_pair(study, pair_id)
    ]


def pair_in_run(
    pair: PreferencePair, manifest: RatingManifest, paths: Sequence[Path]
) -> dict[str, Any]:
    """Return a pair's ratings in a run, with their prompts before any cut from the left, as JSON.

    The list is empty if the pair's shard is not finished or the run does not contain the pair.
    ``is_prompt_current`` is False if the run used another version of the rating prompt. The prompts
    returned are then not the ones that the judge read.

    Args:
        pair: The pair, with its texts.
        manifest: Manifest of the run.
        paths: Files of finished shards to look in.
    """
    filters = [("pair_id", "=", pair.pair_id), ("source", "=", pair.source)]
    rows = [row for path in paths for row in pq.read_table(path, filters=filters).to_pylist()]
    rules, prompt = [Rule(**rule) for rule in manifest.rules], prompt_of_run(manifest)
    ratings = []
    for row in rows:
        conversation = render_conversation(pair.prompt, pair.response_text(row["response"]))
        asked_rules = next(
            asked
            for asked in prompt.rules_of_prompts(
                rules, pair_id=pair.pair_id, response=row["response"]
            )
            if row["rule_id"] in {rule.rule_id for rule in asked}
        )
        parts = prompt.parts(conversation, rating_rule=prompt.rules_text(asked_rules))
        rating = {name: row[name] for name in _RATING_COLUMNS if name in row}
        ratings.append(rating | {"prompt": "".join(parts)})
    return {
        "run_key": manifest.run_key,
        "judge": manifest.judge,
        "is_synthetic": bool(manifest.synthetic),
        "is_prompt_current": manifest.identity["prompt_sha256"] == prompt.digest,
        "ratings": ratings,
    }
