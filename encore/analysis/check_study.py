"""Check a study's rules: above a floor, no worse than an older run, and of the recorded judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from encore.analysis.check_options import CheckConfig
from encore.analysis.check_record import (
    CheckRecord,
    binding,
    read_record,
    stale_parts,
    write_record,
)
from encore.analysis.floor_check import RuleDrift, RuleFloor, check_drift, check_floor
from encore.analysis.statistics import SourceStatistics, rating_statistics
from encore.core.errors import CheckFailedError, InputError
from encore.core.folder_watches import tell_changed
from encore.core.number_text import counted, first_names
from encore.core.record_table import RecordTable
from encore.data.rating_runs import RatingManifest
from encore.data.rule_sets import named_rule
from encore.data.study import open_study
from encore.runs.identity import run_key_of
from encore.warehouse import Ratings, open_compared_ratings, open_ratings, open_warehouse

#: Folder of a study with the records of checks, one for each run.
CHECKS_DIR = "checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCheck:
    """Result of `check_study`.

    Attributes:
        run_key: The run whose ratings were checked.
        judge: Name of its judge.
        against: Key of the older run; None without one.
        floor: Floor under the agreement; None if it was not checked.
        margin: Accepted loss against the older run; None without one.
        rules: Each rule against the floor.
        drift: Each rule against the older run.
        stale: Parts in which the record that was there is of something else; empty if it fits.
        num_pairs: Number of the run's pairs.
        num_prompts: Number of their prompts; None if they are not known.
        notes: Sentences on what limits these figures.
        record: File that the record is in.
        ratings: The checked ratings.
    """

    run_key: str
    judge: str
    against: str | None
    floor: float | None
    margin: float | None
    rules: RecordTable[RuleFloor]
    drift: RecordTable[RuleDrift]
    stale: tuple[str, ...]
    num_pairs: int
    num_prompts: int | None
    notes: tuple[str, ...]
    record: Path = field(compare=False)
    ratings: Ratings = field(compare=False)

    @property
    def is_complete(self) -> bool:
        """Return True if no shard that the figures need is missing."""
        return not self.ratings.num_missing_shards or bool(self.ratings.sufficiency_note)

    @property
    def passed(self) -> bool:
        """Return True if every rule passed, the record fits and the run is complete."""
        outcomes = {*(row.outcome for row in self.rules), *(row.outcome for row in self.drift)}
        return self.is_complete and not self.stale and outcomes == {"above"}

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of ``encore check --json``."""
        names = (
            *("run_key", "judge", "against", "floor", "margin", "passed", "stale"),
            *("num_pairs", "num_prompts", "notes"),
        )
        return {name: getattr(self, name) for name in names} | {
            name: [asdict(row) for row in getattr(self, name)] for name in ("rules", "drift")
        }


