"""The rows of each weighting scheme over the heads of one model: a vector's, or a mean of draws.

Suffixes: P pairs, R heads, V weight vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.draws import mean_row
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.rows import TableRow, reward_row
from encore.errors import InputError
from encore.scores.head_scores import HeadScores
from encore.weighting import SCHEMES, load_scheme
from encore.weighting.comparison import label_of
from encore.weighting.draws import NUM_RANDOM
from encore.weighting.evidence import Evidence
from encore.weighting.head_weights import head_weights
from encore.weighting.random import random_weights
from encore.weighting.random_k import random_k_weights
from encore.weighting.scheme import DEFAULT_K, DEFAULT_TAU, SchemeOptions
from encore.weighting.vector import WeightVector

#: The paper's default is 2; the others say how much depends on it.
DEFAULT_TAUS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
#: Trials that the paper averages for random weights, single rules and random rules.
NUM_TRIALS = 3
#: What every other row is compared with.
REFERENCE = "uniform"
#: Between the first seeds of two calls: more than anybody draws.
_SEEDS_APART = 1_000_000

#: What the rows of schemes and of a gate are called, whatever the options.
_ROW_NAMES = re.compile(
    r"uniform|inverse-sd|bradley-terry weights|moe gate|top-\d+|single: .*|encore \(.*\)"
    r"|(random|single)(-\d+)? \(.*\)"
)

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeRowOptions:
    """Which rows.

    Attributes:
        schemes: Names of `encore.weighting.SCHEMES`; uniform weights are there in any case.
        taus: Temperatures of scheme ``encore``.
        k: Rules that ``top-k`` and ``random-k`` select; the paper's rows take 5.
        seed: Of draws and bootstrap. Draw i has seed ``1,000,000 seed + i``: what
            `encore weights --seed` gives.
        num_random: Draws in the rows of chance.

    Raises:
        InputError: An unknown scheme, no temperature, a parameter out of range.
    """

    schemes: tuple[str, ...] = tuple(SCHEMES)
    taus: tuple[float, ...] = DEFAULT_TAUS
    k: int = DEFAULT_K
    seed: int = 0
    num_random: int = NUM_RANDOM

    def __post_init__(self) -> None:
        for name in self.schemes:
            load_scheme(name)
        for tau in self.taus:
            SchemeOptions(tau=tau, seed=self.seed, k=self.k)
        if not self.taus or self.num_random < 1:
            raise InputError(
                f"{len(self.taus)} temperatures and {self.num_random} draws; expected at least one "
                "of each"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchemeTable:
    """What all rows are made from.

    Attributes:
        scores: Of the heads.
        margin_PR: Score of the chosen minus that of the rejected response.
        pairs: Of the benchmark.
        evidence: Of the training study.
        options: Which rows.
    """

    scores: HeadScores
    margin_PR: _Floats
    pairs: BenchmarkPairs
    evidence: Evidence
    options: SchemeRowOptions

    @classmethod
    def of(
        cls,
        scores: HeadScores,
        pairs: BenchmarkPairs,
        *,
        evidence: Evidence,
        options: SchemeRowOptions,
    ) -> Self:
        """From the heads' scores of these pairs."""
        score_P2R = scores.score_P2R.astype(np.float64)
        return cls(
            scores=scores,
            margin_PR=score_P2R[:, 0] - score_P2R[:, 1],
            pairs=pairs,
            evidence=evidence,
            options=options,
        )

    def reference(self) -> TableRow:
        """Uniform weights, which every other row is compared with."""
        return self.of_vector(_weigh(REFERENCE, self.evidence, SchemeOptions()), method=REFERENCE)

    def of_vector(
        self,
        vector: WeightVector,
        *,
        name: str | None = None,
        method: str | None = None,
    ) -> TableRow:
        """The row of one weight vector."""
        weights = dict(zip(vector.rule_ids, vector.weights, strict=True))
        weight_R = head_weights(weights, head_ids=self.scores.head_ids)
        return reward_row(
            name or label_of(vector),
            self.scores.compose(weights),
            pairs=self.pairs,
            margin_P=self.margin_PR @ weight_R,
            kind="scheme",
            method=method,
            params=dict(vector.params),
            vector=vector,
            uses_labels=load_scheme(vector.scheme).uses_labels,
        )

    def of_draws(
        self,
        name: str,
        weight_VR: Sequence[_Floats],
        *,
        method: str | None = None,
        params: Mapping[str, float | str],
    ) -> TableRow:
        """The mean row of weight vectors in head order."""
        return mean_row(
            name,
            self.margin_PR,
            np.array(weight_VR),
            pairs=self.pairs,
            method=method,
            params={**params, "num_draws": len(weight_VR)},
        )

    def seeds(self, num: int) -> range:
        """So many; another seed of the options gives others, not the same but a few."""
        start = self.options.seed * _SEEDS_APART
        return range(start, start + num)


