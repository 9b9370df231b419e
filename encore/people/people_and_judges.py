"""Measure the agreement of people with each other and with judges, and their win rates.

A judge's rating counts as the nearest label of the scale. If several people labelled a response,
judges are compared with the lower median of their labels. Kappa weights a disagreement by the
squared distance of the labels' positions on the scale. For more than two people it is the mean over
all pairs of people; its interval is the mean of their intervals, which is conservative. Items of
one prompt belong together in the intervals: its responses, and a response under several rules. All
numbers describe the sample, in which rare ratings are more frequent than among all responses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate
from encore.analysis.rater_agreement import (
    alpha_interval,
    comparisons_needed,
    kappa_interval,
    nearest_level,
    win_rate_interval,
)
from encore.data.annotations import Sample, read_answers, read_items
from encore.data.pairs import prompts_of_pairs
from encore.data.rating_runs import RatingManifest, list_runs, ratings_of, run_status
from encore.data.study import Study

# Suffixes: A annotators, J annotators and judges, I items, C comparisons (answers about rules).

#: Value of `RuleAgreement.who` for the agreement between people.
PEOPLE = "people"
#: Value of `RuleAgreement.rule_id` for all rules together.
ALL_RULES = "all rules"
#: Value of `WinRate.question` for all questions together.
BOTH = "both"

_Floats = NDArray[np.float64]
_Items = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAgreement:
    """Agreement on one rule, between people or between people and one judge.

    Attributes:
        rule_id: Id of the rule; `ALL_RULES` for all together.
        who: `PEOPLE`, or the title of a judge with the key of its run.
        num_items: Number of items with at least two labels to compare.
        kappa: Cohen's kappa with squared weights.
        alpha: Krippendorff's alpha for ordinal labels.
    """

    rule_id: str
    who: str
    num_items: int
    kappa: Estimate
    alpha: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """Share of answers that chose the rule of lower entropy.

    Attributes:
        question: Name of the question, ``clarity`` or ``reliability``, or `BOTH`.
        num_comparisons: Number of answers.
        num_items: Number of pairs of rules.
        win_rate: Share from 0 to 1. Its interval resamples pairs of rules with all their answers.
    """

    question: str
    num_comparisons: int
    num_items: int
    win_rate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleReport:
    """Result of `people_report`. What the other kind of sample has is empty or None.

    Attributes:
        annotators: Names of all people who answered, sorted.
        num_cannot_say: Number of answers "cannot say", which nothing else counts.
        rules: Agreement in samples of responses: `ALL_RULES` first, then each rule; for each of
            them between people first, then of people with each judge.
        disagreements: Items of samples of responses with different labels, the largest spread
            first: ``rule_id``, ``response_id`` and ``said``, which has the label of each annotator
            and each judge's rating on the scale.
        win_rates: Win rates in samples of rules, for both questions together and for each one.
        comparisons_needed: For samples of rules, the number of independent comparisons that show
            the paper's 83 % against one half, at level 5 % with power 0.8.
    """

    annotators: tuple[str, ...]
    num_cannot_say: int = 0
    rules: tuple[RuleAgreement, ...] = ()
    disagreements: tuple[dict[str, Any], ...] = ()
    win_rates: tuple[WinRate, ...] = ()
    comparisons_needed: int | None = None


def run_name(manifest: RatingManifest) -> str:
    """Return the name of a run's judge in `RuleAgreement.who`, which the key tells from others."""
    return f"{manifest.named_judge} ({manifest.run_key[:8]})"


def people_report(study: Study, sample: Sample) -> PeopleReport:
    """Compare all annotators and all rating runs of a study on the answered items of a sample."""
    all_rows = read_answers(study, sample).to_pylist()
    annotators = tuple(sorted({row["annotator"] for row in all_rows}))
    value_column = "label" if sample.kind == "responses" else "choice"
    rows = [row for row in all_rows if row[value_column] is not None]
    num_cannot_say = len(all_rows) - len(rows)
    answered_ids = {row["item_id"] for row in rows}
    all_items = read_items(study, sample).to_pylist()
    items = [item for item in all_items if item["item_id"] in answered_ids]
    if not rows:
        return PeopleReport(annotators=annotators, num_cannot_say=num_cannot_say)
    if sample.kind == "rules":
        return PeopleReport(
            annotators=annotators,
            num_cannot_say=num_cannot_say,
            win_rates=tuple(_win_rates(rows, items)),
            comparisons_needed=comparisons_needed(),
        )
    label_of = {(row["annotator"], row["item_id"]): row["label"] for row in rows}
    label_AI = np.array(
        [
            [label_of.get((annotator, item["item_id"]), np.nan) for item in items]
            for annotator in annotators
        ]
    )
    judges = dict(_judge_labels(study, items, sample))
    labels_by_rater = dict(zip(annotators, label_AI, strict=True)) | judges
    return PeopleReport(
        annotators=annotators,
        num_cannot_say=num_cannot_say,
        rules=tuple(_rule_agreements(items, label_AI, judges, _prompts(study, items))),
        disagreements=tuple(_disagreements(items, labels_by_rater)),
    )


