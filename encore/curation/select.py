"""`encore rules select` as a function: the rules of highest mean importance.

Suffixes: A raters of one kind, R rules of the pool.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from encore.curation.curation_config import SelectConfig
from encore.curation.importance import POOL_FILE, ImportanceRun, answers_of, read_people
from encore.curation.people_importance import People
from encore.curation.pool import PoolRule, check_output, first_of, read_pool, write_pool
from encore.curation.rater_agreement import rater_agreement
from encore.curation.rule_questions import TEXTS, read_replies
from encore.errors import InputError
from encore.files import atomic_write_bytes
from encore.runs import list_runs

#: How rules of equal mean importance are ordered.
TIES = "the one that more raters rated first, then by the order of the pool"


def select_rules(
    config: SelectConfig, *, run_keys: Collection[str] | None = None
) -> dict[str, Any]:
    """Rank the rules by mean importance, write the first N and the table of all.

    Every rater counts alike, as in the paper: the mean is over people and judges together. A rule
    that fewer than half of the raters rated has no rank.

    Args:
        config: Ratings, how many rules, and where they go.
        run_keys: Of the judges that count; None: all of the folder.

    Returns:
        The JSON of the table: all ``rules`` of the pool, those with a rank first, in order; how
        far raters agree: ``people_and_judges``, ``among_people``, ``among_judges``; ``notes``.

    Raises:
        InputError: No ratings; fewer rules than N have enough of them.
        StudyIncompleteError: A judge's run is not complete.
    """
    check_output(config.output)
    rules, people, judges = _read(config.folder, run_keys)
    raters = {**people, **judges}
    rows = _ranked(rules, raters)
    num_ranked = sum(row["rank"] is not None for row in rows)
    if config.top > num_ranked:
        raise InputError(
            f"--top {config.top}: {num_ranked} of {len(rules)} rules have ratings of half of the "
            f"{len(raters)} raters; give a smaller --top"
        )
    pools = {rule.rule_id: rule for rule in rules}
    chosen = [pools[row["rule_id"]] for row in rows[: config.top]]
    table = config.output.with_suffix(".json")
    selection = {
        "output": str(config.output),
        "table": str(table),
        "num_people": len(people),
        "num_judges": len(judges),
        **_agreement(rules, people, judges),
        "ties": TIES,
        "rules": rows,
        "notes": [*_notes(rows, raters, top=config.top)],
    }
    write_pool(config.output, chosen)
    content = json.dumps(selection, indent=2, ensure_ascii=False, allow_nan=False)
    atomic_write_bytes(table, f"{content}\n".encode())
    return selection


def _read(
    folder: Path, run_keys: Collection[str] | None
) -> tuple[tuple[PoolRule, ...], People, People]:
    """The rules of a folder, and the ratings of people and of judges.

    A judge whose name another rater has is called by its run key too.
    """
    people = read_people(folder)
    paths = list_runs(folder, ImportanceRun)
    counted = [path for path in paths if run_keys is None or path.name in run_keys]
    runs = [read_replies(path, ImportanceRun) for path in counted]
    if not (people or runs):
        raise InputError(
            f"{folder}: no ratings of importance in it; make them with `{ImportanceRun.COMMAND}`"
        )
    names = [*people, *(run.manifest.judge for run in runs)]
    judges = {}
    for run in runs:
        judge, key = run.manifest.judge, run.manifest.key
        name = judge if names.count(judge) == 1 else f"{judge} ({key})"
        read = {rule_id: answer.rating for rule_id, answer in answers_of(run).items()}
        judges[name] = {rule_id: value for rule_id, value in read.items() if value is not None}
    return read_pool(folder / POOL_FILE).rules, people, judges


def _agreement(rules: Sequence[PoolRule], people: People, judges: People) -> dict[str, Any]:
    people_AR, judges_AR = (
        np.array([[one.get(rule.rule_id, np.nan) for rule in rules] for one in raters.values()])
        for raters in (people, judges)
    )
    found = {
        "people_and_judges": rater_agreement(people_AR, judges_AR),
        "among_people": rater_agreement(people_AR),
        "among_judges": rater_agreement(judges_AR),
    }
    return {name: {"r": asdict(r), "num_pairs": pairs} for name, (r, pairs) in found.items()}


def _ranked(rules: Sequence[PoolRule], raters: People) -> list[dict[str, Any]]:
    """A row for each rule: rank from 1, mean importance, ratings by rater, where it comes from."""
    rows = []
    for rule in rules:
        known = [name for name, answers in raters.items() if rule.rule_id in answers]
        ratings = {name: raters[name][rule.rule_id] for name in known}
        importance = fmean(ratings.values()) if ratings else None
        about = rule.model_dump(mode="json", exclude={*TEXTS[1:]})
        rows.append({"rank": None, "importance": importance, "ratings": ratings, **about})
    ranked = [row for row in rows if 2 * len(row["ratings"]) >= len(raters)]
    ranked.sort(key=lambda row: (-row["importance"], -len(row["ratings"])))  # keeps the order
    for rank, row in enumerate(ranked, start=1):
        row["rank"] = rank
    return [*ranked, *(row for row in rows if row["rank"] is None)]


def _notes(rows: Sequence[Mapping[str, Any]], raters: People, *, top: int) -> Iterator[str]:
    few = [row["rule_id"] for row in rows if row["rank"] is None]
    if few:
        yield f"{len(few)} rules have ratings of less than half of the raters: {first_of(few)}"
    partly = [row["rule_id"] for row in rows if row["rank"] and len(row["ratings"]) < len(raters)]
    if partly:
        yield f"{len(partly)} ranked rules lack some of {len(raters)} ratings: {first_of(partly)}"
    for name, answers in raters.items():
        if len(answers) > 1 and len(set(answers.values())) == 1:
            yield f"{name} rates every rule alike, so agrees with nobody"
    last, *following = rows[top - 1 :]
    if following and following[0]["rank"] and last["importance"] == following[0]["importance"]:
        yield (
            f"{last['rule_id']} is in and {following[0]['rule_id']} is out with the same "
            f"importance; of a tie, {TIES}"
        )
