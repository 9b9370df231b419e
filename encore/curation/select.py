"""`encore rules select` as a function: the rules of highest mean importance.

Suffixes: A raters, R rules of the pool.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from encore.curation.curation_config import SelectConfig
from encore.curation.draft import has_all_texts
from encore.curation.importance import POOL_FILE, ImportanceRun
from encore.curation.people_importance import read_people
from encore.curation.pool import PoolRule, check_output, read_pool, write_pool
from encore.curation.rater_agreement import RaterAgreement, rater_agreement
from encore.curation.rule_questions import read_replies
from encore.errors import InputError
from encore.files import atomic_write_bytes
from encore.runs import list_runs

#: How rules of equal mean importance are ordered.
TIES = "the one that more raters rated first, then by the order of the pool"

RaterKind = Literal["person", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rater:
    """One person or judge: importance by rule id; ``judge`` is a judge's name in its manifest."""

    kind: RaterKind
    name: str
    judge: str = ""
    ratings: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRule:
    """One rule of the pool in the table.

    Attributes:
        rule_id: The rule.
        title: Its name.
        rank: From 1, the most important first; None with too few ratings.
        is_selected: Whether it is in the rule set.
        importance: The mean over the raters who rated it; None without any.
        num_ratings: How many did.
        ratings: By rater.
        source: Its pool.
        licence: Of its pool.
        origin: Where in that pool.
    """

    rule_id: str
    title: str
    rank: int | None
    is_selected: bool
    importance: float | None
    num_ratings: int
    ratings: Mapping[str, float]
    source: str
    licence: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rules by importance, and how far the raters agree.

    Attributes:
        output: The rule set.
        table: The file with all of this.
        rules: All rules of the pool: those with a rank first, in order.
        num_people: Raters of either kind.
        num_judges: Raters of either kind.
        min_ratings: Rules with fewer ratings have no rank.
        people_and_judges: Agreement of every person with every judge (the paper: 0.71).
        among_people: Of every two people.
        among_judges: Of every two judges.
        ties: How rules of equal importance are ordered.
        notes: What a reader should know, a sentence each.
    """

    output: Path
    table: Path
    rules: tuple[RankedRule, ...]
    num_people: int
    num_judges: int
    min_ratings: int
    people_and_judges: RaterAgreement
    among_people: RaterAgreement
    among_judges: RaterAgreement
    ties: str = TIES
    notes: tuple[str, ...] = ()

    @property
    def selected(self) -> tuple[RankedRule, ...]:
        """The rules of the rule set."""
        return tuple(rule for rule in self.rules if rule.is_selected)

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore rules select --json`` and of the table."""
        paths = {"output": str(self.output), "table": str(self.table)}
        return dataclasses.asdict(self) | paths


