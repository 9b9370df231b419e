"""What people and probes say of each rule, as far as the ratings' study knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter

import pyarrow.parquet as pq

from encore.analysis.resampling import Estimate
from encore.analysis.statistics import RuleStats
from encore.core.number_text import NONE, interval, number, percent
from encore.data.annotations import read_samples
from encore.data.rating_runs import RatingManifest
from encore.data.study import LABELS_DIR, Study
from encore.people.judge_labels import TABLE_NAME, LabelManifest
from encore.people.people_and_judges import PEOPLE, people_report, run_name
from encore.people.rule_agreement import label_agreement
from encore.report.figure_drawing import DataTable
from encore.rules.probe_record import RuleProbe, read_probe
from encore.runs.run_files import read_manifest
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
    found = sorted((*_of_labels(study, manifest), *_of_samples(study)), key=itemgetter(2))
    # Of several samples or tables that of most labels counts.
    people, judges = (
        {rule_id: (count, kappa) for rule_id, who, count, kappa in found if who == name and count}
        for name in (PEOPLE, run_name(manifest))
    )
    probe = read_probe(study.path, manifest)
    probed = {one.rule_id: one for one in probe.rules} if probe else {}
    if not (people.keys() | judges.keys() | probed.keys()) & rules.keys():
        return None
    nobody = 0, Estimate()
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
                str(judges.get(one.rule_id, nobody)[0] or NONE),
                *_shown(judges.get(one.rule_id, nobody)[1]),
                *_shown(people.get(one.rule_id, nobody)[1]),
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
    for path in sorted((study.path / LABELS_DIR).glob(f"*/{TABLE_NAME}")):
        if not (path.parent / LabelManifest.FILE).is_file():  # ratings from elsewhere
            continue
        own = read_manifest(path.parent, LabelManifest)
        if (own.identity["judge"], own.deviations) == (
            manifest.identity["judge"],
            manifest.deviations,
        ):
            texts = [
                {one["rule_id"]: one["rating_rule"] for one in run.rules} for run in (own, manifest)
            ]
            for rule in label_agreement(pq.read_table(path, partitioning=None)).rules:
                if texts[0][rule.rule_id] == texts[1].get(rule.rule_id):
                    yield rule.rule_id, run_name(manifest), rule.num_ratings, rule.kappa


def _shown(found: Estimate) -> tuple[str, str]:
    return number(found.value, digits=2), interval(found.low, found.high)


def _soundness(probe: RuleProbe | None) -> tuple[str, str]:
    if probe is None:
        return NONE, NONE
    rises = [one.rise for one in probe.effects.values() if one.rise is not None]
    return number(max(rises, default=None), digits=2), _BOUGHT[probe.is_bought]
