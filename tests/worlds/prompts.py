"""Studies with several pairs a prompt: pairs made of the ranked responses of each prompt."""

from __future__ import annotations

import dataclasses
import itertools
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


def table_with_prompts(pairs: PairRatings) -> Any:
    """Return a ratings table with the column ``prompt_id``."""
    from tests.worlds.ratings import table_of_pairs

    table = table_of_pairs(pairs)
    assert pairs.prompt_P is not None
    prompts = np.repeat(pairs.prompt_P.astype(str), 2 * len(pairs.rule_ids))
    return table.append_column("prompt_id", [prompts])
