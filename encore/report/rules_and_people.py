"""What people and probes say of each rule, as far as the ratings' study knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow.parquet as pq

from encore.agreement import Estimate
from encore.analysis.statistics import RuleStats
from encore.annotation.answers import read_samples
from encore.annotation.people_and_judges import PEOPLE, people_report, run_name
from encore.data.study import LABELS, Study
from encore.labels.judge_labels import TABLE_NAME, LabelManifest
from encore.labels.rule_agreement import label_agreement
from encore.probing.probe_record import RuleProbe, read_probe
from encore.rating_runs import RatingManifest
from encore.report.drawing import DataTable
from encore.report.words import NONE, interval, number, percent
from encore.runs import read_manifest
from encore.warehouse import Ratings

_BOUGHT = {True: "yes", False: "no", None: NONE}


def rules_and_people(
    source: Ratings, rules: Mapping[str, str], statistics: tuple[RuleStats, ...]
) -> DataTable | None:
    """A table of all rules; None where nobody labelled and nothing was probed.

    Args:
        source: The ratings.
        rules: Titles by rule id.
        statistics: Of the rules, over all sources.
    """
    study, manifest = source.study, source.manifest
    if study is None or manifest is None:
        return None
    people: dict[str, Estimate] = {}
    judges: dict[str, tuple[int, Estimate]] = {}
    for rule_id, who, count, kappa in (*_of_labels(study, manifest), *_of_samples(study)):
        if who == PEOPLE:
            people[rule_id] = kappa
        elif who == run_name(manifest) and count > judges.get(rule_id, (0, kappa))[0]:
            judges[rule_id] = count, kappa
    probe = read_probe(study.path, manifest)
    probed = {one.rule_id: one for one in probe.rules} if probe else {}
    if not (people.keys() | judges.keys() | probed.keys()) & rules.keys():
        return None
    return DataTable(
        columns=(
            *("rule", "entropy", "accuracy", "labels", "judge and people, kappa", "95 %"),
            *("between people, kappa", "95 %", "largest planted rise", "bought"),
        ),
        rows=tuple(
            (
                rules[one.rule_id],
                number(one.entropy_nats),
                percent(one.accuracy.half),
                str(judges[one.rule_id][0]) if one.rule_id in judges else NONE,
                *_shown(judges.get(one.rule_id, (0, Estimate()))[1]),
                *_shown(people.get(one.rule_id, Estimate())),
                *_soundness(probed.get(one.rule_id)),
            )
            for one in statistics
        ),
    )


_Row = tuple[str, str, int, Estimate]


def _of_samples(study: Study) -> Iterator[_Row]:
    """Rule, who is compared, items and kappa, of each sample of responses."""
    for sample in read_samples(study):
        for row in people_report(study, sample).rules:
            yield row.rule_id, row.who, row.num_items, row.kappa


def _of_labels(study: Study, manifest: RatingManifest) -> Iterator[_Row]:
    """The same of labelled single responses that the run's judge rated."""
    texts = {rule["rule_id"]: rule["rating_rule"] for rule in manifest.rules}
    for path in sorted((study.path / LABELS).glob(f"*/{TABLE_NAME}")):
        if not (path.parent / LabelManifest.FILE).is_file():  # ratings from elsewhere
            continue
        own = read_manifest(path.parent, LabelManifest)
        words = {rule["rule_id"]: rule["rating_rule"] for rule in own.rules}
        same = {rule_id for rule_id in words if words[rule_id] == texts.get(rule_id)}
        is_its_judge = own.identity["judge"] == manifest.identity["judge"]
        if same and is_its_judge and own.ways == manifest.ways:
            for rule in label_agreement(pq.read_table(path, partitioning=None)).rules:
                if rule.rule_id in same:
                    yield rule.rule_id, run_name(manifest), rule.num_ratings, rule.kappa


def _shown(found: Estimate) -> tuple[str, str]:
    return number(found.value, digits=2), interval(found.low, found.high)


def _soundness(probe: RuleProbe | None) -> tuple[str, str]:
    if probe is None:
        return NONE, NONE
    rises = [one.rise for one in probe.effects.values() if one.rise]
    known = [one.value for one in rises if one.value is not None]
    return number(max(known, default=None), digits=2), _BOUGHT[probe.is_bought]
