"""A judge of pairs is measured in both orders; work done is kept; what is missing is counted."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.benchmarks.judging.folder import MANIFEST_FILE, VERDICTS
from encore.benchmarks.judging.pairwise import judge_pairs, read_judged_pairs
from encore.benchmarks.metrics import benchmark_score
from encore.benchmarks.old_shards import shard_path
from encore.config import JudgeConfig
from encore.errors import EncoreError, InputError, StudyIncompleteError
from tests.benchmarks.judging.scripted import (
    benchmark_of,
    index_in,
    is_chosen_first,
    judge_of_opinions,
    judge_saying,
    make_benchmark,
    make_pair,
    verdict_of,
)
from tests.tiny_judge import make_tiny_judge

#: Six pairs are judged rightly, three by their place, one wrongly.
OPINIONS = ["right"] * 6 + ["A"] * 3 + ["wrong"]


def judged(pairs, judge, out: Path, **options):
    return judge_pairs(
        pairs, judge=judge, out=out, **{"protocol": "verdict-only", "shard_size": 4, **options}
    )


def rows_of(folder: Path) -> list[dict[str, object]]:
    paths = sorted(folder.glob("shard-*.parquet"))
    return pa.concat_tables([pq.read_table(path) for path in paths]).to_pylist()


def test_a_known_position_bias_gives_the_figures_computed_by_hand(tmp_path):
    """Ten pairs, twenty replies.

    Accuracy: six pairs count 1, three that follow A count 1/2 (right in one order, wrong in the
    other), one counts 0: 7.5 of 10. Consistency: six right and one wrong twice: 7 of 10. A: once
    for each of the seven consistent pairs, twice for each of the three others: 13 of 20.
    """
    result = judged(make_benchmark(10), judge_of_opinions(OPINIONS), tmp_path)
    assert result.credit_P.tolist() == [1] * 6 + [0.5] * 3 + [0]
    assert result.accuracy == pytest.approx(0.75)
    assert result.consistency == pytest.approx(0.7)
    assert result.share_first == pytest.approx(13 / 20)
    assert result.num_unparsed == 0
    assert result.notes == ()
    assert result.reliability == (
        "judge scripted: 20 verdicts in 20 replies; both orders agree on 70.0% of 10 pairs (a "
        "coin: 50%); 65.0% of the verdicts name the answer shown first"
    )


def test_the_credits_score_the_benchmark_with_a_tie_as_one_half(tmp_path):
    pairs = make_benchmark(10, subsets=2)
    result = judged(pairs, judge_of_opinions(OPINIONS), tmp_path)
    score = benchmark_score(result.credit_P, pairs=pairs, ties="half")
    assert score.headline.score == pytest.approx(0.75)
    # Even places: 0, 2, 4 right; 6, 8 by place. Odd: 1, 3, 5 right; 7 by place; 9 wrong.
    assert [one.accuracy for one in score.subsets] == pytest.approx([4 / 5, 3.5 / 5])


def test_every_reply_is_kept_in_the_row_of_its_pair_and_order(tmp_path):
    pairs = make_benchmark(5)
    judge = judge_saying(lambda prompt: f"{index_in(prompt)} {verdict_of('right', prompt)}")
    rows = rows_of(judged(pairs, judge, tmp_path).folder)
    assert [(row["row_id"], row["order"]) for row in rows] == [
        (str(index), order) for index in range(5) for order in ("chosen-first", "rejected-first")
    ]
    for row in rows:
        place = "A" if row["order"] == "chosen-first" else "B"
        assert row["raw_reply"] == f"{row['row_id']} [[{place}]]"
        assert (row["verdict"], row["preferred"]) == (place, "chosen")
        assert row["pair_id"] == pairs.pairs[int(str(row["row_id"]))].pair_id


@pytest.mark.parametrize("place", ["A", "B"])
def test_a_judge_that_always_answers_one_place_is_named(tmp_path, place):
    result = judged(make_benchmark(6), judge_of_opinions([place] * 6), tmp_path)
    assert (result.accuracy, result.consistency) == (0.5, 0)
    assert result.summary.always == place
    assert any(f"always answers {place}" in note for note in result.notes)


def test_replies_without_a_verdict_are_counted_by_reason_and_never_guessed(tmp_path):
    replies = {
        0: "",
        1: "The first one.",
        2: "[[A]], or rather [[B]]",
        3: "[[A]]" + " because" * 200,
    }
    judge = judge_saying(lambda prompt: replies.get(index_in(prompt), verdict_of("right", prompt)))
    result = judged(make_benchmark(6), judge, tmp_path, max_reply_tokens=100)
    assert result.null_reasons == {
        "empty_reply": 2,
        "no_verdict": 2,
        "reply_cut_off": 2,
        "two_verdicts": 2,
    }
    assert result.num_unparsed == 8
    assert result.credit_P.tolist() == [0.5] * 4 + [1, 1]
    # Two pairs of six are right; the four others could all be wrong or all be right.
    assert (result.summary.accuracy_low, result.summary.accuracy_high) == (2 / 6, 1)
    assert "judge scripted: 2 of 12 verdicts are missing: the reply is empty" in result.notes
    assert any(
        "wrong or all right Accuracy would be 33.3% or 100.0%" in one for one in result.notes
    )
    nulls = [row for row in rows_of(result.folder) if row["verdict"] is None]
    assert len(nulls) == 8
    assert all(row["null_reason"] and row["raw_reply"] is not None for row in nulls)


def test_one_order_without_a_verdict_leaves_the_other_its_credit(tmp_path):
    judge = judge_saying(lambda prompt: "[[A]]" if is_chosen_first(prompt) else "I cannot say.")
    result = judged(make_benchmark(3), judge, tmp_path)
    assert result.credit_P.tolist() == [0.75] * 3
    assert (result.consistency, result.share_first) == (None, 1)


def test_a_pair_that_is_too_long_is_counted_and_not_asked(tmp_path):
    pairs = benchmark_of([make_pair(0), make_pair(1, chosen="long " * 500), make_pair(2)])
    judge = judge_of_opinions(["right"] * 3)
    judge.max_model_len = 2500
    result = judged(pairs, judge, tmp_path)
    assert result.null_reasons == {"prompt_too_long": 2}
    assert result.credit_P.tolist() == [1, 0.5, 1]
    assert judge.num_asked == 4
    assert [row["raw_reply"] for row in rows_of(result.folder)].count(None) == 2


def test_a_shard_of_too_long_pairs_alone_is_done_without_the_judge(tmp_path):
    judge = judge_of_opinions(["right"] * 2)
    judge.max_model_len = 100
    result = judged(make_benchmark(2), judge, tmp_path)
    assert result.null_reasons == {"prompt_too_long": 4}
    assert judge.num_asked == 0


def test_a_second_call_asks_nothing_and_reads_the_same(tmp_path):
    judge = judge_of_opinions(OPINIONS)
    pairs = make_benchmark(10)
    first = judged(pairs, judge, tmp_path)
    again = judged(pairs, judge, tmp_path)
    assert judge.num_asked == 20
    assert again.folder == first.folder
    assert again.credit_P.tolist() == first.credit_P.tolist()
    assert read_judged_pairs(first.folder, pairs=pairs).summary == first.summary


def test_the_same_pairs_in_another_order_are_the_same_judging(tmp_path):
    judge = judge_of_opinions(OPINIONS)
    pairs = make_benchmark(10, subsets=3)
    first = judged(pairs, judge, tmp_path)
    turned = dataclasses.replace(
        pairs,
        pairs=pairs.pairs[::-1],
        subset_P=pairs.subset_P[::-1],
        row_id_P=pairs.row_id_P[::-1],
    )
    second = judged(turned, judge, tmp_path)
    assert judge.num_asked == 20
    assert first.credit_P.tolist() == [1] * 6 + [0.5] * 3 + [0]
    assert second.credit_P.tolist() == first.credit_P.tolist()[::-1]
    assert (second.folder, second.summary) == (first.folder, first.summary)


def test_the_single_order_of_a_pair_does_not_depend_on_the_order_of_the_file(tmp_path):
    """Every pair follows the place, so the credit of one order says which one was drawn."""
    judge = judge_of_opinions(["A"] * 10)
    pairs = make_benchmark(10)
    turned = dataclasses.replace(
        pairs, pairs=pairs.pairs[::-1], row_id_P=pairs.row_id_P[::-1], subset_P=pairs.subset_P
    )
    one, other = (judged(each, judge, tmp_path, seed=3) for each in (pairs, turned))
    drawn = one.single_order_credit_P.tolist()
    assert drawn != drawn[::-1]
    assert other.single_order_credit_P.tolist() == drawn[::-1]


def test_exactly_the_deleted_and_the_damaged_shard_are_judged_again(tmp_path):
    judge = judge_of_opinions(OPINIONS)
    pairs = make_benchmark(10)
    first = judged(pairs, judge, tmp_path)
    before = rows_of(first.folder)
    shard_path(first.folder, 0).unlink()
    damaged = shard_path(first.folder, 2)
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(
        StudyIncompleteError, match=r"2 of 3 shards are not done \(shard 0: missing"
    ):
        read_judged_pairs(first.folder, pairs=pairs)
    judged(pairs, judge, tmp_path)
    # Shard 0 has four pairs, shard 2 the last two: twelve replies.
    assert judge.calls == [8, 8, 4, 8, 4]
    assert rows_of(first.folder) == before


def failing_at_shard_1(error: BaseException | type[BaseException]):
    """A judge that is right about everything and fails at pairs 4 to 7."""

    def say(prompt: str) -> str:
        if index_in(prompt) in range(4, 8):
            raise error
        return verdict_of("right", prompt)

    return judge_saying(say)


def test_an_interruption_keeps_the_shards_before_it(tmp_path):
    pairs = make_benchmark(10)
    with pytest.raises(KeyboardInterrupt):
        judged(pairs, failing_at_shard_1(KeyboardInterrupt), tmp_path)
    judge = judge_of_opinions(["right"] * 10)
    assert judged(pairs, judge, tmp_path).accuracy == 1
    assert judge.calls == [8, 4]  # shards 1 and 2


def test_a_shard_that_fails_is_recorded_and_the_others_go_on(tmp_path):
    pairs = make_benchmark(10)
    with pytest.raises(StudyIncompleteError, match=r"1 of 3 shards failed .*engine died"):
        judged(pairs, failing_at_shard_1(RuntimeError("engine died")), tmp_path)
    [folder] = tmp_path.iterdir()
    with pytest.raises(StudyIncompleteError, match=r"shard 1: failed: RuntimeError: engine died"):
        read_judged_pairs(folder, pairs=pairs)
    judge = judge_of_opinions(["right"] * 10)
    assert judged(pairs, judge, tmp_path).accuracy == 1
    assert judge.calls == [8]  # shard 1 alone


def test_a_broken_connection_is_the_shard_s_own_and_a_full_disk_is_everybody_s(tmp_path):
    """Both are errors of the operating system; only the second would meet every shard."""
    pairs = make_benchmark(10)
    for name, error in (
        ("pipe", BrokenPipeError(errno.EPIPE, "Broken pipe")),
        ("reset", ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")),
    ):
        judge = failing_at_shard_1(error)
        with pytest.raises(StudyIncompleteError, match=rf"1 of 3 shards failed .*{error.strerror}"):
            judged(pairs, judge, tmp_path / name)
        assert judge.calls == [8, 8, 4]  # shard 2 is judged too
    judge = failing_at_shard_1(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        judged(pairs, judge, tmp_path / "full")
    assert judge.calls == [8, 8]


def test_a_judge_that_explains_itself_where_only_a_verdict_was_asked_for_is_told_of(tmp_path):
    """16 tokens are the protocol's; the explanation runs over them, and nothing is guessed."""
    judge = judge_saying(lambda _: "[[B]]\n\nThe second answer is more careful.")
    result = judged(make_benchmark(3), judge, tmp_path)
    assert result.null_reasons == {"reply_cut_off": 6}
    assert result.credit_P.tolist() == [0.5] * 3
    [cut_off] = [note for note in result.notes if "cut the reply off" in note]
    assert "6 of 6 verdicts are missing" in cut_off
    assert "--max-reply-tokens" in cut_off
    assert "--protocol explained" in cut_off
    assert "no verdict in 6 replies" in result.reliability
    assert "neither the score nor its interval says anything" in result.reliability
    enough = judged(make_benchmark(3), judge, tmp_path, max_reply_tokens=60)
    assert (enough.null_reasons, enough.summary.always) == ({}, "B")


