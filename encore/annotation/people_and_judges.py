"""How far people agree with each other and with judges, and whether they prefer low entropy.

A judge's rating counts as the nearest label of the scale, the lower of two that are equally near.
Where several people labelled a response, judges are compared with the median of their labels, the
lower of two. Kappa weighs a disagreement by the square of how many labels it goes over; of more
than two people it is the mean over all pairs of them, with the mean ends of their intervals, which
is wider than need be. Alpha takes labels as numbers. Figures are those of the sample, in which rare
ratings are more frequent than among all responses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.agreement import (
    Estimate,
    alpha_interval,
    comparisons_needed,
    kappa_interval,
    win_rate_interval,
)
from encore.annotation.answers import Sample, lower_median, on_scale, read_answers, read_items
from encore.data.study import Study
from encore.rating_runs import list_runs, run_status

# Suffixes: A annotators, I items.

#: Who judges are compared with, and what the row of all rules is called.
PEOPLE, ALL_RULES = "people", "all rules"

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAgreement:
    """Agreement on one rule, between people or between people and one judge.

    Attributes:
        rule_id: The rule; `ALL_RULES` for all together.
        who: `PEOPLE`, or the judge.
        run_key: The judge's run; None for people.
        num_items: Items with two labels to compare.
        kappa: Cohen's, weighted.
        alpha: Krippendorff's.
    """

    rule_id: str
    who: str
    run_key: str | None
    num_items: int
    kappa: Estimate
    alpha: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A response on which people, or people and a judge, differ.

    Attributes:
        item_id: The item.
        response_id: ``pair_id:chosen`` or ``pair_id:rejected``.
        rule_id: The rule.
        labels: What each annotator said.
        judges: What each judge's rating is on the scale, by run key.
        spread: Between the lowest and the highest of them.
    """

    item_id: str
    response_id: str
    rule_id: str
    labels: dict[str, float]
    judges: dict[str, float]
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """How often the rule of lower entropy was chosen.

    Attributes:
        question: ``clarity``, ``reliability`` or ``both``.
        num_comparisons: Answers.
        num_items: Pairs of rules.
        win_rate: With its interval over pairs of rules.
        alpha: Krippendorff's between people, of which side they chose.
    """

    question: str
    num_comparisons: int
    num_items: int
    win_rate: Estimate
    alpha: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleReport:
    """What the answers of a sample say.

    Attributes:
        sample: Its key.
        annotators: Everybody who answered.
        rules: Of ``--kind responses``, people first, then judges; all rules first.
        disagreements: Of the same, the largest spread first.
        win_rates: Of ``--kind rules``.
        comparisons_needed: Of the same: independent comparisons that show the paper's 83 % against
            one half, at 5 % with power 0.8.
    """

    sample: str
    annotators: tuple[str, ...]
    rules: tuple[RuleAgreement, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    win_rates: tuple[WinRate, ...] = ()
    comparisons_needed: int | None = None


def people_report(study: Study, sample: Sample) -> PeopleReport:
    """Agreement on the items of a sample that were answered; all annotators, all rating runs."""
    answers = read_answers(study, sample)
    annotators = tuple(sorted(set(answers["annotator"].to_pylist())))
    if sample.kind == "rules":
        return PeopleReport(
            sample=sample.key,
            annotators=annotators,
            win_rates=tuple(_win_rates(study, sample, answers, annotators)),
            comparisons_needed=comparisons_needed(),
        )
    items = read_items(study, sample).to_pylist()
    label_AI = _table(answers["annotator"], answers["item_id"], answers["label"], annotators, items)
    judges = {
        run_key: (title, on_scale(rating_I, sample.levels))
        for run_key, title, rating_I in _judges(study, items)
    }
    return PeopleReport(
        sample=sample.key,
        annotators=annotators,
        rules=tuple(_rules(items, label_AI, judges)),
        disagreements=tuple(_disagreements(items, annotators, label_AI, judges)),
    )


def _table(
    annotator_N: pa.ChunkedArray,
    item_N: pa.ChunkedArray,
    label_N: Any,
    annotators: Sequence[str],
    items: Sequence[Mapping[str, Any]],
) -> _Floats:
    """Labels by annotator and item, NaN where there is none, shape [A, I]."""
    row_of = {name: row for row, name in enumerate(annotators)}
    column_of = {item["item_id"]: column for column, item in enumerate(items)}
    label_AI = np.full((len(annotators), len(items)), np.nan)
    rows = [row_of[one] for one in annotator_N.to_pylist()]
    label_AI[rows, [column_of[one] for one in item_N.to_pylist()]] = np.asarray(label_N)
    return label_AI


def _judges(study: Study, items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, _Floats]]:
    """Key, title and ratings of the items of each rating run; NaN where it has none."""
    keys = ("source", "pair_id", "response", "rule_id")
    place_of = {tuple(item[key] for key in keys): place for place, item in enumerate(items)}
    filters = [("pair_id", "in", {item["pair_id"] for item in items})]
    for run_dir in list_runs(study.ratings_dir):
        status = run_status(run_dir)
        rating_I = np.full(len(items), np.nan)
        for path in status.paths:
            rows = pq.read_table(
                path, columns=[*keys, "rating"], filters=filters, partitioning=None
            )
            for row in rows.to_pylist():
                place = place_of.get(tuple(row[key] for key in keys))
                if place is not None and row["rating"] is not None:
                    rating_I[place] = row["rating"]
        yield status.manifest.run_key, status.manifest.title, rating_I


