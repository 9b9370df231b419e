"""`encore rules select` as a function: the rules of highest mean importance.

Suffixes: A raters of one kind, R rules of the pool.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from encore.curation.curation_config import SelectConfig
from encore.curation.draft import has_all_texts
from encore.curation.importance import POOL_FILE, ImportanceRun, answers_of, read_people
from encore.curation.pool import PoolRule, check_output, first_of, read_pool, write_pool
from encore.curation.rater_agreement import RaterAgreement, rater_agreement
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRule:
    """One rule of the pool: its rank from 1 (None: too few ratings), and its ratings by rater."""

    rule: PoolRule
    ratings: Mapping[str, float]
    rank: int | None = None

    @property
    def importance(self) -> float | None:
        """The mean over the raters who rated it; None without any."""
        return fmean(self.ratings.values()) if self.ratings else None

    def as_dict(self) -> dict[str, Any]:
        """The rule's row in the table."""
        about = self.rule.model_dump(mode="json", exclude={"description", *TEXTS[2:]})
        figures = {"rank": self.rank, "importance": self.importance, "ratings": self.ratings}
        return figures | about


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rules by importance, and how far the raters agree.

    Attributes:
        output: The rule set.
        num_selected: How many rules are in it: the first ones.
        rules: All rules of the pool: those with a rank first, in order.
        num_people: Raters of one kind.
        num_judges: Raters of the other.
        people_and_judges: Agreement of every person with every judge.
        among_people: Of every two people.
        among_judges: Of every two judges.
        notes: What a reader should know, a sentence each.
    """

    output: Path
    num_selected: int
    rules: tuple[RankedRule, ...]
    num_people: int
    num_judges: int
    people_and_judges: RaterAgreement
    among_people: RaterAgreement
    among_judges: RaterAgreement
    notes: tuple[str, ...]

    @property
    def table(self) -> Path:
        """The file with all of this, beside the rule set."""
        return self.output.with_suffix(".json")

    def as_dict(self) -> dict[str, Any]:
        """The JSON of the table, and of ``encore rules select --json``."""
        plain = dataclasses.asdict(dataclasses.replace(self, rules=()))
        rules = [rule.as_dict() for rule in self.rules]
        return plain | {"output": str(self.output), "ties": TIES, "rules": rules}


def select_rules(config: SelectConfig, *, run_keys: Collection[str] | None = None) -> Selection:
    """Rank the rules by mean importance, write the first N and the table of all.

    Every rater counts alike, as in the paper: the mean is over people and judges together.

    Args:
        config: Ratings, how many rules, and where they go.
        run_keys: Of the judges that count; None: all of the folder.

    Raises:
        InputError: No ratings; fewer rules than N have enough of them.
        StudyIncompleteError: A judge's run is not complete.
    """
    check_output(config.output)
    rules, raters = _read(config.folder, run_keys)
    enough = config.min_ratings or (len(raters) + 1) // 2
    ranked = _ranked(rules, raters, min_ratings=enough)
    num_ranked = sum(one.rank is not None for one in ranked)
    if config.top > num_ranked:
        raise InputError(
            f"--top {config.top}: {num_ranked} of {len(rules)} rules have {enough} or more ratings "
            f"of {len(raters)} raters; give a smaller --top or --min-ratings"
        )
    people_AR, judges_AR = (
        np.array([[one.ratings.get(rule.rule_id, np.nan) for rule in rules] for one in same])
        for same in _by_kind(raters)
    )
    selection = Selection(
        output=config.output,
        num_selected=config.top,
        rules=ranked,
        num_people=len(people_AR),
        num_judges=len(judges_AR),
        people_and_judges=rater_agreement(people_AR, judges_AR, seed=config.seed),
        among_people=rater_agreement(people_AR, seed=config.seed),
        among_judges=rater_agreement(judges_AR, seed=config.seed),
        notes=tuple(_notes(ranked, raters, config, min_ratings=enough)),
    )
    write_pool(config.output, [one.rule for one in ranked[: config.top]])
    content = json.dumps(selection.as_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    atomic_write_bytes(selection.table, f"{content}\n".encode())
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


def _by_kind(raters: Sequence[Rater]) -> Iterator[list[Rater]]:
    for kind in ("person", "judge"):
        yield [rater for rater in raters if rater.kind == kind]


def _ranked(
    rules: Sequence[PoolRule], raters: Sequence[Rater], *, min_ratings: int
) -> tuple[RankedRule, ...]:
    rated = []
    for rule in rules:
        known = [rater for rater in raters if rule.rule_id in rater.ratings]
        ratings = {rater.name: rater.ratings[rule.rule_id] for rater in known}
        rated.append(RankedRule(rule=rule, ratings=ratings))
    enough = [one for one in rated if len(one.ratings) >= min_ratings]
    enough.sort(key=lambda one: (-(one.importance or 0.0), -len(one.ratings)))  # keeps the order
    ranked = [dataclasses.replace(one, rank=rank) for rank, one in enumerate(enough, start=1)]
    return (*ranked, *(one for one in rated if len(one.ratings) < min_ratings))


def _notes(
    ranked: Sequence[RankedRule],
    raters: Sequence[Rater],
    config: SelectConfig,
    *,
    min_ratings: int,
) -> Iterator[str]:
    few = [one.rule.rule_id for one in ranked if one.rank is None]
    if few:
        yield f"{len(few)} rules have fewer than {min_ratings} ratings, so no rank: {first_of(few)}"
    partly = [one.rule.rule_id for one in ranked if one.rank and len(one.ratings) < len(raters)]
    if partly:
        yield f"{len(partly)} ranked rules lack some of {len(raters)} ratings: {first_of(partly)}"
    for rater in raters:
        if len(rater.ratings) > 1 and len(set(rater.ratings.values())) == 1:
            yield f"{rater.kind} {rater.name} rates every rule alike, so agrees with nobody"
    for last, following in pairwise(ranked):
        if last.rank == config.top and following.rank and last.importance == following.importance:
            yield (
                f"{last.rule.rule_id} is in and {following.rule.rule_id} is out with the same "
                f"importance; of a tie, {TIES}"
            )
    chosen = [one.rule for one in ranked[: config.top]]
    num_unready = sum(rule.is_draft or not has_all_texts(rule) for rule in chosen)
    if num_unready:
        yield (
            f"{num_unready} of the rules are principles or drafts, under which nothing is rated: "
            "`encore rules draft` has a judge write their texts, and a person accepts them"
        )
