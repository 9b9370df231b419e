"""How far a judge's ratings agree with people's labels, rule by rule, and whether entropy tells.

The paper's claim is that rules whose ratings have a higher entropy are less accurate. Accuracy is
here agreement with people under the rule itself, not a preference between two responses.

Suffixes: I responses with a label and a rating, L levels that labels have, R rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.agreement import (
    Estimate,
    alpha_interval,
    kappa_interval,
    nearest_level,
    pearson_interval,
)
from encore.evidence.level_codes import entropies_of

_Floats = NDArray[np.float64]

#: What entropy is correlated with, and how it is called.
_MEASURES = {"agreement": "share of equal labels", "kappa": "kappa", "alpha": "alpha"}
_FEW_OF_A_KIND = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLabels:
    """One rule: people's labels beside a judge's ratings.

    A rating counts as the nearest of the values that labels have (`nearest_level`).

    Attributes:
        rule_id: The rule.
        num_labels: Responses that people labelled.
        num_ratings: Those of them that have a rating: what all figures but ``positive`` are of.
        positive: Mean label of the labelled.
        judged_positive: Mean of what the ratings count as.
        agreement: Share of equal labels.
        kappa: Cohen's kappa, weighted by squares where labels have more than two values; None where
            people, or the judge, always say the same.
        alpha: Krippendorff's alpha, ordinal.
        entropy_nats: Of the ratings.
    """

    rule_id: str
    num_labels: int
    num_ratings: int
    positive: float
    judged_positive: float | None
    agreement: float | None
    kappa: Estimate
    alpha: Estimate
    entropy_nats: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelAgreement:
    """All rules of a table of labels.

    Attributes:
        rules: One row for each, in the order of the table.
        entropy_with: Pearson's r over rules of the entropy of the ratings with the share of equal
            labels, with kappa and with alpha.
        num_rules_with: How many rules have both, by the same names.
        sentence: What that says of the paper's claim.
        notes: What limits these figures, a sentence each.
        judge: Its name; None for a table that had ratings.
        table: Where labels and ratings are kept; None: nowhere.
        synthetic: What is synthetic, in words.
    """

    rules: tuple[RuleLabels, ...]
    entropy_with: dict[str, Estimate]
    num_rules_with: dict[str, int]
    sentence: str
    notes: tuple[str, ...]
    judge: str | None = None
    table: str | None = None
    synthetic: tuple[str, ...] = ()


def label_agreement(table: pa.Table, *, seed: int = 0) -> LabelAgreement:
    """Agreement between people and the judge in a table of schema `encore.schemas.LABELS`.

    Args:
        table: Labels, and ratings where there are any.
        seed: Of the bootstrap over responses.
    """
    rule_I = np.asarray(table["rule_id"].to_pylist())
    label_I = table["label"].to_numpy()
    rating_I = table["rating"].to_numpy().astype(np.float64)  # null becomes NaN
    level_L = np.unique(label_I)
    rules = tuple(
        _rule_labels(str(rule), label_I[rule_I == rule], rating_I[rule_I == rule], level_L, seed)
        for rule in dict.fromkeys(rule_I.tolist())
    )
    figures = {
        "agreement": [one.agreement for one in rules],
        "kappa": [one.kappa.value for one in rules],
        "alpha": [one.alpha.value for one in rules],
    }
    entropy_R = np.array([one.entropy_nats for one in rules], dtype=np.float64)  # None is NaN
    entropy_with, number = {}, {}
    for name, found in figures.items():
        figure_R = np.array(found, dtype=np.float64)
        entropy_with[name] = pearson_interval(entropy_R, figure_R)
        number[name] = int((~np.isnan(entropy_R + figure_R)).sum())
    return LabelAgreement(
        rules=rules,
        entropy_with=entropy_with,
        num_rules_with=number,
        sentence=_sentence(entropy_with, number),
        notes=tuple(_notes(rules, entropy_with)),
    )


def _rule_labels(
    rule_id: str, label_I: _Floats, rating_I: _Floats, level_L: _Floats, seed: int
) -> RuleLabels:
    is_rated_I = ~np.isnan(rating_I)
    people_I, rated_I = label_I[is_rated_I], rating_I[is_rated_I]
    judged_I = nearest_level(rated_I, level_L)
    counts = np.unique(rated_I, return_counts=True)[1]
    return RuleLabels(
        rule_id=rule_id,
        num_labels=len(label_I),
        num_ratings=len(rated_I),
        positive=float(label_I.mean()),
        judged_positive=float(judged_I.mean()) if len(rated_I) else None,
        agreement=float((people_I == judged_I).mean()) if len(rated_I) else None,
        kappa=kappa_interval(people_I, judged_I, is_ordered=True, seed=seed),
        alpha=alpha_interval(np.stack([people_I, judged_I]), level="ordinal", seed=seed),
        entropy_nats=float(entropies_of(counts[:, None])[0]) if len(rated_I) else None,
    )


def _sentence(entropy_with: dict[str, Estimate], number: dict[str, int]) -> str:
    """Does higher entropy mean less agreement? The claim is a negative r."""
    said = []
    for name, words in _MEASURES.items():
        found, over = entropy_with[name], f"over {number[name]} rules"
        if found.value is None or found.low is None or found.high is None:
            said.append(f"with {words}: not defined {over}")
            continue
        word = "holds" if found.high < 0 else "fails" if found.low > 0 else "cannot be told"
        interval = f"{found.low:.2f} to {found.high:.2f}"
        said.append(f"with {words}: r = {found.value:.2f} ({interval}) {over}, {word}")
    return f"the paper's claim that higher entropy is lower accuracy, {'; '.join(said)}"


def _notes(rules: Sequence[RuleLabels], entropy_with: Mapping[str, Estimate]) -> Iterator[str]:
    high = {name: found.high for name, found in entropy_with.items()}
    if (high["agreement"] or 0) < 0 <= (high["kappa"] or 0):
        yield (
            "where one answer is rare, ratings have a low entropy and most labels are equal, "
            "whoever judges; kappa and alpha take that out, and do not show the claim"
        )
    if unrated := sum(one.num_labels - one.num_ratings for one in rules):
        yield f"{unrated} labels have no rating and count in no figure of agreement"
    if constant := [one.rule_id for one in rules if one.num_ratings and one.kappa.value is None]:
        names = ", ".join(constant)
        yield f"people or the judge always say the same, so there is no kappa: {names}"
    rare = [
        one.rule_id
        for one in rules
        if min(one.positive, 1 - one.positive) * one.num_labels < _FEW_OF_A_KIND
        and one.rule_id not in constant
    ]
    if rare:
        names = ", ".join(rare)
        yield f"fewer than {_FEW_OF_A_KIND} labels on one side, intervals say little: {names}"
