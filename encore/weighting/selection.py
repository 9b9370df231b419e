"""Rule selection instead of weighting (the paper's appendix): a few rules, averaged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encore.analysis.statistics import RuleStats
from encore.weighting import load_scheme
from encore.weighting.comparison import pair_notes
from encore.weighting.composed import Outcome, complete_pairs, composed_outcomes
from encore.weighting.draws import NUM_RANDOM, Draws, draw_random_k, each_single
from encore.weighting.evidence import Evidence
from encore.weighting.opening import open_evidence
from encore.weighting.scheme import DEFAULT_K, DEFAULT_TAU, SchemeOptions
from encore.weighting.subset import places_by_entropy
from encore.weighting.vector import WeightVector


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSelection:
    """The k rules of lowest entropy, against what the paper sets beside them.

    Attributes:
        ranked: All rules from the lowest entropy to the highest.
        vector: Scheme ``top-k``: the first k of ``ranked`` weigh the same.
        selected: Outcome of the selected rules' mean rating ("ENCORE top 5").
        weighted: Outcome of ENCORE's weights over all rules.
        random_k: The means of k rules drawn by lot ("Random 5 Rules").
        single: Every rule on its own ("Single Rules").
        num_pairs_total: All pairs; outcomes are over those that every rule rated fully.
        notes: Plain sentences on what limits these figures.
    """

    ranked: tuple[RuleStats, ...]
    vector: WeightVector
    selected: Outcome
    weighted: Outcome
    random_k: Draws
    single: Draws
    num_pairs_total: int
    notes: tuple[str, ...]

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """The selected rules, lowest entropy first."""
        return tuple(rule.rule_id for rule in self.ranked[: int(self.vector.params["k"])])


def select_rules(
    ratings: str | Path | Any,
    *,
    k: int = DEFAULT_K,
    tau: float = DEFAULT_TAU,
    seed: int = 0,
    run: str | None = None,
    judge: str | None = None,
    num_random: int = NUM_RANDOM,
) -> RuleSelection:
    """Select the k rules of lowest entropy, for those who can afford no more.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        k: How many; all of them if there are fewer. The paper takes 5.
        tau: Temperature of the weights compared with; the paper's by default.
        seed: The first seed of the draws.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.
        num_random: Draws of k rules by lot.

    Raises:
        InputError: No ratings table, a rule without ratings, k below 1.
    """
    options = SchemeOptions(k=k, seed=seed, tau=tau)
    with open_evidence(ratings, run=run, judge=judge) as evidence:
        return select(evidence, options=options, num_random=num_random)


def select(
    evidence: Evidence, *, options: SchemeOptions, num_random: int = NUM_RANDOM
) -> RuleSelection:
    """`select_rules` for evidence in hand."""
    all_pairs = evidence.read_pairs()
    pairs = complete_pairs(all_pairs)
    margin_PR = pairs.margin_PR
    vector, weights = (load_scheme(name).weigh(evidence, options) for name in ("top-k", "encore"))
    selected, weighted = composed_outcomes(margin_PR, np.array([vector.weights, weights.weights]))
    order = places_by_entropy(evidence.entropy_R, evidence.rule_ids)
    return RuleSelection(
        ranked=tuple(evidence.rules[place] for place in order),
        vector=vector,
        selected=selected,
        weighted=weighted,
        random_k=draw_random_k(margin_PR, pairs.rule_ids, options=options, num_draws=num_random),
        single=each_single(margin_PR),
        num_pairs_total=all_pairs.num_pairs,
        notes=tuple(
            pair_notes(evidence.rules, num_pairs=pairs.num_pairs, total=all_pairs.num_pairs)
        ),
    )
