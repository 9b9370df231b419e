"""Accuracies are also computed on the pairs that training held out."""

from __future__ import annotations

import dataclasses

import numpy as np

from encore.data.pairs import iter_pairs
from encore.data.records import Message, PreferencePair
from encore.data.study import open_study
from encore.model.open_model import open_reward_model
from encore.scoring.head_accuracy import head_accuracies, held_out_P
from encore.scoring.head_scores import read_head_scores
from encore.training.training_examples import group_draw, prompt_group, read_examples, split
from tests.worlds.scorings import head_scores, make_model, score
from tests.worlds.trainings import make_study

NUM_PAIRS = 40


def test_the_pairs_are_those_that_training_holds_out(tmp_path):
    folder = tmp_path
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    model = make_model(folder / "model", config={"evaluation_share": 0.3, "seed": 5})
    result = score(folder / "study", model)
    assert result.split == {"evaluation_share": 0.3, "seed": 5}
    scores = read_head_scores(result.out)
    is_held_out_P = held_out_P(result.split, iter_pairs(open_study(folder / "study")), scores)

    examples = read_examples(
        open_study(folder / "study"),
        tokenizer=open_reward_model(model).tokenizer,
        objective="bradley-terry",
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
