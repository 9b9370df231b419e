"""Gather what people and probes say of each rule, from the files of the ratings' study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from operator import itemgetter

import pyarrow.parquet as pq

from encore.analysis.bootstrap import Estimate
from encore.analysis.statistics import RuleStats
from encore.core.number_text import NONE, interval, number, percent, percent_interval
from encore.data.annotations import read_samples
from encore.data.rating_runs import RatingManifest
from encore.data.study import LABELS_DIR, Study
from encore.people.judge_labels import TABLE_NAME, LabelManifest
from encore.people.people_and_judges import PEOPLE, people_report, run_name
from encore.people.rates_by_rule import rates_of_study
from encore.people.rule_agreement import label_agreement
from encore.reports.figure_drawing import DataTable
from encore.rules.probe_record import RuleProbe, read_probe
from encore.runs.manifest import read_manifest
from encore.warehouse import Ratings

_BOUGHT_TEXT = {True: "yes", False: "no", None: NONE}


def rules_and_people(
    ratings: Ratings, rules: Mapping[str, str], statistics: tuple[RuleStats, ...]
) -> DataTable | None:
    """Return a table of all rules; None if nobody labelled them and nothing was probed.

    Args:
        ratings: The opened ratings, of a study or not.
        rules: Titles of the rules, by rule id.
        statistics: Statistics of the rules over all sources.
    """
    study, manifest = ratings.study, ratings.manifest
    if study is None or manifest is None:
        return None
    agreements = sorted(
        (*_label_agreements(study, manifest), *_sample_agreements(study)), key=itemgetter(2)
    )
    # If a rule has several samples or tables, the one with most labels counts: it comes last.
    people, judges = (
        {
            rule_id: (num_labels, kappa)
            for rule_id, rater, num_labels, kappa in agreements
            if rater == name and num_labels
        }
        for name in (PEOPLE, run_name(manifest))
    )
    probe = read_probe(study.path, manifest)
    probe_by_rule = {rule.rule_id: rule for rule in probe.rules} if probe else {}
    if not (people.keys() | judges.keys() | probe_by_rule.keys()) & rules.keys():
        return None
    no_labels = 0, Estimate()
    return DataTable(
        columns=(
            *("rule", "entropy", "accuracy", "labels", "judge and people, kappa", "95 %"),
            *("between people, kappa", "95 %", "largest planted rise", "bought"),
        ),
        rows=tuple(
            (
                rules[rule.rule_id],
                number(rule.entropy_nats),
                percent(rule.accuracy.half),
                str(judges.get(rule.rule_id, no_labels)[0] or NONE),
                *_kappa_cells(judges.get(rule.rule_id, no_labels)[1]),
                *_kappa_cells(people.get(rule.rule_id, no_labels)[1]),
                *_probe_cells(probe_by_rule.get(rule.rule_id)),
            )
            for rule in statistics
        ),
    )


def corrected_rates_table(ratings: Ratings, rules: Mapping[str, str]) -> DataTable | None:
    """Return people's rate under each labelled rule, by the run's judge, by people, and corrected.

    None if nobody has answered a sample of the study.

    Args:
        ratings: The opened ratings, of a study or not.
        rules: Titles of the rules, by rule id.
    """
    if ratings.study is None or ratings.manifest is None:
        return None
    name = run_name(ratings.manifest)
    rate_of = {row.rule_id: row for row in rates_of_study(ratings.study) if row.who == name}
    rows = [
        (
            rules[row.rule_id],
            f"{row.rate.num_labels:,}",
            *chain.from_iterable(
                (percent(estimate.value), percent_interval(estimate.low, estimate.high))
                for estimate in (row.rate.judge, row.rate.people, row.rate.corrected)
            ),
            number(row.forecast.value, digits=1),
        )
        for row in (rate_of[rule_id] for rule_id in rules if rule_id in rate_of)
    ]
    columns = (
        *("rule", "labels", "judge alone", "95 %", "people alone", "95 %", "corrected", "95 %"),
        "a label is worth",
    )
    return DataTable(columns=columns, rows=rows) if rows else None


#: Rule id, rater compared with people, number of labels, kappa.
_Agreement = tuple[str, str, int, Estimate]


def _sample_agreements(study: Study) -> Iterator[_Agreement]:
    """Yield the agreements of each sample of responses that annotators answered."""
    for sample in read_samples(study):
        for row in people_report(study, sample).rules:
            yield row.rule_id, row.who, row.num_items, row.kappa


def _label_agreements(study: Study, manifest: RatingManifest) -> Iterator[_Agreement]:
    """Yield the agreements on labelled single responses that the run's judge rated."""
    for path in sorted((study.path / LABELS_DIR).glob(f"*/{TABLE_NAME}")):
        if not (path.parent / LabelManifest.FILE).is_file():  # ratings from elsewhere
            continue
        label_manifest = read_manifest(path.parent, LabelManifest)
        if (label_manifest.identity["judge"], label_manifest.deviations) == (
            manifest.identity["judge"],
            manifest.deviations,
        ):
            label_texts, run_texts = (
                {rule["rule_id"]: rule["rating_rule"] for rule in run.rules}
                for run in (label_manifest, manifest)
            )
            for rule in label_agreement(pq.read_table(path, partitioning=None)).rules:
                if label_texts[rule.rule_id] == run_texts.get(rule.rule_id):
                    yield rule.rule_id, run_name(manifest), rule.num_ratings, rule.kappa


def _kappa_cells(kappa: Estimate) -> tuple[str, str]:
    return number(kappa.value, digits=2), interval(kappa.low, kappa.high)


def _probe_cells(probe: RuleProbe | None) -> tuple[str, str]:
    if probe is None:
        return NONE, NONE
    rises = [effect.rise for effect in probe.effects.values() if effect.rise is not None]
    return number(max(rises, default=None), digits=2), _BOUGHT_TEXT[probe.is_bought]
