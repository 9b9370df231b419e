"""Draw the responses whose labels narrow the interval of people's rate most (`--next`).

The interval narrows most if each stratum has labels in proportion to its size and to the standard
deviation of its labels (Neyman 1934). Strata are the levels of the study's judges together: where
judges disagree, or say one half, labels are expected to differ. Labels so far take the place of
that expectation.

Suffixes: N responses under one rule, C cells: source and levels of all judges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.data.study import Study
from encore.people.rates_by_rule import AlignedPairs, labels_of_study, rated_runs
from encore.people.stratified_draw import Row, rated_row, with_ids
from encore.warehouse import Ratings, open_ratings, read_pairs_of

#: What the judges say before there are labels counts as this many labels of a cell.
_PRIOR_LABELS = 2.0
#: Judges are believed to be between 0.1 and 0.9 sure: a cell is never left out because they agree.
_LEAST_EXPECTED = 0.1
#: Each response is drawn with at least this part of the mean probability.
_LEAST_PART = 0.1

_Floats = NDArray[np.float64]


def further_runs(study: Study, ratings: Ratings) -> tuple[str, ...]:
    """Return the keys of the study's other runs, whose ratings `draw_next` uses too."""
    assert ratings.manifest is not None, "ratings of a study have a manifest"
    return tuple(key for key in rated_runs(study) if key != ratings.manifest.run_key)


def draw_next(study: Study, ratings: Ratings, *, num_items: int, seed: int) -> list[Row]:
    """Draw responses without a label, as many under each rule, with their probabilities.

    A row's ``probability`` is that of a response of its cell to have a label after this sample.
    """
    pairs, labels = read_pairs_of(ratings), labels_of_study(study)
    further = [open_ratings(study, run=key) for key in further_runs(study, ratings)]
    runs = [pairs, *map(read_pairs_of, further)]
    all_pairs = AlignedPairs.of([pairs])
    rng, num_rules = np.random.default_rng(seed), len(pairs.rule_ids)
    rows, probability_of = [], {}
    for rule, rule_id in enumerate(pairs.rule_ids):
        rating_JN = [all_pairs.ratings(run, rule_id) for run in runs if rule_id in run.rule_ids]
        label_N, cell_N = all_pairs.values(labels, rule_id), all_pairs.cells(rating_JN)
        is_rated_N = ~np.isnan(rating_JN[0])
        expected_N = np.nanmean(np.where(is_rated_N, np.stack(rating_JN), 0.0), axis=0)
        num_wanted = num_items // num_rules + (rule < num_items % num_rules)
        chance_N = next_probabilities(cell_N, label_N, expected_N, is_rated_N, num_wanted)
        after_N = probabilities_after(cell_N, label_N, chance_N)
        for index in systematic_draw(chance_N, cell_N, rng):
            response, pair = divmod(int(index), pairs.num_pairs)
            rows.append(rated_row(pairs, response, pair, rule))
            probability_of[tuple(rows[-1].values())] = float(after_N[index])
    return [
        {**row, "probability": probability_of[tuple(row.values())[1:]]}
        for row in with_ids(rows, seed)
    ]


def probabilities_after(cell_N: NDArray[np.intp], label_N: _Floats, chance_N: _Floats) -> _Floats:
    """Return the probability of each response of a cell to have a label after a draw.

    Args:
        cell_N: Cell of each response, from 0.
        label_N: Labels before the draw; NaN without one.
        chance_N: Probability of each response without a label to be drawn.
    """
    share_C = np.bincount(cell_N, weights=~np.isnan(label_N)) / np.bincount(cell_N)
    after_N = share_C[cell_N] + (1 - share_C[cell_N]) * chance_N
    return np.asarray(after_N, dtype=np.float64)


def next_probabilities(
    cell_N: NDArray[np.intp],
    label_N: _Floats,
    expected_N: _Floats,
    is_rated_N: NDArray[np.bool_],
    num_items: int,
) -> _Floats:
    """Return the probability of each response to be drawn; their sum is the number of items.

    Args:
        cell_N: Cell of each response, from 0.
        label_N: Labels so far, 0 to 1; NaN without one.
        expected_N: Mean of the judges' ratings, 0 to 1.
        is_rated_N: True for the responses that may be drawn, if they have no label.
        num_items: Number of items to draw; all responses are drawn if there are fewer.
    """
    is_labelled_N = ~np.isnan(label_N)
    may_be_drawn_N = is_rated_N & ~is_labelled_N
    num_free = int(may_be_drawn_N.sum())
    if num_free <= num_items:
        return np.asarray(may_be_drawn_N, dtype=np.float64)
    size_C, num_labels_C = np.bincount(cell_N), np.bincount(cell_N, weights=is_labelled_N)
    given_N = np.where(is_labelled_N, label_N, 0.0)
    expected_C = np.bincount(cell_N, weights=expected_N) / size_C
    expected_C = _LEAST_EXPECTED + (1 - 2 * _LEAST_EXPECTED) * expected_C
    divisor_C = num_labels_C + _PRIOR_LABELS
    mean_C = (np.bincount(cell_N, weights=given_N) + _PRIOR_LABELS * expected_C) / divisor_C
    square_C = (np.bincount(cell_N, weights=given_N**2) + _PRIOR_LABELS * expected_C) / divisor_C
    deviation_C = np.sqrt(np.maximum(square_C - mean_C**2, 0.0))
    share_C = num_labels_C / size_C
    least = _LEAST_PART * num_items / num_free

    def chances(scale: float) -> _Floats:
        wanted_C = (scale * deviation_C - share_C) / np.maximum(1 - share_C, 1e-9)
        chance_N = np.where(may_be_drawn_N, np.clip(wanted_C, least, 1.0)[cell_N], 0.0)
        return np.asarray(chance_N, dtype=np.float64)

    low, high = 0.0, 2 / max(float(deviation_C.min()), 1e-3)
    for _ in range(60):  # the sum rises with the scale
        middle = (low + high) / 2
        low, high = (middle, high) if chances(middle).sum() < num_items else (low, middle)
    return chances(high)


def systematic_draw(
    chance_N: _Floats, cell_N: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.intp]:
    """Draw responses with given probabilities, as evenly over cells as the probabilities are.

    Every probability is exact, also that of a cell with less than one expected item.
    """
    order_N = np.lexsort((rng.random(len(cell_N)), cell_N))
    end_N = np.cumsum(chance_N[order_N]) + rng.random()
    steps_N = np.floor(end_N + 1e-9).astype(np.intp)
    return np.asarray(order_N[np.diff(steps_N, prepend=0) > 0])
