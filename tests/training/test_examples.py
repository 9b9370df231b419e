"""Training examples pair tokens with their ratings, hold out whole groups, and are centred."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.core.errors import InputError
from encore.data.study import open_study
from encore.model.conversation import ConversationTokenizer
from encore.training.training_examples import (
    REWARD_HEAD,
    centre,
    move_centres,
    read_examples,
    split,
)
from tests.worlds.studies import create_study
from tests.worlds.tokenizers import chatml, demo_tokenizer, llama_3
from tests.worlds.trainings import (
    RULES,
    make_study,
    pairs_of,
    random_examples,
    text_rating,
    write_ratings,
)


def study_in(folder, *, num_pairs=12, **settings):
    """Make a study in which three pairs each share a first turn."""
    return make_study(folder / "study", num_pairs=num_pairs, pairs_per_question=3, **settings)


def read(study, ratings=None, *, objective="multi-head", tokenizer=None, **options):
    return read_examples(
        open_study(study),
        tokenizer=tokenizer or demo_tokenizer(),
        objective=objective,
        ratings=ratings,
        **options,
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return study_in(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def ratings(study):
    return write_ratings(study, study.parent / "ratings.parquet")


# --- long conversations ---------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "begin"), [(llama_3, ["<|begin_of_text|>"]), (chatml, [])])
def test_a_long_conversation_keeps_its_begin_token_and_its_last_tokens(study, make, begin):
    """The kept tokens follow from transformers alone: render, encode, take the end of the text."""
    plain, max_length = make(), 24
    tokenizer = ConversationTokenizer(make(), max_length=max_length)
    examples = read(study, objective="bradley-terry", tokenizer=tokenizer)
    pair_by_id = {pair.pair_id: pair for pair in pairs_of(study)}
    plain.chat_template = tokenizer.template  # Llama's prints today's date; ours is frozen
    num_cut = 0
    for pair_id, *sides in zip(examples.pair_id_P, examples.chosen, examples.rejected, strict=True):
        pair = pair_by_id[pair_id]
        for response, token_ids in zip((pair.chosen, pair.rejected), sides, strict=True):
            messages = [dataclasses.asdict(turn) for turn in pair.prompt]
            messages.append({"role": "assistant", "content": response})
            text = plain.apply_chat_template(messages, tokenize=False).rstrip()
            tokens = plain.tokenize(text)
            num_cut += max(0, len(tokens) - max_length)
            # Each response is cut by itself; both keep the end of the assistant's turn.
            if len(tokens) > max_length:
                tokens = [*begin, *tokens[-(max_length - len(begin)) :]]
            assert plain.convert_ids_to_tokens(token_ids) == tokens
    assert num_cut > 0
    assert any(f"lost {num_cut} tokens of their oldest text" in note for note in examples.notes)


# --- what is read -----------------------------------------------------------------------------


def test_every_pair_has_its_tokens_ratings_and_group(study, ratings):
    pairs = {pair.pair_id: pair for pair in pairs_of(study)}
    examples = read(study, ratings)
    assert examples.head_ids == tuple(sorted(RULES))  # no rule set is known: sorted
    assert examples.num_pairs == len(pairs) == 12
    assert examples.notes == ()
    tokenizer = demo_tokenizer()
    groups: dict[str, set[int]] = {}
    for row, pair_id in enumerate(examples.pair_id_P):
        pair = pairs[pair_id]
        groups.setdefault(pair.prompt[0].content, set()).add(int(examples.group_P[row]))
        for side, (response, sequences) in enumerate(
            (("chosen", examples.chosen), ("rejected", examples.rejected))
        ):
            expected = tokenizer.encode(pair.prompt, pair.response_text(response))
            assert sequences[row].tolist() == expected.token_ids.tolist()
            assert examples.prompt_tokens_P[row] == expected.num_prompt
            ratings_R = [text_rating(pair, response, rule_id) for rule_id in examples.head_ids]
            assert examples.target_PSR[row, side].tolist() == pytest.approx(ratings_R)
    # 12 pairs, three with each first turn: four groups, each with one number of its own.
    assert all(len(numbers) == 1 for numbers in groups.values())
    assert len(set.union(*groups.values())) == len(groups) == 4


def test_the_order_of_the_data_changes_nothing(study, ratings, tmp_path):
    reversed_study, pairs = study_in(tmp_path, is_reversed=True), pairs_of(study)
    reversed_ids = [pair.pair_id for pair in pairs_of(reversed_study)]
    assert [pair.pair_id for pair in pairs] == reversed_ids[::-1]
    reversed_ratings = write_ratings(pairs[::-1], tmp_path / "r.parquet", rules=RULES[::-1])
    first, second = read(study, ratings), read(reversed_study, reversed_ratings)
    assert first.digest == second.digest
    assert first.pair_id_P.tolist() == second.pair_id_P.tolist() == sorted(first.pair_id_P)


def test_a_preference_objective_reads_no_ratings(study):
    examples = read(study, objective="bradley-terry")
    assert examples.head_ids == (REWARD_HEAD,)
    assert examples.target_PSR.shape == (12, 2, 0)
    assert centre(examples, train_rows=np.arange(4)).mean_R.tolist() == [0.0]
    assert read(study, objective="bradley-terry", limit=5).num_pairs == 5
    with pytest.raises(InputError, match="no ratings yet; run `encore rate"):
        read(study)


def test_a_limit_takes_the_first_pairs_by_content_hash(study, ratings):
    unlimited, limited = read(study, ratings), read(study, ratings, limit=5)
    assert limited.pair_id_P.tolist() == unlimited.pair_id_P[:5].tolist()
    assert limited.notes == ("7 of 12 rated pairs are left out, because of the limit",)


def test_the_digest_sees_every_ingredient_of_the_data_and_its_order(study, ratings, tmp_path):
    """The digest differs for other pairs, ratings and lengths; cut sequences are counted."""
    pairs = pairs_of(study)

    def change_a_rating(pair, response, rule_id):
        is_changed = (pair, response, rule_id) == (pairs[3], "rejected", RULES[1])
        return 0.123 if is_changed else text_rating(pair, response, rule_id)

    changed = write_ratings(pairs, tmp_path / "changed.parquet", rate=change_a_rating)
    complete = read(study, objective="bradley-terry")
    cut = read(study, objective="bradley-terry", tokenizer=demo_tokenizer(max_length=16))
    yours = read(study_in(tmp_path, label="yours"), objective="bradley-terry")
    rated = (read(study, path) for path in (ratings, changed))
    assert len({examples.digest for examples in (complete, cut, yours, *rated)}) == 5
    num_cut = (complete.length_P - cut.length_P).sum()
    note = f"24 of 24 sequences were too long and lost {num_cut} tokens of their oldest text"
    assert cut.notes == (note,)


# --- ratings of other pairs, missing ratings ----------------------------------------------------


def test_a_study_without_pairs_or_matching_ratings_is_refused(study, ratings, tmp_path):
    create_study(tmp_path / "empty")
    with pytest.raises(InputError, match=r"it has no pairs to train on; run `encore ingest` first"):
        read(tmp_path / "empty", objective="bradley-terry")
    path = tmp_path / "r.parquet"
    write_ratings(pairs_of(study_in(tmp_path, num_pairs=30))[12:], path)
    message = r"none of its 18 rated pairs .* is among the 12 pairs .* or ingest what was rated"
    with pytest.raises(InputError, match=message):
        read(study, path)
    write_ratings(study_in(tmp_path / "yours", label="yours"), path)
    with pytest.raises(InputError, match=r"of source yours\) .* of source mine\)"):
        read(study, path)
    table = pq.read_table(ratings)
    pq.write_table(pa.concat_tables([table, table.slice(5, 1)]), path)
    with pytest.raises(InputError, match=r"2 ratings for .*; expected one"):
        read(study, path)


def test_a_missing_rating_is_missing_for_its_rule_only(study, tmp_path):
    pairs = [*pairs_of(study), *pairs_of(study_in(tmp_path, num_pairs=15))[12:]]

    def rate(pair, response, rule_id):
        if pair == pairs[0] or (pair, response, rule_id) == (pairs[4], "chosen", "be-honest"):
            return None
        return text_rating(pair, response, rule_id)

    examples = read(study, write_ratings(pairs, tmp_path / "r.parquet", rate=rate))
    assert examples.num_pairs == 11
    (row,) = np.flatnonzero(examples.pair_id_P == pairs[4].pair_id)
    head = examples.head_ids.index("be-honest")
    assert np.argwhere(np.isnan(examples.target_PSR)).tolist() == [[row, 0, head]]
    assert examples.notes == (
        "1 of the study's 12 pairs have no rating and are left out",
        "3 rated pairs are not in the study and are left out",
        # 11 pairs, 2 responses, 3 rules
        "1 of 66 ratings are missing; their heads do not learn from them",
    )
    # A rule that does not apply is masked like a missing rating, and counted by itself.
    table = pq.read_table(tmp_path / "r.parquet")
    reasons = pa.array(
        ["does_not_apply" if rating is None else None for rating in table["rating"].to_pylist()]
    )
    silent = read(study, table.append_column("null_reason", reasons))
    assert np.array_equal(silent.target_PSR, examples.target_PSR, equal_nan=True)
    note = "1 of 66 responses and rules do not apply; the heads do not learn there"
    assert silent.notes == (*examples.notes[:2], note)


# --- splits and centres -------------------------------------------------------------------------


def examples_of(group_P):
    examples = random_examples(len(group_P))
    return dataclasses.replace(examples, group_P=np.asarray(group_P, dtype=np.int64))


groups = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40)


@given(groups, groups, st.integers(0, 2**31), st.floats(0.05, 0.5))
def test_no_group_is_divided_and_more_data_moves_no_pair(first, second, seed, share):
    def evaluated(group_P):
        parts = split(examples_of(group_P), evaluation_share=share, seed=seed)
        rows = [part.tolist() for part in (parts.train_rows, parts.evaluation_rows)]
        assert sorted(rows[0] + rows[1]) == list(range(len(group_P)))
        sides = [{group_P[row] for row in part} for part in rows]
        assert not sides[0] & sides[1]
        return sides[1]

    try:
        before, after = evaluated([*first, *first[::2]]), evaluated([*first, *second])
    except InputError:
        return  # no training pair was left
    if len(before) > 1:  # a single group may be held out only because none was drawn
        assert before <= after
        assert after & set(first) == before


def test_a_few_pairs_have_a_held_out_group_and_a_training_group():
    for group_P, share, num_evaluated in (([5, 6, 7], 1e-6, 1), ([7, 7], 1e-6, 0), ([1, 2], 0, 0)):
        parts = split(examples_of(group_P), evaluation_share=share, seed=0)
        assert len(parts.evaluation_rows) == num_evaluated
    with pytest.raises(InputError, match="all 1 pairs fall into"):
        split(examples_of([1]), evaluation_share=1 - 1e-12, seed=0)


def test_means_come_from_the_ratings_of_training_pairs_alone():
    examples = random_examples(40, head_ids=RULES, missing_share=0.3, seed=1)
    train_rows, held_out_rows = np.arange(0, 40, 2), np.arange(1, 40, 2)
    centred = centre(examples, train_rows=train_rows)
    assert np.nanmean(centred.target_PSR[train_rows], axis=(0, 1)) == pytest.approx(0, abs=1e-6)
    # A rating is its target plus the mean, for all pairs.
    moved = move_centres(centred, np.array([0.5, -1.0, 0.0]))
    for result in (centred, moved):
        rating_PSR = result.target_PSR + result.mean_R
        assert np.allclose(rating_PSR, examples.target_PSR, atol=1e-6, equal_nan=True)
    examples.target_PSR[held_out_rows, 0] += 100
    assert np.array_equal(centre(examples, train_rows=train_rows).mean_R, centred.mean_R)
    examples.target_PSR[train_rows, :, 1] = np.nan
    with pytest.raises(InputError, match="rule be-honest: it has no rating in any of the 20 train"):
        centre(examples, train_rows=train_rows)
