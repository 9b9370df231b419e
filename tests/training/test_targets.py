"""Targets: ratings of other pairs, missing and repeated ones, and centres that nothing biases."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.errors import InputError
from encore.training.examples import read_examples
from encore.training.splits import centre, move_centres
from encore.training.targets import mean_ratings
from tests.training.rated_study import (
    RULES,
    demo_tokenizer,
    make_study,
    pairs_of,
    text_rating,
    write_ratings,
)
from tests.training.tiny_training import random_examples


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("targets"))


def read(study, ratings):
    return read_examples(study, tokenizer=demo_tokenizer(), objective="multi-head", ratings=ratings)


# --- ratings of other pairs -------------------------------------------------------------------


def test_ratings_of_other_pairs_alone_are_refused(study, tmp_path):
    other = pairs_of(make_study(tmp_path, num_pairs=30))[12:]
    ratings = write_ratings(tmp_path / "r.parquet", other)
    with pytest.raises(InputError) as caught:
        read(study, ratings)
    message = str(caught.value)
    assert message.startswith(
        f"ratings {ratings}: none of its 18 rated pairs is among the 12 pairs"
    )
    assert "ingest the data that was rated" in message
    assert "\n" not in message


def test_another_label_of_the_same_pairs_is_named(study, tmp_path):
    other = pairs_of(make_study(tmp_path, label="yours"))
    ratings = write_ratings(tmp_path / "r.parquet", other)
    with pytest.raises(InputError, match=r"sources are not \(ratings: yours; study: mine\)"):
        read(study, ratings)


def test_some_ratings_of_other_pairs_are_passed_over_and_counted(study, tmp_path):
    other = pairs_of(make_study(tmp_path, num_pairs=15))[9:]  # 3 of ours, 3 unknown
    examples = read(study, write_ratings(tmp_path / "r.parquet", other))
    assert set(examples.pair_id_P) == {pair.pair_id for pair in pairs_of(study)[9:]}
    assert examples.notes == (
        "9 of the study's 12 pairs have no rating and are left out",
        "3 rated pairs are not in the study and are passed over",
    )


# --- missing ratings --------------------------------------------------------------------------


def test_a_missing_rating_is_missing_for_its_rule_alone(study, tmp_path):
    pairs = pairs_of(study)

    def rate(pair, response, rule_id):
        if pair == pairs[0] or (pair, response, rule_id) == (pairs[4], "chosen", "be-true"):
            return None
        return text_rating(pair, response, rule_id)

    examples = read(study, write_ratings(tmp_path / "r.parquet", pairs, rate=rate))
    assert examples.num_pairs == 11
    (row,) = np.flatnonzero(examples.pair_id_P == pairs[4].pair_id)
    place = examples.head_ids.index("be-true")
    missing = np.isnan(examples.target_chosen_PR)
    assert np.argwhere(missing).tolist() == [[row, place]]
    assert not np.isnan(examples.target_rejected_PR).any()
    assert examples.notes == (
        "1 of the study's 12 pairs have no rating and are left out",
        # 11 pairs, 2 responses, 3 rules
        "1 of 66 ratings are missing; no head learns from its own",
    )


def test_a_rule_without_a_single_rating_is_refused(study, tmp_path):
    def rate(pair, response, rule_id):
        return None if rule_id == "be-kind" else text_rating(pair, response, rule_id)

    ratings = write_ratings(tmp_path / "r.parquet", pairs_of(study), rate=rate)
    with pytest.raises(InputError, match="rule be-kind: none of its 24 ratings is a number"):
        read(study, ratings)


def test_a_rule_that_rated_other_pairs_only_is_refused(study, tmp_path):
    ours = {pair.pair_id for pair in pairs_of(study)}

    def rate(pair, response, rule_id):
        is_missing = rule_id == "be-kind" and pair.pair_id in ours
        return None if is_missing else text_rating(pair, response, rule_id)

    more = pairs_of(make_study(tmp_path, num_pairs=15))
    ratings = write_ratings(tmp_path / "r.parquet", more, rate=rate)
    with pytest.raises(InputError, match="rule be-kind has no rating of any of the 12 pairs"):
        read(study, ratings)


def test_a_repeated_rating_is_refused(study, tmp_path):
    path = write_ratings(tmp_path / "r.parquet", pairs_of(study))
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table.slice(5, 1)]), path)
    with pytest.raises(InputError, match=r"2 ratings for .*; expected one"):
        read(study, path)


# --- centres ----------------------------------------------------------------------------------


def test_means_are_those_of_the_ratings_that_are_there():
    nan = np.nan
    chosen_PR = np.array([[0.5, nan, nan], [1.0, 0.25, nan]], dtype=np.float32)
    rejected_PR = np.array([[nan, 0.75, nan], [0.0, 0.5, nan]], dtype=np.float32)
    # Sums over three ratings each: 1.5 and 1.5; the third rule has none.
    means = mean_ratings(chosen_PR, rejected_PR)
    assert means[:2].tolist() == [0.5, 0.5]
    assert np.isnan(means[2])


def test_means_come_from_the_training_pairs_alone():
    examples = random_examples(40, head_ids=RULES, missing_share=0.3, seed=1)
    train_rows = np.arange(0, 40, 2)
    centred = centre(examples, train_rows=train_rows)
    both = [centred.target_chosen_PR[train_rows], centred.target_rejected_PR[train_rows]]
    assert np.nanmean(np.concatenate(both), axis=0) == pytest.approx(0, abs=1e-6)
    others = np.arange(1, 40, 2)
    assert abs(np.nanmean(centred.target_chosen_PR[others], axis=0)).max() > 0.01
    # A rating is its target plus the mean, wherever it stands.
    again = centred.target_chosen_PR + centred.mean_R
    assert np.allclose(again, examples.target_chosen_PR, atol=1e-6, equal_nan=True)
    evaluated = examples.target_chosen_PR.copy()
    evaluated[others] += 100
    other = dataclasses.replace(examples, target_chosen_PR=evaluated)
    moved = centre(other, train_rows=train_rows)
    assert np.array_equal(moved.mean_R, centred.mean_R)


def test_a_head_without_a_rating_in_training_is_refused():
    examples = random_examples(10, head_ids=RULES, seed=1)
    examples.target_chosen_PR[:8, 1] = np.nan
    examples.target_rejected_PR[:8, 1] = np.nan
    with pytest.raises(
        InputError, match="rule be-brief: it has no rating in any of the 8 training"
    ):
        centre(examples, train_rows=np.arange(8))


def test_centres_move_and_ratings_stay():
    examples = random_examples(6, head_ids=RULES, missing_share=0.2)
    moved = move_centres(examples, np.array([0.5, -1.0, 0.0]))
    assert moved.mean_R.tolist() == [0.5, -1.0, 0.0]
    again = moved.target_rejected_PR + moved.mean_R
    assert np.allclose(again, examples.target_rejected_PR, atol=1e-6, equal_nan=True)


def test_centring_preferences_changes_nothing():
    examples = random_examples(4)
    assert centre(examples, train_rows=np.arange(4)) is examples