def _judge_labels(study: Study, items: _Items, sample: Sample) -> Iterator[tuple[str, _Floats]]:
    """Yield the name of each rating run and its ratings as labels of the scale, shape [I].

    An item without a rating has NaN.
    """
    keys = ["source", "pair_id", "response", "rule_id"]
    filters = [("pair_id", "in", {item["pair_id"] for item in items})]
    for run_dir in list_runs(study.ratings_dir):
        status = run_status(run_dir)
        rating_of = ratings_of(status, keys, filters=filters)
        ratings = [rating_of.get(tuple(item[key] for key in keys)) for item in items]
        rating_I = np.array(ratings, dtype=np.float64)  # None becomes NaN
        yield run_name(status.manifest), nearest_level(rating_I, [*map(float, sample.scale)])


def _prompts(study: Study, items: _Items) -> NDArray[np.intp]:
    """Return a number for the prompt of each item, shape [I]; a pair without one has its own."""
    prompt_of = prompts_of_pairs(study)
    keys = [(item["source"], item["pair_id"]) for item in items]
    names = [str(prompt_of.get(key, key)) for key in keys]
    return np.asarray(np.unique(names, return_inverse=True)[1])


def _rule_agreements(
    items: _Items, label_AI: _Floats, judges: Mapping[str, _Floats], prompt_I: NDArray[np.intp]
) -> Iterator[RuleAgreement]:
    """Yield the agreement between people and with each judge, for all rules and for each one."""
    rule_I = np.array([item["rule_id"] for item in items], dtype=object)
    median_I = np.nanquantile(label_AI, 0.5, axis=0, method="lower")
    labels_by_comparison = {PEOPLE: label_AI}
    labels_by_comparison |= {
        name: np.stack([median_I, rating_I]) for name, rating_I in judges.items()
    }
    for rule_id in (ALL_RULES, *sorted(set(rule_I))):
        is_of_rule_I = (rule_I == rule_id) | (rule_id == ALL_RULES)
        for who, labels in labels_by_comparison.items():
            rule_labels = labels[:, is_of_rule_I]
            yield RuleAgreement(
                rule_id=rule_id,
                who=who,
                num_items=int(((~np.isnan(rule_labels)).sum(axis=0) >= 2).sum()),
                kappa=_mean_kappa(rule_labels, prompt_I[is_of_rule_I]),
                alpha=alpha_interval(rule_labels, prompt_I[is_of_rule_I]),
            )


def _mean_kappa(label_AI: _Floats, prompt_I: NDArray[np.intp]) -> Estimate:
    """Return the mean kappa and interval over the pairs of raters for which kappa is defined."""
    kappas = [kappa_interval(*raters, prompt_I) for raters in combinations(label_AI, 2)]
    defined = [[kappa.value, kappa.low, kappa.high] for kappa in kappas if kappa.low is not None]
    if not defined:
        return Estimate()
    value, low, high = np.array(defined, dtype=np.float64).mean(axis=0).tolist()
    return Estimate(value=value, low=low, high=high)


def _disagreements(
    items: _Items, labels_by_rater: Mapping[str, _Floats]
) -> Iterator[dict[str, Any]]:
    """Yield the items on which labels or ratings differ, the largest spread first."""
    label_JI = np.stack([*labels_by_rater.values()])
    spread_I = np.nanmax(label_JI, axis=0) - np.nanmin(label_JI, axis=0)
    for index in np.argsort(-spread_I, kind="stable")[: np.count_nonzero(spread_I)]:
        item = items[index]
        label_by_rater = zip(labels_by_rater, label_JI[:, index].tolist(), strict=True)
        yield {
            "rule_id": item["rule_id"],
            "response_id": f"{item['pair_id']}:{item['response']}",
            "said": {rater: label for rater, label in label_by_rater if not math.isnan(label)},
        }


def _win_rates(rows: _Items, items: _Items) -> Iterator[WinRate]:
    """Yield the win rate of rules of lower entropy, for both questions and for each one."""
    lower_side = {item["item_id"]: item["lower_entropy"] for item in items}
    questions = dict.fromkeys(row["question"] for row in rows)
    for question in (BOTH, *questions):
        answers = [row for row in rows if question in (BOTH, row["question"])]
        item_ids = [row["item_id"] for row in answers]
        is_win_C = [row["choice"] == lower_side[row["item_id"]] for row in answers]
        yield WinRate(
            question=question,
            num_comparisons=len(answers),
            num_items=len(set(item_ids)),
            win_rate=win_rate_interval(is_win_C, group_C=item_ids),
        )
