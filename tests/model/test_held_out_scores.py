"""The scores of held-out pairs are read back, or their file is refused."""

from __future__ import annotations

import numpy as np
import pytest

from encore.core.errors import InputError
from encore.model.held_out_scores import HeldOutScores, read_held_out_scores, write_held_out_scores


def test_held_out_scores_come_back_and_a_damaged_file_is_refused(tmp_path):
    assert read_held_out_scores(tmp_path) is None
    score_P2R = np.arange(12, dtype=np.float32).reshape(2, 3, 2).transpose(0, 2, 1)
    group_P = np.array([7, 7], dtype=np.int64)
    write_held_out_scores(tmp_path, HeldOutScores(score_P2R=score_P2R, group_P=group_P))
    scores = read_held_out_scores(tmp_path)
    assert scores is not None
    np.testing.assert_array_equal(scores.score_P2R, score_P2R)
    np.testing.assert_array_equal(scores.group_P, group_P)
    for bad in (
        HeldOutScores(score_P2R=score_P2R, group_P=group_P[:1]),
        HeldOutScores(score_P2R=score_P2R * np.float32(np.nan), group_P=group_P),
    ):
        write_held_out_scores(tmp_path, bad)
        with pytest.raises(InputError, match=r"held_out_scores.*cannot be used.*copy the model"):
            read_held_out_scores(tmp_path)
