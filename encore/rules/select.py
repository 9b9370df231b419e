"""`encore rules select` as a function: the rules of highest mean importance.

Suffixes: A raters of one kind, R rules of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from encore.core.errors import InputError
from encore.core.files import write_json
from encore.core.number_text import first_names
from encore.rules.importance import POOL_FILE, ImportanceRun, answers_of, read_people
from encore.rules.importance_agreement import RaterAgreement, rater_agreement
from encore.rules.people_importance import People
from encore.rules.pool import TEXTS, PoolRule, check_output, read_pool, write_pool
from encore.rules.rule_questions import read_replies
from encore.rules.rules_options import SelectConfig
from encore.runs.manifest import list_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Result of `select_rules`, and content of the table that it writes.

    Attributes:
        output: File of the selected rules.
        table: File of this record.
        people_and_judges: Agreement of people with judges.
        among_people: Agreement of people with each other.
        among_judges: Agreement of judges with each other.
        rules: All rules of the pool by rank, those without a rank last: mean ``importance``,
            ``ratings`` by rater, and provenance.
        notes: What a person should know about the ranks, one sentence each.
    """

    output: str
    table: str
    people_and_judges: RaterAgreement
    among_people: RaterAgreement
    among_judges: RaterAgreement
    rules: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


def select_rules(config: SelectConfig) -> Selection:
    """Rank rules by mean importance; write the first N as a rule set, and a table of all.

    Every rater has the same weight, as in the paper: the mean is over people and judges together.
    A rule that fewer than half of the raters rated has no mean and no rank.

    Raises:
        InputError: The folder has no ratings, or fewer than N rules have a rank.
        StudyIncompleteError: A judge's run is not complete.
    """
    check_output(config.output)
    people, judges = _read_raters(config.folder)
    rules, raters = read_pool(config.folder / POOL_FILE).rules, {**people, **judges}
    rows = _ranked(rules, raters)
    num_ranked = sum(row["importance"] is not None for row in rows)
    if config.top > num_ranked:
        raise InputError(
            f"--top {config.top}: {num_ranked} of {len(rules)} rules have ratings of half of the "
            f"{len(raters)} raters; give a smaller --top"
        )
    by_id = {rule.rule_id: rule for rule in rules}
    write_pool(config.output, [by_id[row["rule_id"]] for row in rows[: config.top]])
    people_AR, judges_AR = (
        np.array([[ratings.get(rule_id, np.nan) for rule_id in by_id] for ratings in group])
        for group in (people.values(), judges.values())
    )
    table = config.output.with_suffix(".json")
    selection = Selection(
        output=str(config.output),
        table=str(table),
        people_and_judges=rater_agreement(people_AR, judges_AR),
        among_people=rater_agreement(people_AR),
        among_judges=rater_agreement(judges_AR),
        rules=tuple(rows),
        notes=tuple(_notes(rows, raters, top=config.top)),
    )
    write_json(table, asdict(selection))
    return selection


def _read_raters(folder: Path) -> tuple[People, People]:
    """Read the ratings of people and of judges in a folder, by rater.

    The name of a judge gets its run key if another rater has the same name.
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
        judges[name] = {
            rule_id: answer.rating
            for rule_id, answer in answers_of(replies).items()
            if answer.rating is not None
        }
    return people, judges


def _ranked(rules: Sequence[PoolRule], raters: People) -> list[dict[str, Any]]:
    """Return a row for each rule by rank: mean importance, ratings by rater, provenance.

    Rules of equal importance are sorted by their number of ratings, then by the pool's order.
    Rules that fewer than half of the raters rated have no mean and are last.
    """
    rows = []
    for rule in rules:
        ratings = {
            name: answers[rule.rule_id]
            for name, answers in raters.items()
            if rule.rule_id in answers
        }
        importance = fmean(ratings.values()) if 2 * len(ratings) >= len(raters) else None
        provenance = rule.model_dump(mode="json", exclude={*TEXTS[1:]})
        rows.append({"importance": importance, "ratings": ratings, **provenance})
    rows.sort(
        key=lambda row: (row["importance"] is None, -(row["importance"] or 0), -len(row["ratings"]))
    )
    return rows


def _notes(rows: Sequence[Mapping[str, Any]], raters: People, *, top: int) -> Iterator[str]:
    partly_rated = [row["rule_id"] for row in rows if len(row["ratings"]) < len(raters)]
    if partly_rated:
        yield (
            f"{len(partly_rated)} rules lack some of {len(raters)} ratings, and have no rank with "
            f"less than half of them: {first_names(partly_rated)}"
        )
    for name, answers in raters.items():
        if len(answers) > 1 and len(set(answers.values())) == 1:
            yield f"{name} gives every rule the same rating; no agreement can be computed"
    last, *unselected = rows[top - 1 :]
    if unselected and last["importance"] == unselected[0]["importance"]:
        yield (
            f"{last['rule_id']} is selected and {unselected[0]['rule_id']} is not, with the same "
            "importance; ties are sorted by number of ratings, then by the order of the pool"
        )