def select_rules(config: SelectConfig) -> Selection:
    """Rank the rules by mean importance, write the first N and the table of all.

    Every rater counts alike, as in the paper: the mean is over people and judges together.

    Raises:
        InputError: No ratings; fewer rules than N have enough of them.
        StudyIncompleteError: A judge's run is not complete.
    """
    check_output(config.output)
    if config.output.suffix != ".toml":
        raise InputError(f"--output {config.output}: expected a file that ends in .toml")
    rules = read_pool(config.folder / POOL_FILE).rules if config.folder.is_dir() else ()
    if not rules:
        raise InputError(
            f"{config.folder}: no ratings of importance in it; make them with "
            f"`{ImportanceRun.COMMAND}`"
        )
    raters = read_raters(config.folder, [rule.rule_id for rule in rules])
    enough = config.min_ratings or (len(raters) + 1) // 2
    ranked = _ranked(rules, raters, top=config.top, min_ratings=enough)
    num_ranked = sum(rule.rank is not None for rule in ranked)
    if config.top > num_ranked:
        raise InputError(
            f"--top {config.top}: {num_ranked} of {len(rules)} rules have {enough} or more ratings "
            f"of {len(raters)} raters; give a smaller --top or --min-ratings"
        )
    by_id = {rule.rule_id: rule for rule in rules}
    chosen = [by_id[rule.rule_id] for rule in ranked if rule.is_selected]
    selection = Selection(
        output=config.output,
        table=config.output.with_suffix(".json"),
        rules=ranked,
        num_people=sum(rater.kind == "person" for rater in raters),
        num_judges=sum(rater.kind == "judge" for rater in raters),
        min_ratings=enough,
        notes=(*_notes(ranked, raters, min_ratings=enough), *_lacking(chosen, config.output)),
        **_agreement(rules, raters, seed=config.seed),
    )
    write_pool(config.output, chosen)
    content = json.dumps(selection.as_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    atomic_write_bytes(selection.table, f"{content}\n".encode())
    return selection


def read_raters(folder: Path, rule_ids: Sequence[str]) -> tuple[Rater, ...]:
    """Everybody whose ratings a folder has: people by name, then judges by run key.

    Two runs of judges of one name are told apart by their keys.

    Raises:
        InputError: There is nobody.
        StudyIncompleteError: A judge's run is not complete.
    """
    people = read_people(folder, rule_ids=rule_ids)
    raters = [Rater(kind="person", name=name, ratings=answers) for name, answers in people.items()]
    runs = [read_replies(path, ImportanceRun) for path in list_runs(folder, ImportanceRun)]
    times = Counter([*people, *(run.manifest.judge for run in runs)])
    for run in runs:
        judge, key = run.manifest.judge, run.manifest.key
        known = (row for row in run.rows if row["importance"] is not None)
        ratings = {row["rule_id"]: row["importance"] for row in known}
        name = judge if times[judge] == 1 else f"{judge} ({key})"
        raters.append(Rater(kind="judge", name=name, judge=judge, ratings=ratings))
    if not raters:
        raise InputError(f"{folder}: nobody rated; run `{ImportanceRun.COMMAND}`")
    return tuple(raters)


def _ranked(
    rules: Sequence[PoolRule], raters: Sequence[Rater], *, top: int, min_ratings: int
) -> tuple[RankedRule, ...]:
    found = []
    for rule in rules:
        ratings = {
            rater.name: rater.ratings[rule.rule_id]
            for rater in raters
            if rule.rule_id in rater.ratings
        }
        found.append(
            RankedRule(
                rule_id=rule.rule_id,
                title=rule.title,
                rank=None,
                is_selected=False,
                importance=fmean(ratings.values()) if ratings else None,
                num_ratings=len(ratings),
                ratings=ratings,
                source=rule.source,
                licence=rule.licence,
                origin=rule.origin,
            )
        )
    enough = [rule for rule in found if rule.num_ratings >= min_ratings]
    few = [rule for rule in found if rule.num_ratings < min_ratings]
    enough.sort(key=lambda rule: (-(rule.importance or 0.0), -rule.num_ratings))  # keeps the order
    placed = [
        dataclasses.replace(rule, rank=rank, is_selected=rank <= top)
        for rank, rule in enumerate(enough, start=1)
    ]
    return (*placed, *few)


def _agreement(rules: Sequence[PoolRule], raters: Sequence[Rater], *, seed: int) -> dict[str, Any]:
    def matrix(kind: RaterKind) -> Any:
        nothing = float("nan")
        rows = [
            [rater.ratings.get(rule.rule_id, nothing) for rule in rules]
            for rater in raters
            if rater.kind == kind
        ]
        return np.array(rows, dtype=np.float64).reshape(-1, len(rules))

    people_AR, judges_AR = matrix("person"), matrix("judge")
    return {
        "people_and_judges": rater_agreement(people_AR, judges_AR, seed=seed),
        "among_people": rater_agreement(people_AR, seed=seed),
        "among_judges": rater_agreement(judges_AR, seed=seed),
    }


def _notes(
    ranked: Sequence[RankedRule], raters: Sequence[Rater], *, min_ratings: int
) -> Iterator[str]:
    if few := [rule.rule_id for rule in ranked if rule.rank is None]:
        yield (
            f"{len(few)} rules have fewer than {min_ratings} ratings and no rank: {', '.join(few)}"
        )
    if partly := [one.rule_id for one in ranked if one.rank and one.num_ratings < len(raters)]:
        shown = ", ".join(partly)
        yield f"{len(partly)} ranked rules lack some of {len(raters)} ratings: {shown}"
    judges = Counter(rater.judge for rater in raters if rater.judge)
    for judge, num_runs in judges.items():
        if num_runs > 1:
            yield (
                f"judge {judge} has {num_runs} runs: each counts as a rater; delete the folders of "
                "those that shall not count"
            )
    for rater in raters:
        if len(rater.ratings) > 1 and len(set(rater.ratings.values())) == 1:
            [value] = set(rater.ratings.values())
            yield f"{rater.kind} {rater.name} rates every rule {value:g}: agrees with nobody"
    placed = [rule for rule in ranked if rule.rank]
    for last, following in pairwise(placed):
        if last.is_selected > following.is_selected and last.importance == following.importance:
            yield (
                f"{last.rule_id} is in and {following.rule_id} is out with the same importance; "
                f"of a tie, {TIES}"
            )


def _lacking(chosen: Sequence[PoolRule], output: Path) -> Iterator[str]:
    """What the selected rules need before a judge can rate under them."""
    num_lacking = sum(not has_all_texts(rule) for rule in chosen)
    if num_lacking:
        yield (
            f"{num_lacking} of the rules lack texts that a rule set needs; `encore rules draft "
            f"{output}` has a judge write them"
        )
