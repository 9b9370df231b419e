"""Deviations of scores from those of the responses that the model's training held out.

Legend: N texts, R heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.model.held_out_scores import HeldOutScores

_Scores = NDArray[np.float64]

#: Share of the largest score up to which a standard deviation is rounding: the scores are equal.
_ROUNDING = 1e-6


class HeldOutScale:
    """Mean and standard deviation of each head's scores of the held-out responses.

    Args:
        held_out: Held-out scores of the model; None if it has none.
        head_ids: Ids of its heads.
    """

    def __init__(self, held_out: HeldOutScores | None, *, head_ids: Sequence[str]) -> None:
        self._scales: dict[str, tuple[int, float, float]] = {}
        if held_out is None or not held_out.score_P2R.size:
            return
        score_RN = held_out.score_P2R.reshape(-1, held_out.score_P2R.shape[2]).T.astype(np.float64)
        for head, (head_id, score_N) in enumerate(zip(head_ids, score_RN, strict=True)):
            sd = float(score_N.std())
            if sd > _ROUNDING * np.abs(score_N).max():
                self._scales[head_id] = (head, float(score_N.mean()), sd)

    def deviations(self, score_NR: _Scores) -> dict[str, _Scores]:
        """Return (score - held-out mean) / held-out sd by head id, each of shape [N].

        Heads without a scale are left out: all of them, if the model has no held-out scores.
        """
        return {
            head_id: (score_NR[:, head] - mean) / sd
            for head_id, (head, mean, sd) in self._scales.items()
        }