def _rules(
    items: Sequence[Mapping[str, Any]],
    label_AI: _Floats,
    judges: Mapping[str, tuple[str, _Floats]],
) -> Iterator[RuleAgreement]:
    rule_I = np.array([item["rule_id"] for item in items], dtype=object)
    for rule_id in (ALL_RULES, *sorted(set(rule_I))):
        is_of_I = np.full(len(items), True) if rule_id == ALL_RULES else rule_I == rule_id
        own_AI = label_AI[:, is_of_I]
        yield RuleAgreement(
            rule_id=rule_id,
            who=PEOPLE,
            run_key=None,
            num_items=int(((~np.isnan(own_AI)).sum(axis=0) >= 2).sum()),
            kappa=_kappa_of_people(own_AI),
            alpha=alpha_interval(own_AI, level="interval"),
        )
        median_I = np.array([_median(label_A) for label_A in own_AI.T])
        for run_key, (title, rating_I) in judges.items():
            both_2I = np.stack([median_I, rating_I[is_of_I]])
            yield RuleAgreement(
                rule_id=rule_id,
                who=title,
                run_key=run_key,
                num_items=int((~np.isnan(both_2I).any(axis=0)).sum()),
                kappa=kappa_interval(*both_2I, is_ordered=True),
                alpha=alpha_interval(both_2I, level="interval"),
            )


def _median(label_A: _Floats) -> float:
    known = label_A[~np.isnan(label_A)].tolist()
    return lower_median(known) if known else math.nan


def _kappa_of_people(label_AI: _Floats) -> Estimate:
    """The mean over pairs of annotators for which kappa is defined."""
    pairs = [kappa_interval(*two, is_ordered=True) for two in combinations(label_AI, 2)]
    known = [
        (one.value, one.low, one.high)
        for one in pairs
        if one.value is not None and one.low is not None and one.high is not None
    ]
    if not known:
        return Estimate()
    value, low, high = np.mean(known, axis=0).tolist()
    return Estimate(value=value, low=low, high=high)


def _disagreements(
    items: Sequence[Mapping[str, Any]],
    annotators: Sequence[str],
    label_AI: _Floats,
    judges: Mapping[str, tuple[str, _Floats]],
) -> list[Disagreement]:
    """The items on which labels or ratings differ, the largest spread first."""
    found = []
    for place, item in enumerate(items):
        labels = _known(annotators, label_AI[:, place])
        ratings = _known(list(judges), [rating_I[place] for _, rating_I in judges.values()])
        values = [*labels.values(), *ratings.values()]
        if labels and max(values) > min(values):
            found.append(
                Disagreement(
                    item_id=item["item_id"],
                    response_id=f"{item['pair_id']}:{item['response']}",
                    rule_id=item["rule_id"],
                    labels=labels,
                    judges=ratings,
                    spread=max(values) - min(values),
                )
            )
    return sorted(found, key=lambda one: (-one.spread, one.item_id))


def _known(names: Sequence[str], values: Any) -> dict[str, float]:
    return {
        name: float(value) for name, value in zip(names, values, strict=True) if not np.isnan(value)
    }


def _win_rates(
    study: Study, sample: Sample, answers: pa.Table, annotators: Sequence[str]
) -> Iterator[WinRate]:
    items = read_items(study, sample).to_pylist()
    lower = {item["item_id"]: item["lower_entropy"] for item in items}
    question_N = np.array(answers["question"].to_pylist(), dtype=object)
    item_N = np.array(answers["item_id"].to_pylist(), dtype=object)
    won_N = np.array(
        [
            choice == lower[item]
            for item, choice in zip(item_N, answers["choice"].to_pylist(), strict=True)
        ],
        dtype=bool,
    )
    for name in ("both", *(question.name for question in sample.questions)):
        is_of_N = np.full(len(won_N), True) if name == "both" else question_N == name
        alpha = Estimate()
        if name != "both":
            own = answers.filter(pa.array(is_of_N))
            won_AI = _table(own["annotator"], own["item_id"], won_N[is_of_N], annotators, items)
            alpha = alpha_interval(won_AI)
        yield WinRate(
            question=name,
            num_comparisons=int(is_of_N.sum()),
            num_items=len(set(item_N[is_of_N])),
            win_rate=win_rate_interval(won_N[is_of_N].tolist(), group_C=item_N[is_of_N].tolist()),
            alpha=alpha,
        )
