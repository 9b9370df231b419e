"""The rows that head scores of a benchmark and ratings of a training study give: every scheme's.

Weights come from the training ratings alone: no answer of the benchmark enters any of them.

Suffixes: P pairs, R heads, V weight vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.benchmark_config import RowsConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.table_rows import RowMetadata, TableRow, mean_row, reward_row
from encore.core.errors import EncoreError
from encore.scoring.head_scores import HeadScores
from encore.weighting.scheme import Evidence
from encore.weighting.scheme_comparison import scheme_label
from encore.weighting.schemes import load_scheme
from encore.weighting.schemes.random import random_weights
from encore.weighting.schemes.random_k import random_k_weights
from encore.weighting.weights_config import DEFAULT_K, DEFAULT_TAU, SchemeOptions

#: Trials that the paper averages for random weights, single rules and random rules.
NUM_TRIALS = 3
#: Between the first seeds of two calls: more than anybody draws.
_SEEDS_APART = 1_000_000

_Floats = NDArray[np.float64]


def scheme_rows(
    scores: HeadScores, pairs: BenchmarkPairs, *, evidence: Evidence, config: RowsConfig
) -> tuple[tuple[TableRow, ...], tuple[str, ...]]:
    """Every scheme's row, uniform weights first, and what limits them all.

    A row is that of one weight vector, or a mean over draws.

    Args:
        scores: Of the benchmark's pairs, in their order (`encore.benchmarks.benchmark_models`).
        pairs: Of the benchmark.
        evidence: Of the training study.
        config: Which rows.

    Raises:
        InputError: Rules that are not the heads; the one scheme that was asked for cannot weigh.
    """
    score_P2R = scores.score_P2R.astype(np.float64)
    mean = partial(mean_row, margin_PR=score_P2R[:, 0] - score_P2R[:, 1], pairs=pairs)
    made = _SchemeRows(scores=scores, pairs=pairs, evidence=evidence, config=config, mean=mean)
    rows = [made.weighed("uniform", method="uniform")]
    left_out: list[str] = []
    for name in dict.fromkeys(config.schemes):
        try:
            rows += tuple(made.rows_of(name))
        except EncoreError as error:  # bad input, or no optimum
            if len(config.schemes) == 1:
                raise
            left_out.append(f"left out: {error}")
    notes = tuple(_notes(evidence, rows))
    return tuple(row.with_metadata(notes=notes) for row in rows), (*left_out, *notes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SchemeRows:
    """What all rows are made from."""

    scores: HeadScores
    pairs: BenchmarkPairs
    evidence: Evidence
    config: RowsConfig
    #: Called with a row's name and its weight vectors in head order.
    mean: Callable[..., TableRow]

    def rows_of(self, scheme: str) -> Iterator[TableRow]:
        """The rows of one scheme; uniform weights are the reference, and there already."""
        head_ids, config = self.scores.head_ids, self.config
        method: str | None
        match scheme:
            case "uniform":
                return
            case "random":
                yield from self.chance(scheme, random_weights, method=scheme, alpha=1.0)
            case "random-k":
                k = min(config.k, len(head_ids))
                method = scheme if k == DEFAULT_K else None
                draw = partial(random_k_weights, k=k)
                yield from self.chance(f"random-{k}", draw, method=method, k=k)
            case "single":
                yield next(self.chance(scheme, partial(random_k_weights, k=1), method=scheme))
                yield self.mean(f"single (mean of all {len(head_ids)})", np.eye(len(head_ids)))
                for rule in head_ids:
                    yield self.weighed(scheme, name=f"single: {rule}", rule=rule)
            case "encore":
                for tau in dict.fromkeys(config.taus):
                    method = scheme if tau == DEFAULT_TAU else None
                    yield self.weighed(scheme, method=method, tau=tau)
            case "top-k":
                row = self.weighed(scheme, k=config.k)
                num_rules = row.metadata.params["k"]
                method = scheme if num_rules == DEFAULT_K else None
                yield replace(row, name=f"top-{num_rules}", method=method)
            case "bradley-terry":
                yield self.weighed(scheme, name="bradley-terry weights")
            case _:
                yield self.weighed(scheme)

    def chance(
        self, label: str, draw: Callable[..., _Floats], *, method: str | None, **params: float
    ) -> Iterator[TableRow]:
        """Means over draws: of a few trials, as in the paper, then of many.

        Another seed of the options gives other draws, not the same but a few.
        """
        num_random, seed = self.config.num_random, self.config.seed
        for num, name, of_paper in (
            (NUM_TRIALS, f"{label} (mean of {NUM_TRIALS})", method),
            (num_random, f"{label} ({num_random:,} draws)", None),
        ):
            start = seed * _SEEDS_APART
            seeds = range(start, start + num)
            drawn = [draw(self.scores.head_ids, seed=one) for one in seeds]
            yield self.mean(name, drawn, method=of_paper, **params, seed=seed)

    def weighed(
        self, scheme: str, *, name: str | None = None, method: str | None = None, **options: Any
    ) -> TableRow:
        """The row of the one vector that a scheme gives."""
        loaded = load_scheme(scheme)
        vector = loaded.weigh(self.evidence, SchemeOptions(**options))
        weights = dict(zip(vector.rule_ids, vector.weights, strict=True))
        return reward_row(
            name or scheme_label(vector),
            self.scores.compose(weights),
            pairs=self.pairs,
            metadata=RowMetadata(
                kind="scheme",
                params=dict(vector.params),
                uses_labels=loaded.uses_labels,
                scheme=vector.scheme,
            ),
            method=method,
            weights=weights,
        )


def _notes(evidence: Evidence, rows: Sequence[TableRow]) -> Iterator[str]:
    if missing := evidence.origin.num_missing_shards:
        num_shards = evidence.origin.num_shards
        yield f"weights are from an incomplete run: {missing} of {num_shards} shards are missing"
    for row in rows:
        if row.metadata.uses_labels and row.metadata.params.get("scale") == 0:
            yield (
                f"{row.name}: no weighting of the rules agrees with people's preferences, so all "
                "rules weigh alike and the row is uniform's"
            )
