"""Scores read back: whole scorings only, and how often a head ranks a pair as people did."""

from __future__ import annotations

import numpy as np
import pytest

from encore.core.errors import InputError, StudyIncompleteError
from encore.scoring.head_accuracy import head_accuracies
from encore.scoring.head_scores import head_scores_schema, read_head_scores
from tests.worlds.scorings import head_scores, score
from tests.worlds.studies import shard_path


def test_a_scoring_is_read_by_its_study_and_by_its_folder(study, opened):
    with pytest.raises(InputError, match="no scores yet; run `encore score"):
        read_head_scores(study)
    result = score(study, opened, shard_size=9)
    by_study, by_folder = read_head_scores(study), read_head_scores(result.out)
    assert by_study.score_P2R.tolist() == by_folder.score_P2R.tolist()
    assert by_study.score_P2R.dtype == np.float32
    assert by_study.pair_id_P.tolist() == sorted(by_study.pair_id_P)
    assert by_study.head_ids == opened.model.head_ids
    assert by_study.mean_R.tolist() == [0.5, 0.25, 0.125]
    assert (set(by_study.source_P), set(by_study.subset_P)) == ({"mine"}, {None})
    limited = score(study, opened, limit=2)
    with pytest.raises(InputError, match=r"2 runs match .* or its folder") as caught:
        read_head_scores(study)
    assert all(f"{key} (model model)" in str(caught.value) for key in (result.key, limited.key))
    shard_path(result.out, 1).unlink()
    with pytest.raises(StudyIncompleteError, match=r"1 of 3 shards are not done \(shard 1: miss"):
        read_head_scores(result.out)
    with pytest.raises(InputError, match="head 'kind'"):
        head_scores_schema(["kind", "kind"])


def test_accuracy_counts_a_tie_half_or_as_a_miss():
    score_P2R = [
        [[1.0, 0.0], [0.5, 0.0]],  # win, tie
        [[0.0, 0.0], [0.5, 0.0]],  # loss, tie
        [[2.0, 1.0], [2.0, 0.0]],  # tie, win
        [[3.0, 0.0], [2.0, 1.0]],  # win, loss
    ]
    scores = head_scores(
        score_P2R, head_ids=("kind", "brief"), pair_ids=["p0", "p1", "p2", "p3"], sources=["hh"] * 4
    )
    kind, brief = head_accuracies(scores)
    assert (kind.num_pairs, kind.num_ties, kind.half, kind.strict) == (4, 1, 2.5 / 4, 2 / 4)
    assert (brief.num_pairs, brief.num_ties, brief.half, brief.strict) == (4, 2, 2 / 4, 1 / 4)
    assert [accuracy.head_id for accuracy in (kind, brief)] == ["kind", "brief"]
    assert head_accuracies(scores.take(np.arange(0))) == ()
