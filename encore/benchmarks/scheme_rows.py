"""Rows of the weighting schemes, from head scores of a benchmark and ratings of a training study.

The weights come from the training ratings alone: no label of the benchmark is used.

Suffixes: P pairs, R heads, V weight vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.answer_options import DEFAULT_TAU
from encore.benchmarks.benchmark_options import FITTED_HEADS, RowsConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.table_rows import RowMetadata, TableRow, mean_row, reward_row
from encore.core.errors import EncoreError
from encore.scoring.head_scores import HeadScores
from encore.weighting.scheme import Evidence
from encore.weighting.scheme_comparison import scheme_label
from encore.weighting.scheme_options import DEFAULT_K, SchemeOptions
from encore.weighting.schemes import load_scheme
from encore.weighting.schemes.random import random_weights
from encore.weighting.schemes.random_k import random_k_weights

#: Number of trials that the paper averages for random weights, single rules and random rules.
NUM_TRIALS = 3
#: Distance between the first seeds of two calls, larger than any number of draws.
_SEED_STEP = 1_000_000

_Floats = NDArray[np.float64]


def scheme_rows(
    scores: HeadScores, pairs: BenchmarkPairs, *, evidence: Evidence, config: RowsConfig
) -> tuple[tuple[TableRow, ...], tuple[str, ...]]:
    """Return the rows of all schemes, uniform weights first, and notes on their limits.

    A row belongs to one weight vector, or is the mean over several random ones.

    Args:
        scores: Head scores of the pairs, in their order (`encore.benchmarks.benchmark_models`).
        pairs: Pairs of the benchmark.
        evidence: Ratings of the training study.
        config: Schemes and their parameters.

    Raises:
        InputError: The rules are not the model's heads, or the only requested scheme cannot weigh
            them.
    """
    score_P2R = scores.score_P2R.astype(np.float64)
    mean = partial(mean_row, score_P2R=score_P2R, pairs=pairs)
    builder = _RowBuilder(scores=scores, pairs=pairs, evidence=evidence, config=config, mean=mean)
    rows = [builder.weighed("uniform", method="uniform")]
    skipped: list[str] = []
    for name in dict.fromkeys(config.schemes):
        try:
            rows += tuple(builder.scheme(name)) if name != FITTED_HEADS else ()
        except EncoreError as error:  # bad input, or no optimum
            if len(config.schemes) == 1:
                raise
            skipped.append(f"left out: {error}")
    notes = tuple(_notes(evidence, rows))
    return tuple(row.with_metadata(notes=notes) for row in rows), (*skipped, *notes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RowBuilder:
    """Builder of the rows of all schemes from the same scores and ratings."""

    scores: HeadScores
    pairs: BenchmarkPairs
    evidence: Evidence
    config: RowsConfig
    #: `mean_row` for these pairs. Takes a row's name and its weight vectors in head order.
    mean: Callable[..., TableRow]

    def scheme(self, scheme: str) -> Iterator[TableRow]:
        """Yield the rows of one scheme. Uniform weights, the reference, exist already."""
        head_ids, config = self.scores.head_ids, self.config
        method: str | None
        match scheme:
            case "uniform":
                return
            case "random":
                yield from self.random_rows(scheme, random_weights, method=scheme, alpha=1.0)
            case "random-k":
                k = min(config.k, len(head_ids))
                method = scheme if k == DEFAULT_K else None
                draw = partial(random_k_weights, k=k)
                yield from self.random_rows(f"random-{k}", draw, method=method, k=k)
            case "single":
                yield next(self.random_rows(scheme, partial(random_k_weights, k=1), method=scheme))
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
                labels = config.labels if scheme == "shrunk" else None
                name = None if labels is None else f"{scheme} ({labels:,} labels)"
                yield self.weighed(scheme, name=name, labels=labels)

    def random_rows(
        self, label: str, draw: Callable[..., _Floats], *, method: str | None, **params: float
    ) -> Iterator[TableRow]:
        """Yield two means over draws: of a few trials, as in the paper, and of many.

        Different seeds of the options give disjoint draws.
        """
        num_random, seed = self.config.num_random, self.config.seed
        for num, name, row_method in (
            (NUM_TRIALS, f"{label} (mean of {NUM_TRIALS})", method),
            (num_random, f"{label} ({num_random:,} draws)", None),
        ):
            start = seed * _SEED_STEP
            seeds = range(start, start + num)
            weight_vectors = [draw(self.scores.head_ids, seed=draw_seed) for draw_seed in seeds]
            yield self.mean(name, weight_vectors, method=row_method, **params, seed=seed)

    def weighed(
        self, scheme: str, *, name: str | None = None, method: str | None = None, **options: Any
    ) -> TableRow:
        """Return the row of a scheme that gives a single weight vector."""
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
                "rules have the same weight, as in row uniform"
            )
