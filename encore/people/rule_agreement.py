"""How far a judge's ratings agree with people's labels, rule by rule, and whether entropy tells.

The paper's claim is that rules whose ratings have a higher entropy are less accurate. Accuracy is
here agreement with people under the rule itself, not a preference between two responses.

Suffixes: I responses with a label and a rating, L levels that labels have, R rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.analysis.level_codes import rule_entropies
from encore.analysis.rater_agreement import (
    alpha_interval,
    kappa_interval,
    nearest_level,
    pearson_interval,
)
from encore.analysis.resampling import Estimate

_Floats = NDArray[np.float64]

#: What entropy is correlated with: how it is called, and where a rule has it.
_MEASURES = {
    "agreement": ("share of equal labels", attrgetter("agreement")),
    "kappa": ("kappa", attrgetter("kappa.value")),
    "alpha": ("alpha", attrgetter("alpha.value")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLabels:
    """One rule: people's labels beside a judge's ratings.

    A rating counts as the nearest of the values that labels have (`nearest_level`).

    Attributes:
        rule_id: The rule.
        num_labels: Responses that people labelled.
        num_ratings: Those of them that have a rating: what all figures but ``positive`` are of.
        positive: Mean label of the labelled.
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
        sentence: What that says of the paper's claim.
        notes: What limits these figures, a sentence each.
        judge: Its name; None for a table that had ratings.
        table: Where labels and ratings are kept; None: nowhere.
        synthetic: What is synthetic, in words.
    """

    rules: tuple[RuleLabels, ...]
    entropy_with: dict[str, Estimate]
    sentence: str
    notes: tuple[str, ...]
    judge: str | None = None
    table: str | None = None
    synthetic: tuple[str, ...] = ()


def label_agreement(table: pa.Table) -> LabelAgreement:
    """Agreement between people and the judge in a table of schema `encore.data.schemas.LABELS`."""
    rule_I = np.asarray(table["rule_id"].to_pylist())
    label_I = table["label"].to_numpy()
    rating_I = table["rating"].to_numpy().astype(np.float64)  # null becomes NaN
    level_L = np.unique(label_I)
    rules = tuple(
        _rule_labels(str(rule), label_I[rule_I == rule], rating_I[rule_I == rule], level_L)
        for rule in dict.fromkeys(rule_I.tolist())
    )
    entropy_R = np.array([one.entropy_nats for one in rules], dtype=np.float64)  # None is NaN
    entropy_with, said = {}, []
    for name, (words, figure) in _MEASURES.items():
        figure_R = np.array([figure(one) for one in rules], dtype=np.float64)
        found = entropy_with[name] = pearson_interval(entropy_R, figure_R)
        num_rules = int((~np.isnan(entropy_R + figure_R)).sum())
        said.append(f"with {words}: {_verdict(found, num_rules)}")
    notes = []
    if (entropy_with["agreement"].high or 0) < 0 <= (entropy_with["kappa"].high or 0):
        notes.append(
            "where one answer is rare, ratings have a low entropy and most labels are equal, "
            "whoever judges; kappa and alpha take that out, and do not show the claim"
        )
    return LabelAgreement(
        rules=rules,
        entropy_with=entropy_with,
        sentence=f"the paper's claim that higher entropy is lower accuracy, {'; '.join(said)}",
        notes=tuple(notes),
    )


def _rule_labels(rule_id: str, label_I: _Floats, rating_I: _Floats, level_L: _Floats) -> RuleLabels:
    is_rated_I = ~np.isnan(rating_I)
    people_I, rated_I = label_I[is_rated_I], rating_I[is_rated_I]
    judged_I = nearest_level(rated_I, level_L)
    counts = np.unique(rated_I, return_counts=True)[1]
    return RuleLabels(
        rule_id=rule_id,
        num_labels=len(label_I),
        num_ratings=len(rated_I),
        positive=float(label_I.mean()),
        agreement=float((people_I == judged_I).mean()) if len(rated_I) else None,
        kappa=kappa_interval(people_I, judged_I),
        alpha=alpha_interval(np.stack([people_I, judged_I])),
        entropy_nats=float(rule_entropies(counts[:, None])[0]) if len(rated_I) else None,
    )


def _verdict(found: Estimate, num_rules: int) -> str:
    """Does higher entropy mean less agreement? The claim is a negative r."""
    if found.value is None or found.low is None or found.high is None:
        return f"not defined over {num_rules} rules"
    word = "holds" if found.high < 0 else "fails" if found.low > 0 else "cannot be told"
    interval = f"{found.low:.2f} to {found.high:.2f}"
    return f"r = {found.value:.2f} ({interval}) over {num_rules} rules, {word}"
