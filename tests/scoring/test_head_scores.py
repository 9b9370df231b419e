"""Scores read back: whole scorings only, and how often a head ranks a pair as people did.

Accuracies are also computed on the pairs that training held out.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from encore.core.errors import InputError, StudyIncompleteError
from encore.data.pairs import iter_pairs
from encore.data.records import Message, PreferencePair
from encore.data.study import open_study
from encore.model.open_model import open_reward_model
from encore.scoring.head_accuracy import head_accuracies, held_out_P
from encore.scoring.head_scores import head_scores_schema, read_head_scores
from encore.training.training_examples import group_draw, prompt_group, read_examples, split
from tests.scoring.conftest import NUM_PAIRS
from tests.worlds.scorings import head_scores, make_model, score
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
    assert all(f"{key} (model model, " in str(caught.value) for key in (result.key, limited.key))
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


# --- held-out pairs ------------------------------------------------------------------------------


def test_held_out_pairs_are_those_that_training_holds_out(study, tmp_path):
    model = make_model(tmp_path / "model", config={"evaluation_share": 0.3, "seed": 5})
    result = score(study, model)
    assert result.split == {"evaluation_share": 0.3, "seed": 5}
    scores = read_head_scores(result.out)
    is_held_out_P = held_out_P(result.split, iter_pairs(open_study(study)), scores)

    examples = read_examples(
        open_study(study), tokenizer=open_reward_model(model).tokenizer, objective="bradley-terry"
    )
    rows = split(examples, evaluation_share=0.3, seed=5).evaluation_rows
    expected = set(examples.pair_id_P[rows])
    held_out_ids = set(scores.pair_id_P[is_held_out_P])
    assert 0 < len(expected) < NUM_PAIRS
    assert held_out_ids == expected
    (first, *_) = head_accuracies(scores.take(np.flatnonzero(is_held_out_P)))
    assert first.num_pairs == len(expected)


def test_a_pair_of_another_source_is_another_pair():
    """Ids of other tools' data need not be hashes: two sources may have the same ones."""
    split_of_model = {"evaluation_share": 0.5, "seed": 0}
    pair_by_side = {}
    for index in range(20):  # among them are held-out pairs and others
        prompt = (Message(role="user", content=f"Question {index}?"),)
        pair = PreferencePair(pair_id="1", source="hh", prompt=prompt, chosen="a", rejected="b")
        pair_by_side[group_draw(prompt_group(pair), seed=0) < 0.5] = pair
    pairs = [pair_by_side[True], dataclasses.replace(pair_by_side[False], source="pku")]
    scores = head_scores(
        np.zeros((2, 2, 1)), head_ids=("reward",), pair_ids=["1", "1"], sources=["pku", "hh"]
    )
    assert held_out_P(split_of_model, pairs, scores).tolist() == [False, True]
