"""Studies with several pairs a prompt: pairs made of the ranked responses of each prompt."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from encore.warehouse import PairRatings
from tests.worlds.ratings import rated_pairs

# Suffixes: G prompts, M responses of a prompt, R rules, P pairs.

#: Responses of a prompt, and the pairs of their ranks that are compared.
DESIGNS: dict[str, tuple[int, list[tuple[int, int]]]] = {
    "one pair": (2, [(0, 1)]),
    "all pairs of 4": (4, list(itertools.combinations(range(4), 2))),
    "all pairs of 7": (7, list(itertools.combinations(range(7), 2))),
    "best against rest of 8": (8, [(0, rank) for rank in range(1, 8)]),
}


def ranked_pairs(quality_GMR: NDArray[np.float64], design: str) -> PairRatings:
    """Return the pairs of a design, for responses in the order of people's preferences."""
    _, ranks = DESIGNS[design]
    better, worse = zip(*ranks, strict=True)
    num_prompts, _, num_rules = quality_GMR.shape
    pairs = rated_pairs(
        quality_GMR[:, list(better)].reshape(-1, num_rules),
        quality_GMR[:, list(worse)].reshape(-1, num_rules),
    )
    prompt_P = np.repeat(np.arange(num_prompts, dtype=np.uint64), len(ranks))
    return dataclasses.replace(pairs, prompt_P=prompt_P, grouped_by="prompt")


def meaningless_ratings(
    rng: np.random.Generator, *, design: str, num_rules: int, tie_rate: float, num_pairs: int = 600
) -> NDArray[np.float64]:
    """Return ratings that have nothing to do with people's order, shape [G, M, R].

    Half of their variance is that of the prompt, shared by all rules. Without ties they are
    continuous; else a response is rated 1 with the probability q that gives this share of ties:
    q² + (1 - q)².
    """
    num_responses, ranks = DESIGNS[design]
    num_prompts = round(num_pairs / len(ranks))
    rating_GMR = rng.standard_normal((num_prompts, num_responses, num_rules))
    rating_GMR += 0.5 * rng.standard_normal((num_prompts, num_responses, 1))
    if not tie_rate:
        return np.asarray(norm.cdf(rating_GMR / np.sqrt(1.25)), dtype=np.float64)
    share = (1 - np.sqrt(max(2 * tie_rate - 1, 0.0))) / 2
    return (rating_GMR / np.sqrt(1.25) > norm.isf(share)).astype(np.float64)


def meaningless_pairs(
    rng: np.random.Generator,
    *,
    num_responses: Sequence[int],
    num_rules: int,
    tie_rate: float,
    is_best_against_rest: bool = False,
) -> PairRatings:
    """Return pairs of prompts with so many responses each, rated as by `meaningless_ratings`.

    Args:
        rng: Generator of the ratings.
        num_responses: Number of responses of each prompt.
        num_rules: Number of rules.
        tie_rate: Share of ties; 0 for continuous ratings.
        is_best_against_rest: True pairs the best response with each other one; False pairs all.
    """
    parts, prompts = [], []
    share = (1 - np.sqrt(max(2 * tie_rate - 1, 0.0))) / 2
    for prompt, number in enumerate(num_responses):
        rating_MR = rng.standard_normal((number, num_rules)) + 0.5 * rng.standard_normal(num_rules)
        rating_MR = norm.cdf(rating_MR / np.sqrt(1.25))
        if tie_rate:
            rating_MR = (rating_MR > 1 - share).astype(np.float64)
        ranks = [*itertools.combinations(range(1 if is_best_against_rest else number), 2)]
        if is_best_against_rest:
            ranks = [(0, rank) for rank in range(1, number)]
        better, worse = zip(*ranks, strict=True)
        parts.append((rating_MR[list(better)], rating_MR[list(worse)]))
        prompts += [prompt] * len(ranks)
    chosen, rejected = zip(*parts, strict=True)
    return dataclasses.replace(
        rated_pairs(np.vstack(chosen), np.vstack(rejected)),
        prompt_P=np.array(prompts, dtype=np.uint64),
        grouped_by="prompt",
    )


def table_with_prompts(pairs: PairRatings) -> Any:
    """Return a ratings table with the column ``prompt_id``."""
    from tests.worlds.ratings import table_of_pairs

    table = table_of_pairs(pairs)
    assert pairs.prompt_P is not None
    prompts = np.repeat(pairs.prompt_P.astype(str), 2 * len(pairs.rule_ids))
    return table.append_column("prompt_id", [prompts])
