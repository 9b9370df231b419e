"""Training examples: the right tokens beside the right ratings, flat, the same for any order."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.data.study import create_study
from encore.errors import InputError
from encore.model.conversation import EncodedPair, EncodedResponse
from encore.model.loading import SINGLE_HEAD
from encore.training.examples import REWARD_HEAD, TrainingExamples, read_examples
from encore.training.tokens import TokenTable
from tests.training.rated_study import (
    RULES,
    demo_tokenizer,
    make_study,
    pairs_of,
    text_rating,
    write_ratings,
)


def read(study, ratings=None, *, objective="multi-head", tokenizer=None, **options):
    return read_examples(
        study,
        tokenizer=tokenizer or demo_tokenizer(),
        objective=objective,
        ratings=ratings,
        **options,
    )


# --- token tables -----------------------------------------------------------------------------

lists_of_tokens = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=6)


@given(lists_of_tokens, lists_of_tokens)
def test_a_table_gives_back_every_sequence(first, second):
    table = TokenTable.joined([TokenTable.of(first), TokenTable.of(second)])
    assert [row.tolist() for row in table] == [*first, *second]
    assert table.lengths.tolist() == [len(tokens) for tokens in (*first, *second)]
    backwards = np.arange(len(table))[::-1]
    assert [row.tolist() for row in table.take(backwards)] == [*first, *second][::-1]


def test_a_table_is_two_flat_arrays_and_its_sequences_are_views():
    table = TokenTable.of([[1, 2, 3], [4]])
    assert (table.flat.dtype, table.offsets.dtype) == (np.int32, np.int64)
    assert np.shares_memory(table[0], table.flat)
    with pytest.raises(IndexError, match="sequence 2 of a table of 2"):
        table[2]


# --- what is read -----------------------------------------------------------------------------


def test_every_pair_has_its_own_tokens_and_ratings(tmp_path):
    study = make_study(tmp_path)
    pairs = {pair.pair_id: pair for pair in pairs_of(study)}
    examples = read(study, write_ratings(tmp_path / "r.parquet", list(pairs.values())))
    assert examples.head_ids == tuple(sorted(RULES))  # no rule set is known: sorted
    assert examples.num_pairs == len(pairs) == 12
    assert examples.notes == ()
    tokenizer = demo_tokenizer()
    for row, pair_id in enumerate(examples.pair_id_P):
        pair = pairs[pair_id]
        for response, table, target_PR in (
            ("chosen", examples.chosen, examples.target_chosen_PR),
            ("rejected", examples.rejected, examples.target_rejected_PR),
        ):
            expected = tokenizer.encode(pair.prompt, pair.response_text(response))
            assert table[row].tolist() == expected.token_ids.tolist()
            assert examples.prompt_tokens_P[row] == expected.num_prompt
            ratings = [text_rating(pair, response, rule_id) for rule_id in examples.head_ids]
            assert target_PR[row].tolist() == pytest.approx(ratings)
    assert examples.num_tokens == sum(examples.chosen.lengths) + sum(examples.rejected.lengths)


def test_the_order_of_the_data_changes_nothing(tmp_path):
    study, turned = make_study(tmp_path), make_study(tmp_path, step=-1)
    pairs = pairs_of(study)
    assert [pair.pair_id for pair in pairs] == [pair.pair_id for pair in pairs_of(turned)][::-1]
    ratings = write_ratings(tmp_path / "r.parquet", pairs)
    other_ratings = write_ratings(tmp_path / "other.parquet", pairs[::-1], rules=RULES[::-1])
    first, second = read(study, ratings), read(turned, other_ratings)
    assert first.digest == second.digest
    assert first.pair_id_P.tolist() == second.pair_id_P.tolist() == sorted(first.pair_id_P)
    assert np.array_equal(first.target_chosen_PR, second.target_chosen_PR)


def test_a_preference_objective_reads_no_ratings(tmp_path):
    examples = read(make_study(tmp_path), objective="bradley-terry")
    assert examples.head_ids == (REWARD_HEAD,) == (SINGLE_HEAD,)
    assert examples.target_chosen_PR.shape == examples.target_rejected_PR.shape == (12, 0)
    assert examples.mean_R.tolist() == [0.0]


def test_ratings_of_the_study_are_found_without_naming_them(tmp_path):
    study = make_study(tmp_path)
    with pytest.raises(InputError, match=r"no ratings yet; run `encore rate"):
        read(study)


def test_conversations_that_begin_alike_are_one_group(tmp_path):
    study = make_study(tmp_path)
    examples = read(study, objective="bradley-terry")
    first_turn = {pair.pair_id: pair.prompt[0].content for pair in pairs_of(study)}
    groups: dict[str, set[int]] = {}
    for pair_id, group in zip(examples.pair_id_P, examples.group_P.tolist(), strict=True):
        groups.setdefault(first_turn[pair_id], set()).add(group)
    # 12 pairs, three to a first turn: four turns, each one number, and no number twice.
    assert sorted(groups) == [f"Question {index}?" for index in range(4)]
    assert all(len(numbers) == 1 for numbers in groups.values())
    assert len(set.union(*groups.values())) == 4


def test_a_limit_takes_the_first_by_content_hash(tmp_path):
    study = make_study(tmp_path)
    ratings = write_ratings(tmp_path / "r.parquet", pairs_of(study))
    every, some = read(study, ratings), read(study, ratings, limit=5)
    assert some.pair_id_P.tolist() == every.pair_id_P[:5].tolist()
    assert some.notes == ("5 of 12 rated pairs are used, as the limit says",)
    assert read(study, objective="bradley-terry", limit=5).num_pairs == 5


def test_a_cut_sequence_is_counted(tmp_path):
    study = make_study(tmp_path)
    whole = read(study, objective="bradley-terry")
    cut = read(study, objective="bradley-terry", tokenizer=demo_tokenizer(max_length=16))
    assert max(cut.chosen.lengths) == 16
    lost = whole.num_tokens - cut.num_tokens
    assert lost > 0
    assert cut.notes == (
        f"24 of 24 sequences were too long and lost {lost} tokens of their oldest text",
    )


def test_some_pairs_are_taken_with_all_that_is_theirs(tmp_path):
    study = make_study(tmp_path)
    examples = read(study, write_ratings(tmp_path / "r.parquet", pairs_of(study)))
    rows = np.array([7, 2])
    some = examples.take(rows)
    assert some.pair_id_P.tolist() == examples.pair_id_P[rows].tolist()
    assert some.rejected[0].tolist() == examples.rejected[7].tolist()
    assert np.array_equal(some.target_rejected_PR, examples.target_rejected_PR[rows])
    assert some.digest != examples.take(rows[::-1]).digest != examples.digest


def test_the_digest_sees_every_rating_and_every_token(tmp_path):
    study = make_study(tmp_path)
    pairs = pairs_of(study)
    digests = [read(study, write_ratings(tmp_path / "r.parquet", pairs)).digest]

    def other(pair, response, rule_id):
        is_it = (pair, response, rule_id) == (pairs[3], "rejected", RULES[1])
        return 0.123 if is_it else text_rating(pair, response, rule_id)

    changed = write_ratings(tmp_path / "other.parquet", pairs, rate=other)
    digests.append(read(study, changed).digest)
    digests.append(read(study, objective="bradley-terry").digest)
    short = demo_tokenizer(max_length=16)
    digests.append(read(study, objective="bradley-terry", tokenizer=short).digest)
    assert len(set(digests)) == 4


# --- memory -----------------------------------------------------------------------------------


class LongTexts:
    """Stands in for a tokenizer: every response has 300 tokens."""

    def encode_pairs(self, pairs):
        def response():
            ids = np.arange(300, dtype=np.int32)
            return EncodedResponse(token_ids=ids, num_prompt=200, num_cut=0)

        return [EncodedPair(chosen=response(), rejected=response()) for _ in pairs]


def retained_and_expected_bytes(study):
    """What the examples keep, against 4 bytes a token and what else a pair must have."""
    tracemalloc.start()
    try:
        examples = read(study, objective="bradley-terry", tokenizer=LongTexts())
        retained, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Per pair: two offsets, group, prompt length, and an id of 32 characters (81 bytes) with its
    # and the source's references.
    return retained, examples.num_tokens * 4 + examples.num_pairs * (16 + 8 + 4 + 81 + 16)


def test_tokens_take_four_bytes_each(tmp_path):
    retained, expected = retained_and_expected_bytes(make_study(tmp_path, num_pairs=3000))
    assert expected == pytest.approx(3000 * 600 * 4, rel=0.06)
    assert retained < 1.15 * expected


def test_examples_are_immutable(tmp_path):
    examples = read(make_study(tmp_path), objective="bradley-terry")
    assert isinstance(examples, TrainingExamples)
    with pytest.raises(dataclasses.FrozenInstanceError):
        examples.digest = "another"


def test_a_study_without_pairs_is_refused(tmp_path):
    create_study(tmp_path / "empty")
    with pytest.raises(InputError, match=r"it has no pairs to train on; run `encore ingest` first"):
        read(tmp_path / "empty", objective="bradley-terry")