def is_scheme_row(name: str) -> bool:
    """Whether a row over a model's heads is called so, under some options."""
    return _ROW_NAMES.fullmatch(name) is not None


# --- the rows of each scheme ----------------------------------------------------------------------


def _uniform(_table: SchemeTable) -> Iterator[TableRow]:
    """None: it is the reference, and there already."""
    yield from ()


def _random(table: SchemeTable) -> Iterator[TableRow]:
    params = {"alpha": 1.0, "seed": table.options.seed}
    for num, name, method in _means(table.options.num_random, "random"):
        vectors = [random_weights(table.scores.head_ids, seed=seed) for seed in table.seeds(num)]
        yield table.of_draws(name, vectors, method=method, params=params)


def _random_k(table: SchemeTable) -> Iterator[TableRow]:
    head_ids, k = table.scores.head_ids, min(table.options.k, len(table.scores.head_ids))
    params = {"k": k, "seed": table.options.seed}
    for num, name, method in _means(table.options.num_random, f"random-{k}", method="random-k"):
        vectors = [random_k_weights(head_ids, k=k, seed=seed) for seed in table.seeds(num)]
        shown = method if k == DEFAULT_K else None
        yield table.of_draws(name, vectors, method=shown, params=params)


def _single(table: SchemeTable) -> Iterator[TableRow]:
    head_ids = table.scores.head_ids
    trials = [random_k_weights(head_ids, k=1, seed=seed) for seed in table.seeds(NUM_TRIALS)]
    params = {"seed": table.options.seed}
    yield table.of_draws(f"single (mean of {NUM_TRIALS})", trials, method="single", params=params)
    every = list(np.eye(len(head_ids)))
    yield table.of_draws(f"single (mean of all {len(head_ids)})", every, params={})
    for rule in head_ids:
        vector = _weigh("single", table.evidence, SchemeOptions(rule=rule))
        yield table.of_vector(vector, name=f"single: {rule}")


def _encore(table: SchemeTable) -> Iterator[TableRow]:
    for tau in dict.fromkeys(table.options.taus):
        vector = _weigh("encore", table.evidence, SchemeOptions(tau=tau))
        yield table.of_vector(vector, method="encore" if tau == DEFAULT_TAU else None)


def _top_k(table: SchemeTable) -> Iterator[TableRow]:
    vector = _weigh("top-k", table.evidence, SchemeOptions(k=table.options.k))
    k = int(vector.params["k"])
    method = "top-k" if k == DEFAULT_K else None
    yield table.of_vector(vector, name=f"top-{k}", method=method)


def _inverse_sd(table: SchemeTable) -> Iterator[TableRow]:
    yield table.of_vector(_weigh("inverse-sd", table.evidence, SchemeOptions()))


def _bradley_terry(table: SchemeTable) -> Iterator[TableRow]:
    vector = _weigh("bradley-terry", table.evidence, SchemeOptions())
    yield table.of_vector(vector, name="bradley-terry weights")


#: Scheme -> its rows.
ROWS: Mapping[str, Callable[[SchemeTable], Iterator[TableRow]]] = {
    "uniform": _uniform,
    "random": _random,
    "single": _single,
    "top-k": _top_k,
    "random-k": _random_k,
    "inverse-sd": _inverse_sd,
    "bradley-terry": _bradley_terry,
    "encore": _encore,
}


def _means(
    num_random: int, scheme: str, *, method: str | None = None
) -> Iterator[tuple[int, str, str | None]]:
    """The paper's mean of a few trials, then the distribution: number, name, method."""
    yield NUM_TRIALS, f"{scheme} (mean of {NUM_TRIALS})", method or scheme
    yield num_random, f"{scheme} ({num_random:,} draws)", None


def _weigh(name: str, evidence: Evidence, options: SchemeOptions) -> WeightVector:
    return load_scheme(name).weigh(evidence, options)
