"""How far people agree with each other and with judges, and whether they prefer low entropy.

A judge's rating counts as the nearest label of the scale. Where several people labelled a response,
judges are compared with the median of their labels, the lower of two. Kappa weighs a disagreement
by the square of how many labels it goes over; of more than two people it is the mean over all pairs
of them, with the mean ends of their intervals, which is wider than need be. Figures are those of
the sample, in which rare ratings are more frequent than among all responses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.rater_agreement import (
    alpha_interval,
    comparisons_needed,
    kappa_interval,
    nearest_level,
    win_rate_interval,
)
from encore.analysis.resampling import Estimate
from encore.data.annotations import Sample, read_answers, read_items
from encore.data.rating_runs import RatingManifest, list_runs, ratings_of, run_status
from encore.data.study import Study

# Suffixes: A annotators, J annotators and judges, I items.

#: Who judges are compared with, and what the rows of all rules and questions are called.
PEOPLE, ALL_RULES, BOTH = "people", "all rules", "both"

_Floats = NDArray[np.float64]
_Items = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAgreement:
    """Agreement on one rule, between people or between people and one judge.

    Attributes:
        rule_id: The rule; `ALL_RULES` for all together.
        who: `PEOPLE`, or the judge with the key of its run.
        num_items: Items with two labels to compare.
        kappa: Cohen's, weighted.
        alpha: Krippendorff's, ordinal.
    """

    rule_id: str
    who: str
    num_items: int
    kappa: Estimate
    alpha: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """How often the rule of lower entropy was chosen.

    Attributes:
        question: ``clarity``, ``reliability`` or `BOTH`.
        num_comparisons: Answers.
        num_items: Pairs of rules.
        win_rate: With its interval, in which several answers about one pair belong together.
    """

    question: str
    num_comparisons: int
    num_items: int
    win_rate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleReport:
    """What the answers of a sample say.

    Attributes:
        annotators: Everybody who answered.
        rules: Of ``--kind responses``, all rules first; of each people first, then judges.
        disagreements: Of the same, the largest first: ``rule_id``, ``response_id`` and ``said``,
            the label of each annotator and each judge's rating on the scale.
        win_rates: Of ``--kind rules``.
        comparisons_needed: Of the same: independent comparisons that show the paper's 83 % against
            one half, at 5 % with power 0.8.
    """

    annotators: tuple[str, ...]
    rules: tuple[RuleAgreement, ...] = ()
    disagreements: tuple[dict[str, Any], ...] = ()
    win_rates: tuple[WinRate, ...] = ()
    comparisons_needed: int | None = None


def run_name(manifest: RatingManifest) -> str:
    """What the judge of a run is called beside people."""
    return f"{manifest.title} ({manifest.run_key[:8]})"


def people_report(study: Study, sample: Sample) -> PeopleReport:
    """Agreement on the items of a sample that were answered; all annotators, all rating runs."""
    rows = read_answers(study, sample).to_pylist()
    answered = {row["item_id"] for row in rows}
    items = [one for one in read_items(study, sample).to_pylist() if one["item_id"] in answered]
    people = tuple(sorted({row["annotator"] for row in rows}))
    if not rows:
        return PeopleReport(annotators=())
    if sample.kind == "rules":
        rates = tuple(_win_rates(rows, items))
        return PeopleReport(
            annotators=people, win_rates=rates, comparisons_needed=comparisons_needed()
        )
    label_of = {(row["annotator"], row["item_id"]): row["label"] for row in rows}
    label_AI = np.array(
        [[label_of.get((who, item["item_id"]), np.nan) for item in items] for who in people]
    )
    judges = dict(_judges(study, items, sample))
    said = dict(zip(people, label_AI, strict=True)) | judges
    return PeopleReport(
        annotators=people,
        rules=tuple(_rules(items, label_AI, judges)),
        disagreements=tuple(_disagreements(items, said)),
    )


def _judges(study: Study, items: _Items, sample: Sample) -> Iterator[tuple[str, _Floats]]:
    """The name of each rating run, and its ratings of the items on the scale; NaN without one."""
    keys = ["source", "pair_id", "response", "rule_id"]
    filters = [("pair_id", "in", {item["pair_id"] for item in items})]
    for run_dir in list_runs(study.ratings_dir):
        status = run_status(run_dir)
        rating_of = ratings_of(status, keys, filters=filters)
        found = [rating_of.get(tuple(item[key] for key in keys)) for item in items]
        rating_I = np.array(found, dtype=np.float64)  # None is NaN
        yield run_name(status.manifest), nearest_level(rating_I, [*map(float, sample.scale)])


def _rules(
    items: _Items, label_AI: _Floats, judges: Mapping[str, _Floats]
) -> Iterator[RuleAgreement]:
    rule_I = np.array([item["rule_id"] for item in items], dtype=object)
    median_I = np.nanquantile(label_AI, 0.5, axis=0, method="lower")
    compared = {PEOPLE: label_AI}
    compared |= {name: np.stack([median_I, rating_I]) for name, rating_I in judges.items()}
    for rule_id in (ALL_RULES, *sorted(set(rule_I))):
        is_of_I = (rule_I == rule_id) | (rule_id == ALL_RULES)
        for who, labels in compared.items():
            own = labels[:, is_of_I]
            yield RuleAgreement(
                rule_id=rule_id,
                who=who,
                num_items=int(((~np.isnan(own)).sum(axis=0) >= 2).sum()),
                kappa=_mean_kappa(own),
                alpha=alpha_interval(own),
            )


def _mean_kappa(label_AI: _Floats) -> Estimate:
    """The mean over pairs of raters for which kappa is defined."""
    pairs = [kappa_interval(*two) for two in combinations(label_AI, 2)]
    known = [[one.value, one.low, one.high] for one in pairs if one.low is not None]
    mean = np.array(known, dtype=np.float64).mean(axis=0).tolist() if known else [None] * 3
    return Estimate(value=mean[0], low=mean[1], high=mean[2])


def _disagreements(items: _Items, said: Mapping[str, _Floats]) -> Iterator[dict[str, Any]]:
    """The items on which labels or ratings differ, the largest spread first."""
    label_JI = np.stack([*said.values()])
    spread_I = np.nanmax(label_JI, axis=0) - np.nanmin(label_JI, axis=0)
    for place in np.argsort(-spread_I, kind="stable")[: np.count_nonzero(spread_I)]:
        item, labels = items[place], zip(said, label_JI[:, place].tolist(), strict=True)
        yield {
            "rule_id": item["rule_id"],
            "response_id": f"{item['pair_id']}:{item['response']}",
            "said": {name: label for name, label in labels if not math.isnan(label)},
        }


def _win_rates(rows: _Items, items: _Items) -> Iterator[WinRate]:
    lower = {item["item_id"]: item["lower_entropy"] for item in items}
    questions = dict.fromkeys(row["question"] for row in rows)
    for question in (BOTH, *questions):
        own = [row for row in rows if question in (BOTH, row["question"])]
        pairs = [row["item_id"] for row in own]
        won = [row["choice"] == lower[row["item_id"]] for row in own]
        yield WinRate(
            question=question,
            num_comparisons=len(own),
            num_items=len(set(pairs)),
            win_rate=win_rate_interval(won, group_C=pairs),
        )