def check_study(config: CheckConfig) -> StudyCheck:
    """Check the rules of a rating run, and write the record.

    >>> check_study(CheckConfig(study="study", floor=0.9)).passed
    False

    A record that is stale stays as it is; of a run that is not complete none is written.

    Args:
        config: What is asked of which rules.

    Raises:
        InputError: Nothing is asked, or there is no such run or rule.
        EncoreError: The record is damaged.
    """
    if config.floor is None and config.against is None:
        raise InputError(
            "nothing to check: give --floor SHARE (e.g. 0.8), --against OLD_RUN, or both"
        )
    study = open_study(config.study)
    ratings = open_ratings(study, run=config.run, judge=config.judge, rating=config.rating)
    assert ratings.manifest is not None, "a study's ratings are those of a run"
    manifest, old = ratings.manifest, None
    with open_warehouse(ratings) as warehouse:
        statistics = rating_statistics(warehouse)[-1]
    all_ids = [rule.rule_id for rule in statistics.rules]
    rule_ids = [*dict.fromkeys(named_rule(name, all_ids) for name in config.rule)] or all_ids
    limits: dict[str, Any] = {"floor": config.floor, "rating": config.rating}
    rules: tuple[RuleFloor, ...] = ()
    drift: tuple[RuleDrift, ...] = ()
    if config.floor is not None:
        rules = check_floor(statistics, floor=config.floor, rule_ids=rule_ids)
    if config.against is not None:
        old = open_compared_ratings(config.study, config.against, rating=config.rating)
        drift = check_drift(ratings, old, margin=config.margin, rule_ids=rule_ids)
        limits["margin"] = config.margin
        if missing := sorted({*rule_ids} - {row.rule_id for row in drift}):
            raise InputError(
                f"--against {old.label}: it lacks {', '.join(missing)}; name the rules of both "
                "runs with --rule"
            )
    bound_to = binding(manifest, rule_ids, limits=limits)
    path = config.record or study.path / CHECKS_DIR / f"{manifest.run_key}.json"
    recorded = None if config.record is None else read_record(path)
    check = StudyCheck(
        run_key=manifest.run_key,
        judge=manifest.judge,
        against=_run_key(old),
        floor=config.floor,
        margin=limits.get("margin"),
        rules=RecordTable(rules),
        drift=RecordTable(drift),
        stale=() if recorded is None else tuple(stale_parts(recorded, bound_to)),
        num_pairs=statistics.counts.num_pairs,
        num_prompts=statistics.num_prompts,
        notes=tuple(_notes(rules, drift, manifest=manifest, old=old, statistics=statistics)),
        record=path,
        ratings=ratings,
    )
    if check.is_complete and not check.stale:
        record = CheckRecord(
            bound_to=bound_to,
            digest=run_key_of(bound_to),
            passed=check.passed,
            run_key=check.run_key,
            against=check.against,
            result=check.as_dict(),
        )
        write_record(path, record)
        if config.record is None:
            tell_changed(path)
    return check


def raise_if_failed(check: StudyCheck) -> None:
    """Raise an error if a check failed.

    Raises:
        CheckFailedError: The record is stale, or a rule did not pass. The message names them.
    """
    if check.passed:
        return
    if check.stale:
        raise CheckFailedError(
            f"record {check.record}: stale, for {'; '.join(check.stale)}; check again with another "
            "--record, or delete this one if the change is meant"
        )
    problems = []
    for limit, rows in (
        (f"above the floor of {check.floor}", check.rules),
        (f"within {check.margin} of run {check.against}", check.drift),
    ):
        failed = [f"{row.rule_id} ({row.outcome})" for row in rows if row.outcome != "above"]
        if failed:
            of_all = f"{len(failed)} of {counted(len(rows), 'rule')}"
            problems.append(
                f"agreement of {of_all} is not shown to be {limit}: {first_names(failed)}"
            )
    raise CheckFailedError(f"run {check.run_key}: {'; '.join(problems)}")


def _run_key(ratings: Ratings | None) -> str | None:
    """Return the key of the run that ratings are of; their name if they are of none."""
    if ratings is None:
        return None
    return ratings.label if ratings.manifest is None else ratings.manifest.run_key


def _notes(
    rules: Sequence[RuleFloor],
    drift: Sequence[RuleDrift],
    *,
    manifest: RatingManifest,
    old: Ratings | None,
    statistics: SourceStatistics,
) -> Iterator[str]:
    for row in rules:
        if row.outcome == "above" and row.outcome_if_missing_lost != "above":
            yield (
                f"rule {row.rule_id}: {counted(row.num_missing_pairs, 'pair')} without a rating; "
                f"if they counted against it, it would be {row.outcome_if_missing_lost}"
            )
    lost = {row.rule_id: row.num_lost_pairs for row in drift if row.num_lost_pairs}
    for rule_id, number in lost.items():
        yield f"rule {rule_id}: {counted(number, 'pair')} rated by the old run lost in the new one"
    if old is not None and old.manifest is not None:
        texts = {rule["rule_id"]: rule for rule in old.manifest.rules}
        changed = [
            rule["rule_id"]
            for rule in manifest.rules
            if rule["rule_id"] in texts and rule != texts[rule["rule_id"]]
        ]
        if changed:
            yield f"the two runs word differently: {first_names(changed)}"
    if statistics.num_prompts is None:
        yield "the prompts of these pairs are not known: pairs count as independent"
