"""Which responses, pairs of rules and examples a sample has: spread over strata, by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import RuleStats, rating_statistics
from encore.core.errors import InputError
from encore.data.records import RESPONSES
from encore.people.questionnaire import SIDES
from encore.runs.run_files import run_key_of
from encore.warehouse import PairRatings, Ratings, open_warehouse, read_pair_ratings, read_pairs_of

# Suffixes: P pairs, R rules, N ratings (of a response under a rule).

#: Example responses of each rule (the paper's study).
NUM_EXAMPLES = 5

#: A row of `encore.data.schemas.SAMPLED_RESPONSES` or `SAMPLED_RULES`, or an example.
Row = dict[str, Any]
_Places = NDArray[np.intp]


def draw_responses(ratings: Ratings, *, num_items: int, seed: int) -> list[Row]:
    """Responses under rules, spread over sources and rules, and in each over ratings."""
    pairs = read_pairs_of(ratings)
    response_N, pair_N, rule_N = np.nonzero(~np.isnan(pairs.rating_2PR))
    cell_N = _sources(pairs)[pair_N] * len(pairs.rule_ids) + rule_N
    level_N = pairs.rating_2PR[response_N, pair_N, rule_N]
    order = spread(cell_N, level_N, np.random.default_rng(seed))[:num_items]
    drawn = zip(response_N[order], pair_N[order], rule_N[order], strict=True)
    return _with_ids([_rated(pairs, *places) for places in drawn], seed)


def draw_rules(
    ratings: Ratings, *, num_items: int, seed: int
) -> tuple[list[Row], dict[str, list[Row]]]:
    """Pairs of a rule of lower and one of higher entropy, sides at random, and rules' examples.

    Raises:
        InputError: There are no two rules of different entropy.
    """
    with open_warehouse(ratings) as warehouse:
        rules = rating_statistics(warehouse)[-1].rules
        pairs = read_pair_ratings(warehouse, rule_ids=[rule.rule_id for rule in rules])
    rng = np.random.default_rng(seed)
    rows = []
    for low_and_high in pair_rules(rules, rng=rng)[:num_items]:
        place = int(rng.integers(2))
        sides = {"first_rule": low_and_high[place], "second_rule": low_and_high[1 - place]}
        rows.append({**sides, "lower_entropy": SIDES[place]})
    used = {row[f"{side}_rule"] for row in rows for side in SIDES}
    examples = {
        rule_id: _examples(pairs, rule, rng)
        for rule, rule_id in enumerate(pairs.rule_ids)
        if rule_id in used
    }
    return _with_ids(rows, seed), examples


def spread(cell_N: NDArray[Any], level_N: NDArray[Any], rng: np.random.Generator) -> _Places:
    """An order of ratings of which every beginning is spread over cells, and in each over levels.

    So a level that is rare among ratings occurs early, and a larger sample of the same seed
    contains the smaller one.

    Args:
        cell_N: What is sampled alike, e.g. the source and rule of each rating, shape [N].
        level_N: The level of each rating, shape [N].
        rng: Breaks ties.
    """
    chance_N = rng.random(len(cell_N))
    _, level_N = np.unique(level_N, return_inverse=True)
    stratum_N = np.unique(np.stack([cell_N, level_N]), axis=1, return_inverse=True)[1]
    in_stratum_N = _place_within(stratum_N, chance_N)
    in_cell_N = _place_within(cell_N, chance_N, in_stratum_N)
    return np.asarray(np.lexsort((chance_N, in_cell_N)))


def _place_within(group_N: NDArray[Any], *keys_N: NDArray[Any]) -> _Places:
    """The place of each in its group, from 0; groups are sorted by keys, the last one first."""
    order_N = np.lexsort((*keys_N, group_N))
    sorted_N = group_N[order_N]
    start_N = np.searchsorted(sorted_N, sorted_N)
    place_N = np.empty(len(order_N), dtype=np.intp)
    place_N[order_N] = np.arange(len(order_N)) - start_N
    return place_N


def pair_rules(rules: Sequence[RuleStats], *, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Every pair of a rule of the lower half by entropy and one of the upper, in random order.

    As many pairs in a row as a half has rules use each rule once. The middle one of an odd number
    of rules is in neither half.

    Raises:
        InputError: There are no two rules of different entropy.
    """
    known = [rule for rule in rules if rule.entropy_nats is not None]
    ranked = sorted(known, key=lambda rule: (rule.entropy_nats, rule.rule_id))
    half = len(ranked) // 2
    low, high = rng.permutation(half), len(ranked) - 1 - rng.permutation(half)
    found = [
        (ranked[low[place]], ranked[high[(place + shift) % half]])
        for shift in rng.permutation(half)
        for place in range(half)
    ]
    pairs = [
        (one.rule_id, other.rule_id)
        for one, other in found
        if one.entropy_nats != other.entropy_nats
    ]
    if not pairs:
        raise InputError(
            f"{len(ranked)} rated rules, no two of different entropy; --kind rules pairs one of "
            "lower with one of higher entropy: rate more rules"
        )
    return pairs


def _examples(pairs: PairRatings, rule: int, rng: np.random.Generator) -> list[Row]:
    """Rated responses of one rule, spread over sources and ratings, no pair twice."""
    rating_2P = pairs.rating_2PR[:, :, rule]
    response_N, pair_N = np.nonzero(~np.isnan(rating_2P))
    order = spread(_sources(pairs)[pair_N], rating_2P[response_N, pair_N], rng)
    first_N = np.sort(np.unique(pair_N[order], return_index=True)[1])[:NUM_EXAMPLES]
    return [_rated(pairs, response_N[one], pair_N[one], rule) for one in order[first_N]]


def _rated(pairs: PairRatings, response: int, pair: int, rule: int) -> Row:
    return {
        "source": pairs.source_P[pair],
        "pair_id": pairs.pair_id_P[pair],
        "response": RESPONSES[response],
        "rule_id": pairs.rule_ids[rule],
        "rating": float(pairs.rating_2PR[response, pair, rule]),
    }


def _sources(pairs: PairRatings) -> _Places:
    """The source of each pair, counted from 0, shape [P]."""
    return np.asarray(np.unique(pairs.source_P, return_inverse=True)[1])


def _with_ids(rows: Sequence[Row], seed: int) -> list[Row]:
    """Rows under ids that are digests, sorted by them: neither id nor order tells anything.

    An id begins with a letter, as `Questionnaire.key` does.
    """
    found = {}
    for row in rows:
        item_id = f"item-{run_key_of({'seed': seed, **row})}"
        found[item_id] = {"item_id": item_id, **row}
    return [found[item_id] for item_id in sorted(found)]
