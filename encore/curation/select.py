"""`encore rules select` as a function: the rules of highest mean importance.

Suffixes: A raters of one kind, R rules of the pool.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from encore.curation.curation_config import SelectConfig
from encore.curation.draft import has_all_texts
from encore.curation.importance import POOL_FILE, ImportanceRun, answers_of, read_people
from encore.curation.pool import PoolRule, check_output, first_of, read_pool, write_pool
from encore.curation.rater_agreement import rater_agreement
from encore.curation.rule_questions import TEXTS, read_replies
from encore.errors import InputError
from encore.files import atomic_write_bytes
from encore.runs import list_runs

#: How rules of equal mean importance are ordered.
TIES = "the one that more raters rated first, then by the order of the pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rater:
    """One person or judge: importance by rule id."""

    kind: Literal["person", "judge"]
    name: str
    ratings: Mapping[str, float]


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
    rules, raters = _read(config.folder, run_keys)
    rows = _ranked(rules, raters)
    num_ranked = sum(row["rank"] is not None for row in rows)
    if config.top > num_ranked:
        raise InputError(
            f"--top {config.top}: {num_ranked} of {len(rules)} rules have ratings of half of the "
            f"{len(raters)} raters; give a smaller --top"
        )
    people_AR, judges_AR = (
        np.array([[one.ratings.get(rule.rule_id, np.nan) for rule in rules] for one in same])
        for same in ([one for one in raters if one.kind == kind] for kind in ("person", "judge"))
    )
    pools = {rule.rule_id: rule for rule in rules}
    chosen = [pools[row["rule_id"]] for row in rows[: config.top]]
    agreement = {
        "people_and_judges": rater_agreement(people_AR, judges_AR),
        "among_people": rater_agreement(people_AR),
        "among_judges": rater_agreement(judges_AR),
    }
    table = config.output.with_suffix(".json")
    selection = {
        "output": str(config.output),
        "table": str(table),
        "num_selected": config.top,
        "num_people": len(people_AR),
        "num_judges": len(judges_AR),
        **{name: {"r": asdict(r), "num_pairs": pairs} for name, (r, pairs) in agreement.items()},
        "ties": TIES,
        "rules": rows,
        "notes": [*_notes(rows, raters, chosen)],
    }
    write_pool(config.output, chosen)
    content = json.dumps(selection, indent=2, ensure_ascii=False, allow_nan=False)
    atomic_write_bytes(table, f"{content}\n".encode())
    return selection


def _read(
    folder: Path, run_keys: Collection[str] | None
) -> tuple[tuple[PoolRule, ...], tuple[Rater, ...]]:
    """The rules of a folder, and everybody who rated them: people first.

    A judge whose name another rater has is called by its run key too.
    """
    people = read_people(folder)
    raters = [Rater(kind="person", name=name, ratings=one) for name, one in people.items()]
    paths = list_runs(folder, ImportanceRun)
    counted = [path for path in paths if run_keys is None or path.name in run_keys]
    runs = [read_replies(path, ImportanceRun) for path in counted]
    names = [*people, *(run.manifest.judge for run in runs)]
    for run in runs:
        judge, key = run.manifest.judge, run.manifest.key
        name = judge if names.count(judge) == 1 else f"{judge} ({key})"
        read = {rule_id: answer.rating for rule_id, answer in answers_of(run).items()}
        ratings = {rule_id: value for rule_id, value in read.items() if value is not None}
        raters.append(Rater(kind="judge", name=name, ratings=ratings))
    if not raters:
        raise InputError(
            f"{folder}: no ratings of importance in it; make them with `{ImportanceRun.COMMAND}`"
        )
    return read_pool(folder / POOL_FILE).rules, tuple(raters)


def _ranked(rules: Sequence[PoolRule], raters: Sequence[Rater]) -> list[dict[str, Any]]:
    """A row for each rule: rank from 1, mean importance, ratings by rater, where it comes from."""
    rows = []
    for rule in rules:
        known = [rater for rater in raters if rule.rule_id in rater.ratings]
        ratings = {rater.name: rater.ratings[rule.rule_id] for rater in known}
        importance = fmean(ratings.values()) if ratings else None
        about = rule.model_dump(mode="json", exclude={*TEXTS[1:]})
        rows.append({"rank": None, "importance": importance, "ratings": ratings, **about})
    ranked = [row for row in rows if 2 * len(row["ratings"]) >= len(raters)]
    ranked.sort(key=lambda row: (-row["importance"], -len(row["ratings"])))  # keeps the order
    for rank, row in enumerate(ranked, start=1):
        row["rank"] = rank
    return [*ranked, *(row for row in rows if row["rank"] is None)]


def _notes(
    rows: Sequence[Mapping[str, Any]], raters: Sequence[Rater], chosen: Sequence[PoolRule]
) -> Iterator[str]:
    few = [row["rule_id"] for row in rows if row["rank"] is None]
    if few:
        yield f"{len(few)} rules have ratings of less than half of the raters: {first_of(few)}"
    partly = [row["rule_id"] for row in rows if row["rank"] and len(row["ratings"]) < len(raters)]
    if partly:
        yield f"{len(partly)} ranked rules lack some of {len(raters)} ratings: {first_of(partly)}"
    for rater in raters:
        if len(rater.ratings) > 1 and len(set(rater.ratings.values())) == 1:
            yield f"{rater.kind} {rater.name} rates every rule alike, so agrees with nobody"
    last, *following = rows[len(chosen) - 1 :]
    if following and following[0]["rank"] and last["importance"] == following[0]["importance"]:
        yield (
            f"{last['rule_id']} is in and {following[0]['rule_id']} is out with the same "
            f"importance; of a tie, {TIES}"
        )
    num_unready = sum(rule.is_draft or not has_all_texts(rule) for rule in chosen)
    if num_unready:
        yield (
            f"{num_unready} of the rules are principles or drafts, under which nothing is rated: "
            "`encore rules draft` has a judge write their texts, and a person accepts them"
        )