def test_the_seed_changes_the_single_order_and_no_verdict(tmp_path):
    judge = judge_of_opinions(["A"] * 10)
    one, other = (judged(make_benchmark(10), judge, tmp_path, seed=seed) for seed in (0, 1))
    assert one.folder == other.folder
    assert judge.num_asked == 20
    assert set(one.single_order_credit_P.tolist()) == {0, 1}
    assert one.single_order_credit_P.tolist() != other.single_order_credit_P.tolist()


def test_another_judge_protocol_data_or_plan_is_another_judging(tmp_path):
    pairs, judge = make_benchmark(6), judge_of_opinions(["right"] * 6)
    other_judge = dataclasses.replace(judge, revision="2")
    folders = {
        judged(pairs, judge, tmp_path).folder,
        judged(pairs, other_judge, tmp_path).folder,
        judged(pairs, judge, tmp_path, protocol="explained").folder,
        judged(pairs, judge, tmp_path, max_reply_tokens=40).folder,
        judged(make_benchmark(5), judge, tmp_path).folder,
        judged(pairs, judge, tmp_path, shard_size=5).folder,
    }
    assert len(folders) == 6
    assert {folder.parent for folder in folders} == {tmp_path}


def test_a_judging_of_other_pairs_is_refused(tmp_path):
    pairs = make_benchmark(6)
    result = judged(pairs, judge_of_opinions(["right"] * 6), tmp_path)
    with pytest.raises(InputError, match="a judging of other pairs"):
        read_judged_pairs(result.folder, pairs=make_benchmark(5))
    with pytest.raises(InputError, match=f"no {MANIFEST_FILE} here"):
        read_judged_pairs(tmp_path, pairs=pairs)


