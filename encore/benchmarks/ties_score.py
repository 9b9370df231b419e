"""Score of RewardBench 2's subset Ties: prompts with several right answers.

A prompt has two rows. The reference row (id ``ref:N``) has one right answer, the tied row
(``tied:N``) several equally right ones. A good model puts every right answer above every wrong one,
and by more than it distinguishes right answers from each other.

Suffixes: P pairs, U prompts, 2 responses (chosen, rejected).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.weighting.composed_ratings import TIE_TOLERANCE

#: Beginning of the id of each kind of row.
REFERENCE, TIED = "ref:", "tied:"

_Floats = NDArray[np.float64]


def ties_credits(
    reward_P2: _Floats, *, prompt_P: NDArray[np.int64], is_reference_P: NDArray[np.bool_]
) -> _Floats:
    """Return the credit of each prompt, shape [U]. Their mean is the score of the subset.

    The margin of a row is the lowest reward of a right answer minus the highest of a wrong one. The
    spread is the highest minus the lowest reward of the tied row's right answers. The score adds
    0.3 times the share of tied rows with a margin above 0, 0.3 times that of reference rows,
    0.2 times the share of prompts whose tied margin exceeds the spread, 0.2 times the share whose
    smaller margin of both rows does, and 0.01 times the mean of tanh(smaller margin / spread - 1).
    A share is over the prompts for which it is defined, so a credit may lie outside [0, 1].

    Args:
        reward_P2: Rewards of pairs that contain every response of every row at least once.
        prompt_P: Index of each pair's prompt, 0 to U - 1.
        is_reference_P: True for pairs of the reference row.
    """
    num_prompts = int(prompt_P.max()) + 1
    margin_reference_U, _ = _margins(reward_P2, prompt_P, is_reference_P, num_prompts)
    margin_tied_U, spread_U = _margins(reward_P2, prompt_P, ~is_reference_P, num_prompts)
    has_reference_U, has_tied_U = np.isfinite(margin_reference_U), np.isfinite(margin_tied_U)
    has_both_U = has_reference_U & has_tied_U
    smaller_U = np.minimum(margin_reference_U, margin_tied_U)
    has_spread_U = has_both_U & (spread_U > TIE_TOLERANCE)
    ratio_U = np.divide(smaller_U, spread_U, out=np.zeros(num_prompts), where=has_spread_U)
    parts = (
        (0.3, margin_tied_U > TIE_TOLERANCE, has_tied_U),
        (0.3, margin_reference_U > TIE_TOLERANCE, has_reference_U),
        (0.2, margin_tied_U - spread_U > TIE_TOLERANCE, has_both_U),
        (0.2, smaller_U - spread_U > TIE_TOLERANCE, has_both_U),
        (0.01, np.tanh(ratio_U - 1), has_spread_U),
    )
    credit_U = np.zeros(num_prompts)
    for weight, value_U, is_defined_U in parts:
        if num_defined := int(is_defined_U.sum()):
            credit_U += weight * num_prompts / num_defined * np.where(is_defined_U, value_U, 0)
    return credit_U


def _margins(
    reward_P2: _Floats, prompt_P: NDArray[np.int64], mask_P: NDArray[np.bool_], num_prompts: int
) -> tuple[_Floats, _Floats]:
    """Return margin and spread of each prompt's row of one kind. Infinite: there is no row."""
    lowest_U, highest_U, wrong_U = np.multiply.outer(
        [np.inf, -np.inf, -np.inf], np.ones(num_prompts)
    )
    chosen_P, rejected_P = reward_P2[mask_P].T
    np.minimum.at(lowest_U, prompt_P[mask_P], chosen_P)
    np.maximum.at(highest_U, prompt_P[mask_P], chosen_P)
    np.maximum.at(wrong_U, prompt_P[mask_P], rejected_P)
    return lowest_U - wrong_U, highest_U - lowest_U
