"""Draw the responses, pairs of rules and examples of a sample, stratified and seeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import RuleStats, rating_statistics
from encore.core.errors import InputError
from encore.data.records import RESPONSES
from encore.people.questionnaire import SIDES
from encore.runs.identity import run_key_of
from encore.warehouse import PairRatings, Ratings, open_warehouse, read_pair_ratings, read_pairs_of

# Suffixes: P pairs, R rules, N ratings (of a response under a rule).

#: Number of example responses that annotators see for each rule (as in the paper's study).
NUM_EXAMPLES = 5

#: A row of `encore.data.schemas.SAMPLED_RESPONSES` or `SAMPLED_RULES`, or an example.
Row = dict[str, Any]
_Indices = NDArray[np.intp]


def draw_responses(ratings: Ratings, *, num_items: int, seed: int) -> list[Row]:
    """Draw responses under rules, spread over sources and rules, and within these over ratings."""
    pairs = read_pairs_of(ratings)
    response_N, pair_N, rule_N = np.nonzero(~np.isnan(pairs.rating_2PR))
    cell_N = source_indices(pairs)[pair_N] * len(pairs.rule_ids) + rule_N
    level_N = pairs.rating_2PR[response_N, pair_N, rule_N]
    order = stratified_order(cell_N, level_N, np.random.default_rng(seed))[:num_items]
    drawn = zip(response_N[order], pair_N[order], rule_N[order], strict=True)
    return with_ids([rated_row(pairs, *indices) for indices in drawn], seed)


def draw_rules(
    ratings: Ratings, *, num_items: int, seed: int
) -> tuple[list[Row], dict[str, list[Row]]]:
    """Draw pairs of a rule of lower and a rule of higher entropy, and examples of each rule.

    Returns:
        The pairs, with random sides, and rated example responses by rule id.

    Raises:
        InputError: There are no two rules of different entropy.
    """
    with open_warehouse(ratings) as warehouse:
        rules = rating_statistics(warehouse)[-1].rules
        pairs = read_pair_ratings(warehouse, rule_ids=[rule.rule_id for rule in rules])
    rng = np.random.default_rng(seed)
    rows = []
    for low_and_high in pair_rules(rules, rng=rng)[:num_items]:
        low_side = int(rng.integers(2))
        sides = {"first_rule": low_and_high[low_side], "second_rule": low_and_high[1 - low_side]}
        rows.append({**sides, "lower_entropy": SIDES[low_side]})
    drawn_rules = {row[f"{side}_rule"] for row in rows for side in SIDES}
    examples = {
        rule_id: _examples(pairs, rule, rng)
        for rule, rule_id in enumerate(pairs.rule_ids)
        if rule_id in drawn_rules
    }
    return with_ids(rows, seed), examples


def stratified_order(
    cell_N: NDArray[Any], level_N: NDArray[Any], rng: np.random.Generator
) -> _Indices:
    """Return an order of ratings whose first n are evenly spread, for every n.

    They are spread over cells, and within each cell over levels. So a level that is rare among
    ratings occurs early, and a larger sample of the same seed contains the smaller one.

    Args:
        cell_N: Cell of each rating, e.g. a code of its source and rule, shape [N].
        level_N: Level of each rating, shape [N].
        rng: Random generator that breaks ties.
    """
    chance_N = rng.random(len(cell_N))
    _, level_N = np.unique(level_N, return_inverse=True)
    stratum_N = np.unique(np.stack([cell_N, level_N]), axis=1, return_inverse=True)[1]
    stratum_rank_N = _rank_in_group(stratum_N, chance_N)
    cell_rank_N = _rank_in_group(cell_N, chance_N, stratum_rank_N)
    return np.asarray(np.lexsort((chance_N, cell_rank_N)))


def _rank_in_group(group_N: NDArray[Any], *keys_N: NDArray[Any]) -> _Indices:
    """Return the rank of each rating in its group, from 0. The last key sorts first."""
    order_N = np.lexsort((*keys_N, group_N))
    sorted_N = group_N[order_N]
    start_N = np.searchsorted(sorted_N, sorted_N)
    rank_N = np.empty(len(order_N), dtype=np.intp)
    rank_N[order_N] = np.arange(len(order_N)) - start_N
    return rank_N


def pair_rules(rules: Sequence[RuleStats], *, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Return all pairs of a rule of the lower half by entropy and one of the upper half.

    The order is random, in rounds: each round uses every rule once. The middle rule of an odd
    number of rules is in neither half. Pairs of equal entropy are left out.

    Raises:
        InputError: There are no two rules of different entropy.
    """
    rated = [rule for rule in rules if rule.entropy_nats is not None]
    ranked = sorted(rated, key=lambda rule: (rule.entropy_nats, rule.rule_id))
    half = len(ranked) // 2
    low, high = rng.permutation(half), len(ranked) - 1 - rng.permutation(half)
    all_pairs = [
        (ranked[low[index]], ranked[high[(index + shift) % half]])
        for shift in rng.permutation(half)
        for index in range(half)
    ]
    pairs = [
        (lower.rule_id, higher.rule_id)
        for lower, higher in all_pairs
        if lower.entropy_nats != higher.entropy_nats
    ]
    if not pairs:
        raise InputError(
            f"{len(ranked)} rated rules, no two of different entropy; --kind rules pairs a rule of "
            "lower with a rule of higher entropy: rate more rules"
        )
    return pairs


def _examples(pairs: PairRatings, rule: int, rng: np.random.Generator) -> list[Row]:
    """Draw rated responses of one rule, spread over sources and ratings, each of another pair."""
    rating_2P = pairs.rating_2PR[:, :, rule]
    response_N, pair_N = np.nonzero(~np.isnan(rating_2P))
    order = stratified_order(source_indices(pairs)[pair_N], rating_2P[response_N, pair_N], rng)
    first_N = np.sort(np.unique(pair_N[order], return_index=True)[1])[:NUM_EXAMPLES]
    return [rated_row(pairs, response_N[index], pair_N[index], rule) for index in order[first_N]]


def rated_row(pairs: PairRatings, response: int, pair: int, rule: int) -> Row:
    """Return a response under a rule with its rating."""
    return {
        "source": pairs.source_P[pair],
        "pair_id": pairs.pair_id_P[pair],
        "response": RESPONSES[response],
        "rule_id": pairs.rule_ids[rule],
        "rating": float(pairs.rating_2PR[response, pair, rule]),
    }


def source_indices(pairs: PairRatings) -> _Indices:
    """Return the index of each pair's source among the sorted sources, shape [P]."""
    return np.asarray(np.unique(pairs.source_P, return_inverse=True)[1])


def with_ids(rows: Sequence[Row], seed: int) -> list[Row]:
    """Return the rows with digests as ids, sorted by id, so that ids and order reveal nothing.

    An id begins with a letter for the same reason as `Questionnaire.key`.
    """
    row_by_id = {f"item-{run_key_of({'seed': seed, **row})}": row for row in rows}
    return [{"item_id": item_id, **row_by_id[item_id]} for item_id in sorted(row_by_id)]