def test_a_manifest_that_does_not_follow_from_its_key_is_refused(tmp_path):
    pairs = make_benchmark(4)
    path = judged(pairs, judge_of_opinions(["right"] * 4), tmp_path).folder / MANIFEST_FILE
    path.write_text(path.read_text().replace('"num_pairs": 4', '"num_pairs": 3'))
    with pytest.raises(EncoreError, match="its key is not the hash of its identity"):
        read_judged_pairs(path.parent, pairs=pairs)


def test_bad_requests_are_refused_before_anything_is_written(tmp_path):
    judge = judge_of_opinions(["right"])
    with pytest.raises(InputError, match="no pairs to judge"):
        judged(benchmark_of([]), judge, tmp_path)
    with pytest.raises(InputError, match="expected one of explained, verdict-only"):
        judged(make_benchmark(1), judge, tmp_path, protocol="chatty")
    judge.max_model_len = 2000
    with pytest.raises(InputError, match="replies of up to 2048 tokens leave no room"):
        judged(make_benchmark(1), judge, tmp_path, protocol="explained")
    assert list(tmp_path.iterdir()) == []


def test_progress_ends_at_all_replies_and_counts_what_was_there(tmp_path):
    pairs, judge, seen = make_benchmark(10), judge_of_opinions(["right"] * 10), []
    judged(pairs, judge, tmp_path, on_progress=lambda one: seen.append(one.num_done))
    assert seen == sorted(seen)
    assert seen[-1] == 20
    shard_path(next(tmp_path.iterdir()), 1).unlink()
    seen.clear()
    judged(pairs, judge, tmp_path, on_progress=lambda one: seen.append(one.num_done))
    assert (seen[0], seen[-1]) == (8, 20)


def test_the_files_have_the_schema_that_is_written_down(tmp_path):
    folder = judged(make_benchmark(2), judge_of_opinions(["right"] * 2), tmp_path).folder
    assert pq.read_schema(shard_path(folder, 0)).names == VERDICTS.names


def test_a_real_judge_without_verdicts_is_at_one_half_with_all_of_them_counted(tmp_path):
    """The tiny judge says 0.1 to 0.9 to anything: a real tokenizer, template and engine."""
    folder = make_tiny_judge(tmp_path / "tiny", max_model_len=4096)
    config = JudgeConfig(model=str(folder), backend="transformers")
    result = judged(make_benchmark(3), config, tmp_path / "judged")
    assert result.judge == "tiny"
    assert result.null_reasons == {"no_verdict": 6}
    assert (result.accuracy, result.consistency, result.num_unparsed) == (0.5, None, 6)
    assert {row["raw_reply"][:2] for row in rows_of(result.folder)} == {"0."}
