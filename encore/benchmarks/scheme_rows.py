"""The rows that head scores of a benchmark and ratings of a training study give: every scheme's.

Weights come from the training ratings alone: no answer of the benchmark enters any of them.

Suffixes: P pairs, R heads, V weight vectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.benchmark_config import RowsConfig
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.rows import RowAbout, TableRow, mean_row, reward_row
from encore.errors import EncoreError
from encore.scoring.head_scores import HeadScores
from encore.weighting import load_scheme
from encore.weighting.random import random_weights
from encore.weighting.random_k import random_k_weights
from encore.weighting.scheme import DEFAULT_K, DEFAULT_TAU, Evidence, SchemeOptions
from encore.weighting.scheme_comparison import label_of
from encore.weighting.vector import head_weights

#: Trials that the paper averages for random weights, single rules and random rules.
NUM_TRIALS = 3
#: Between the first seeds of two calls: more than anybody draws.
_SEEDS_APART = 1_000_000

#: What the rows of schemes and of a gate are called, whatever the options.
_ROW_NAMES = re.compile(
    r"uniform|inverse-sd|bradley-terry weights|moe gate|top-\d+|single: .*|encore \(.*\)"
    r"|(random|single)(-\d+)? \(.*\)"
)

_Floats = NDArray[np.float64]


def scheme_rows(
    scores: HeadScores, pairs: BenchmarkPairs, *, evidence: Evidence, config: RowsConfig
) -> tuple[tuple[TableRow, ...], tuple[str, ...]]:
    """Every scheme's row, uniform weights first, and what limits them all.

    A row is that of one weight vector, or a mean over draws.

    Args:
        scores: Of the benchmark's pairs, in their order (`encore.benchmarks.models`).
        pairs: Of the benchmark.
        evidence: Of the training study.
        config: Which rows.

    Raises:
        InputError: Rules that are not the heads; the one scheme that was asked for cannot weigh.
    """
    score_P2R = scores.score_P2R.astype(np.float64)
    table = _SchemeTable(
        scores=scores,
        margin_PR=score_P2R[:, 0] - score_P2R[:, 1],
        pairs=pairs,
        evidence=evidence,
        config=config,
    )
    rows = [table.weighed("uniform", method="uniform")]
    left_out: list[str] = []
    for name in dict.fromkeys(config.schemes):
        try:
            rows += tuple(table.rows_of(name))
        except EncoreError as error:  # bad input, or no optimum
            if len(config.schemes) == 1:
                raise
            left_out.append(f"left out: {error}")
    notes = tuple(_notes(evidence, rows))
    return tuple(row.noted(notes=notes) for row in rows), (*left_out, *notes)


def refuse_other_rules(evidence: Evidence, head_ids: Sequence[str]) -> None:
    """Refuse evidence whose rules are not the heads.

    Raises:
        InputError: Which rules have no head, which heads no weight.
    """
    head_weights(dict.fromkeys(evidence.rule_ids, 0.0), head_ids=head_ids)


def is_scheme_row(name: str) -> bool:
    """Whether a row over a model's heads is called so, under some options."""
    return _ROW_NAMES.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SchemeTable:
    """What all rows are made from."""

    scores: HeadScores
    margin_PR: _Floats
    pairs: BenchmarkPairs
    evidence: Evidence
    config: RowsConfig

    def rows_of(self, scheme: str) -> Iterator[TableRow]:
        """The rows of one scheme; uniform weights are the reference, and there already."""
        match scheme:
            case "uniform":
                return
            case "random" | "random-k":
                yield from self.chance(scheme)
            case "single":
                yield from self.singles()
            case "encore":
                for tau in dict.fromkeys(self.config.taus):
                    of_paper = "encore" if tau == DEFAULT_TAU else None
                    yield self.weighed(scheme, method=of_paper, tau=tau)
            case "top-k":
                row = self.weighed(scheme, k=self.config.k)
                num_rules = row.about.params["k"]
                of_paper = scheme if num_rules == DEFAULT_K else None
                yield replace(row, name=f"top-{num_rules}", method=of_paper)
            case "bradley-terry":
                yield self.weighed(scheme, name="bradley-terry weights")
            case _:
                yield self.weighed(scheme)

    def chance(self, scheme: str) -> Iterator[TableRow]:
        """Random weights or rules: the paper's mean of a few trials, then the distribution."""
        head_ids, config = self.scores.head_ids, self.config
        k = min(config.k, len(head_ids))
        label, of_paper = (
            ("random", True) if scheme == "random" else (f"random-{k}", k == DEFAULT_K)
        )
        params: dict[str, float] = {"alpha": 1.0} if scheme == "random" else {"k": k}
        draw = random_weights if scheme == "random" else partial(random_k_weights, k=k)
        for num, name, method in (
            (NUM_TRIALS, f"{label} (mean of {NUM_TRIALS})", scheme if of_paper else None),
            (config.num_random, f"{label} ({config.num_random:,} draws)", None),
        ):
            drawn = [draw(head_ids, seed=seed) for seed in self.seeds(num)]
            yield self.mean(name, drawn, method=method, **params, seed=config.seed)

    def singles(self) -> Iterator[TableRow]:
        """One rule: the paper's mean of a few trials, the mean of all, each."""
        head_ids, seed = self.scores.head_ids, self.config.seed
        drawn = [random_k_weights(head_ids, k=1, seed=one) for one in self.seeds(NUM_TRIALS)]
        yield self.mean(f"single (mean of {NUM_TRIALS})", drawn, method="single", seed=seed)
        yield self.mean(f"single (mean of all {len(head_ids)})", list(np.eye(len(head_ids))))
        for rule in head_ids:
            yield self.weighed("single", name=f"single: {rule}", rule=rule)

    def weighed(
        self, scheme: str, *, name: str | None = None, method: str | None = None, **options: Any
    ) -> TableRow:
        """The row of the one vector that a scheme gives."""
        loaded = load_scheme(scheme)
        vector = loaded.weigh(self.evidence, SchemeOptions(**options))
        weights = dict(zip(vector.rule_ids, vector.weights, strict=True))
        return reward_row(
            name or label_of(vector),
            self.scores.compose(weights),
            pairs=self.pairs,
            margin_P=self.margin_PR @ head_weights(weights, head_ids=self.scores.head_ids),
            about=RowAbout(
                kind="scheme",
                params=dict(vector.params),
                uses_labels=loaded.uses_labels,
                scheme=vector.scheme,
            ),
            method=method,
            weights=weights,
        )

    def mean(
        self, name: str, drawn: Sequence[_Floats], *, method: str | None = None, **params: float
    ) -> TableRow:
        """The mean row of weight vectors in head order."""
        params["num_draws"] = len(drawn)
        weight_VR = np.array(drawn)
        return mean_row(
            name, self.margin_PR, weight_VR, pairs=self.pairs, params=params, method=method
        )

    def seeds(self, num: int) -> range:
        """So many; another seed of the options gives others, not the same but a few."""
        start = self.config.seed * _SEEDS_APART
        return range(start, start + num)


def _notes(evidence: Evidence, rows: Sequence[TableRow]) -> Iterator[str]:
    missing = evidence.origin.num_missing_shards
    if missing:
        yield (
            f"weights are from an incomplete run: {missing} of {evidence.origin.num_shards} shards "
            "of its ratings are missing"
        )
    for rule in evidence.rules:
        if rule.num_levels == 1:
            yield (
                f"rule {rule.rule_id} has one and the same rating everywhere: encore gives it the "
                "largest weight, and what its head says then comes from no rating"
            )
    for row in rows:
        if row.about.uses_labels and row.about.params.get("scale") == 0:
            yield (
                f"{row.name}: no weighting of the rules agrees with people's preferences, so all "
                "rules weigh alike and the row is uniform's"
            )
