"""Measure the agreement of a judge with people's labels, and its correlation with entropy.

The paper's claim is that rules whose ratings have a higher entropy are less accurate. Accuracy here
is agreement with people about a single response, not a preference between two responses.

Responses to one prompt belong together in the intervals, if the prompts are known.

Suffixes: I labelled responses of a rule, L levels that labels have, R rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate
from encore.analysis.rater_agreement import (
    alpha_interval,
    kappa_interval,
    nearest_level,
    pearson_interval,
)
from encore.people.rates_by_rule import RuleRate
from encore.warehouse import entropies_by_rule

_Floats = NDArray[np.float64]

#: Measures of agreement that entropy is correlated with: wording, and how to read it from a rule.
_MEASURES = {
    "agreement": ("share of equal labels", attrgetter("agreement")),
    "kappa": ("kappa", attrgetter("kappa.value")),
    "alpha": ("alpha", attrgetter("alpha.value")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLabels:
    """Agreement of people's labels and a judge's ratings under one rule.

    A rating counts as the nearest of the values that labels have (`nearest_level`).

    Attributes:
        rule_id: Id of the rule.
        num_labels: Number of responses that people labelled.
        num_ratings: Number of labelled responses with a rating. ``agreement``, ``kappa``, ``alpha``
            and ``entropy_nats`` are computed over these.
        positive: Mean label of all labelled responses, from 0 to 1.
        agreement: Share of responses whose rating equals the label, from 0 to 1.
        kappa: Cohen's kappa, with squared weights if labels have more than two values. Its value is
            None if people or the judge give the same label to every response.
        alpha: Krippendorff's alpha for ordinal labels.
        entropy_nats: Entropy of the ratings in nats.
    """

    rule_id: str
    num_labels: int
    num_ratings: int
    positive: float
    agreement: float | None
    kappa: Estimate
    alpha: Estimate
    entropy_nats: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelAgreement:
    """Result of `label_agreement`: the rules of a table of labels.

    Attributes:
        rules: Agreement under each rule, in the order of the table.
        entropy_with: Pearson's r over rules between the entropy of the ratings and the share of
            equal labels, kappa, and alpha.
        sentence: Verdict on the paper's claim for each of these correlations.
        notes: Limits of these numbers, one sentence each.
        judge: Name of the judge; None if the table had ratings.
        table: Path of the Parquet file with labels and ratings; None if it was not written.
        synthetic: Names of the synthetic inputs, such as the judge; empty without any.
        rates: People's rate under each rule, from the judge's ratings of all responses of the
            table and people's labels.
    """

    rules: tuple[RuleLabels, ...]
    entropy_with: dict[str, Estimate]
    sentence: str
    notes: tuple[str, ...]
    judge: str | None = None
    table: str | None = None
    synthetic: tuple[str, ...] = ()
    rates: tuple[RuleRate, ...] = ()


def label_agreement(table: pa.Table) -> LabelAgreement:
    """Compare people and judge in a table of schema `encore.data.schemas.LABELS`."""
    rule_I = np.asarray(table["rule_id"].to_pylist())
    label_I = table["label"].to_numpy()
    rating_I = table["rating"].to_numpy().astype(np.float64)  # null becomes NaN
    level_L = np.unique(label_I)
    prompt_I = _prompts(table)
    entropies = entropies_by_rule(table)
    rules = tuple(
        _rule_labels(
            str(rule),
            label_I[rule_I == rule],
            rating_I[rule_I == rule],
            prompt_I[rule_I == rule],
            level_L,
            entropy_nats=entropies[rule],
        )
        for rule in dict.fromkeys(rule_I.tolist())
    )
    entropy_R = np.array([rule.entropy_nats for rule in rules], dtype=np.float64)  # None is NaN
    entropy_with, verdicts = {}, []
    for name, (wording, measure_of) in _MEASURES.items():
        measure_R = np.array([measure_of(rule) for rule in rules], dtype=np.float64)
        correlation = entropy_with[name] = pearson_interval(entropy_R, measure_R)
        num_rules = int((~np.isnan(entropy_R + measure_R)).sum())
        verdicts.append(f"with {wording}: {_verdict(correlation, num_rules)}")
    notes = []
    if (entropy_with["agreement"].high or 0) < 0 <= (entropy_with["kappa"].high or 0):
        notes.append(
            "if one answer to a rule is rare, its ratings have a low entropy and most labels are "
            "equal for any judge; kappa and alpha correct for this, and do not show the claim"
        )
    claim = "the paper's claim that higher entropy means lower accuracy"
    return LabelAgreement(
        rules=rules,
        entropy_with=entropy_with,
        sentence=f"{claim}, {'; '.join(verdicts)}",
        notes=tuple(notes),
    )


def _prompts(table: pa.Table) -> NDArray[np.intp]:
    """Return a number for the prompt of each row, shape [I]; a response without one has its own."""
    prompts: list[str | None] = [None] * table.num_rows
    if "prompt_id" in table.column_names:
        prompts = table["prompt_id"].to_pylist()
    responses = table.select(["source", "response_id"]).to_pylist()
    names = [
        f"response {response}" if prompt is None else f"prompt {prompt}"
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    return np.asarray(np.unique(names, return_inverse=True)[1])


def _rule_labels(
    rule_id: str,
    label_I: _Floats,
    rating_I: _Floats,
    prompt_I: NDArray[np.intp],
    level_L: _Floats,
    *,
    entropy_nats: float | None,
) -> RuleLabels:
    is_rated_I = ~np.isnan(rating_I)
    prompt_I = prompt_I[is_rated_I]
    people_I, rated_I = label_I[is_rated_I], rating_I[is_rated_I]
    judged_I = nearest_level(rated_I, level_L)
    return RuleLabels(
        rule_id=rule_id,
        num_labels=len(label_I),
        num_ratings=len(rated_I),
        positive=float(label_I.mean()),
        agreement=float((people_I == judged_I).mean()) if len(rated_I) else None,
        kappa=kappa_interval(people_I, judged_I, prompt_I),
        alpha=alpha_interval(np.stack([people_I, judged_I]), prompt_I),
        entropy_nats=entropy_nats,
    )


def _verdict(r: Estimate, num_rules: int) -> str:
    """Return r with its interval and a verdict: the claim holds if r is negative."""
    if r.value is None or r.low is None or r.high is None:
        return f"not defined over {num_rules} rules"
    verdict = "holds" if r.high < 0 else "fails" if r.low > 0 else "undecided"
    return f"r = {r.value:.2f} ({r.low:.2f} to {r.high:.2f}) over {num_rules} rules, {verdict}"
