"""`encore rules select` as a function: the rules of highest mean importance.

Suffixes: A raters of one kind, R rules of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from encore.core.errors import InputError
from encore.core.files import write_json
from encore.rules.importance import POOL_FILE, ImportanceRun, answers_of, read_people
from encore.rules.importance_agreement import rater_agreement
from encore.rules.people_importance import People
from encore.rules.pool import TEXTS, PoolRule, check_output, first_of, read_pool, write_pool
from encore.rules.rule_questions import read_replies
from encore.rules.rules_config import SelectConfig
from encore.runs.run_files import list_runs


def select_rules(config: SelectConfig) -> dict[str, Any]:
    """Rank the rules by mean importance, write the first N and the table of all.

    Every rater counts alike, as in the paper: the mean is over people and judges together. A rule
    that fewer than half of the raters rated has no rank.

    Args:
        config: Ratings, how many rules, and where they go.

    Returns:
        The JSON of the table: all ``rules`` of the pool in order, those without a mean last; how
        far raters agree: ``people_and_judges``, ``among_people``, ``among_judges``; ``notes``.

    Raises:
        InputError: No ratings; fewer rules than N have enough of them.
        StudyIncompleteError: A judge's run is not complete.
    """
    check_output(config.output)
    rules, people, judges = _read(config.folder)
    raters = {**people, **judges}
    rows = _ranked(rules, raters)
    num_ranked = sum(row["importance"] is not None for row in rows)
    if config.top > num_ranked:
        raise InputError(
            f"--top {config.top}: {num_ranked} of {len(rules)} rules have ratings of half of the "
            f"{len(raters)} raters; give a smaller --top"
        )
    by_id = {rule.rule_id: rule for rule in rules}
    write_pool(config.output, [by_id[row["rule_id"]] for row in rows[: config.top]])
    table = config.output.with_suffix(".json")
    selection = {
        "output": str(config.output),
        "table": str(table),
        **_agreement(rules, people, judges),
        "rules": rows,
        "notes": [*_notes(rows, raters, top=config.top)],
    }
    write_json(table, selection)
    return selection


def _read(folder: Path) -> tuple[tuple[PoolRule, ...], People, People]:
    """The rules of a folder, and the ratings of people and of judges.

    A judge whose name another rater has is called by its run key too.
    """
    people = read_people(folder)
    runs = [read_replies(path, ImportanceRun) for path in list_runs(folder, ImportanceRun)]
    if not (people or runs):
        raise InputError(
            f"{folder}: no ratings of importance in it; make them with `{ImportanceRun.COMMAND}`"
        )
    names = [*people, *(run.judge for run, _ in runs)]
    judges = {}
    for run, replies in runs:
        name = run.judge if names.count(run.judge) == 1 else f"{run.judge} ({run.key})"
        read = {rule_id: answer.rating for rule_id, answer in answers_of(replies).items()}
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
    """A row for each rule: mean importance, ratings by rater, where it comes from.

    Of equal importance stands first the rule that more raters rated, then the one that stands first
    in the pool. A rule that fewer than half of the raters rated has no mean and stands last.
    """
    rows = []
    for rule in rules:
        known = [name for name, answers in raters.items() if rule.rule_id in answers]
        ratings = {name: raters[name][rule.rule_id] for name in known}
        importance = fmean(ratings.values()) if 2 * len(ratings) >= len(raters) else None
        about = rule.model_dump(mode="json", exclude={*TEXTS[1:]})
        rows.append({"importance": importance, "ratings": ratings, **about})
    rows.sort(
        key=lambda row: (row["importance"] is None, -(row["importance"] or 0), -len(row["ratings"]))
    )
    return rows


def _notes(rows: Sequence[Mapping[str, Any]], raters: People, *, top: int) -> Iterator[str]:
    lacking = [row["rule_id"] for row in rows if len(row["ratings"]) < len(raters)]
    if lacking:
        yield (
            f"{len(lacking)} rules lack some of {len(raters)} ratings, and have no rank with less "
            f"than half of them: {first_of(lacking)}"
        )
    for name, answers in raters.items():
        if len(answers) > 1 and len(set(answers.values())) == 1:
            yield f"{name} rates every rule alike, so agrees with nobody"
    last, *following = rows[top - 1 :]
    if following and last["importance"] == following[0]["importance"]:
        yield (
            f"{last['rule_id']} is in and {following[0]['rule_id']} is out with the same "
            "importance; of a tie stands first the one that more raters rated, then by the order "
            "of the pool"
        )
