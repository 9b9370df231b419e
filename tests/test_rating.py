"""Rating: every rating lands in its row, work done is kept, and what is missing is counted."""

from __future__ import annotations

import errno
import gzip
import json
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore import shards
from encore.config import JudgeConfig, RatingConfig
from encore.data.ingestion import ingest
from encore.data.pairs import data_digest, data_digest_of, read_pairs, records_of
from encore.data.rules import load_rule_set
from encore.data.study import Study, open_study
from encore.errors import (
    GenerationInterruptedError,
    InputError,
    JudgeUnavailableError,
)
from encore.prompts import render_conversation, render_rating_prompt
from encore.rating import RatingRun, open_run, rate_shard
from encore.rating_driver import rate_run
from tests.scripted_judge import ScriptedJudge, hashed_score

NUM_PAIRS = 25


def write_source(folder: Path, *, num_pairs: int = NUM_PAIRS, length: int = 1) -> Path:
    path = folder / "pairs.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for index in range(num_pairs):
            record = {
                "prompt": f"Question {index}? " + "please " * length,
                "chosen": f"Answer {index}.",
                "rejected": f"No {index}.",
            }
            file.write(json.dumps(record) + "\n")
    return path


@pytest.fixture
def study(tmp_path: Path) -> Study:
    ingest([f"mine={write_source(tmp_path)}"], out=tmp_path / "study")
    return open_study(tmp_path / "study")


def config(**changes: object) -> RatingConfig:
    return RatingConfig(judge=JudgeConfig(model="scripted"), **{"shard_size": 10, **changes})


def opened(study: Study, judge: ScriptedJudge, **changes: object) -> RatingRun:
    return open_run(study, config(**changes), judge=judge)


def ratings(run: RatingRun) -> pa.Table:
    files = shards.validated_shards(shards.run_status(run.run_dir))
    return pa.concat_tables([pq.read_table(path) for path in files])


def rating_of(prompt: str) -> str:
    """What the scripted judge says to a rating prompt as the chat template frames it."""
    return hashed_score(f"{prompt}")


def test_every_rating_belongs_to_its_pair_response_and_rule(study):
    judge = ScriptedJudge()
    run = opened(study, judge)
    rate_run(run)
    pairs = {pair.pair_id: pair for pair in records_of(read_pairs(study))}
    rules = {rule.rule_id: rule for rule in load_rule_set("encore-10").rules}
    rows = ratings(run).to_pylist()
    assert len(rows) == NUM_PAIRS * 2 * 10
    for row in rows:
        pair = pairs[row["pair_id"]]
        prompt = render_rating_prompt(
            render_conversation(pair.prompt, pair.response_text(row["response"])),
            rating_rule=rules[row["rule_id"]].rating_rule,
        )
        assert row["raw_reply"] == rating_of(prompt)
        assert row["rating"] == float(row["raw_reply"])
        assert row["source"] == "mine"
        assert row["run_key"] == run.manifest.run_key


def test_ratings_and_nulls_add_up_and_every_null_has_a_reason(study):
    replies = {0: "0.5", 1: "", 2: "8/10", 3: "-1", 4: "0.8 since it is polite and kind"}
    judge = ScriptedJudge(script=lambda prompt: replies[len(prompt) % 5])
    run = opened(study, judge)
    report = rate_run(run)
    table = ratings(run)
    assert table.num_rows == NUM_PAIRS * 2 * 10
    nulls = [row for row in table.to_pylist() if row["rating"] is None]
    assert nulls
    assert all(row["null_reason"] for row in nulls)
    assert sum(report.null_reasons.values()) == len(nulls)
    assert set(report.null_reasons) <= {
        "empty_reply",
        "not_a_single_number",
        "out_of_range",
        "reply_cut_off",
    }
    rated = [row for row in table.to_pylist() if row["rating"] is not None]
    assert {row["rating"] for row in rated} == {0.5}
    assert all(row["null_reason"] is None for row in rated)


def test_a_reply_that_the_token_limit_cuts_is_null_even_if_it_begins_with_a_number(study):
    judge = ScriptedJudge(script=lambda _: "0.75 and then some more")
    run = opened(study, judge, max_reply_tokens=4)  # 4 tokens: exactly "0.75"
    assert rate_run(run).null_reasons == {"reply_cut_off": NUM_PAIRS * 20}


def test_a_second_call_reuses_every_shard_and_asks_nothing(study):
    judge = ScriptedJudge()
    first = rate_run(opened(study, judge))
    asked = judge.num_asked
    second = rate_run(opened(study, judge))
    assert (first.summary, second.summary) == (
        "3 rated, 0 reused, 0 failed",
        "0 rated, 3 reused, 0 failed",
    )
    assert judge.num_asked == asked == NUM_PAIRS * 20


def test_exactly_the_deleted_and_the_cut_shard_are_rated_again(study):
    judge = ScriptedJudge()
    run = opened(study, judge)
    rate_run(run)
    before = ratings(run)
    shards.shard_path(run.run_dir, 0).unlink()
    cut = shards.shard_path(run.run_dir, 2)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    kept = shards.shard_path(run.run_dir, 1).stat().st_mtime_ns
    again = rate_run(opened(study, judge))
    actions = {outcome.index: outcome.action for outcome in again.outcomes}
    assert actions == {0: "rated", 1: "reused", 2: "rated"}
    assert shards.shard_path(run.run_dir, 1).stat().st_mtime_ns == kept
    assert ratings(run).equals(before)


def test_a_shard_that_times_out_fails_and_the_next_ones_complete(study):
    slow = render_conversation(*_first_conversation(study))

    def script(prompt: str) -> str:
        if slow in prompt:
            time.sleep(0.3)
        return hashed_score(prompt)

    run = opened(study, ScriptedJudge(script=script))
    report = rate_run(run, shard_timeout_seconds=0.2)
    assert report.summary == "2 rated, 0 reused, 1 failed"
    state = shards.run_status(run.run_dir).shards[0]
    assert state.state == "failed"
    assert "passed its limit of 0.2 s" in state.detail
    mended = rate_run(opened(study, ScriptedJudge()), shard_timeout_seconds=30)
    assert mended.summary == "1 rated, 2 reused, 0 failed"
    assert not shards.failure_path(run.run_dir, 0).exists()


def _first_conversation(study: Study):
    first = min(records_of(read_pairs(study)), key=lambda pair: pair.pair_id)
    return first.prompt, first.chosen


def test_only_the_named_shards_are_rated(study):
    run = opened(study, ScriptedJudge())
    assert rate_run(run, only=[2]).summary == "1 rated, 0 reused, 0 failed"
    assert [shard.state for shard in shards.run_status(run.run_dir).shards] == [
        "missing",
        "missing",
        "done",
    ]
    with pytest.raises(InputError, match=r"shard 3: run .* has shards 0 to 2"):
        rate_run(run, only=[3])


def test_two_workers_on_one_study_rate_each_shard_once(study):
    judges = [
        ScriptedJudge(script=lambda prompt: (time.sleep(0.0005), hashed_score(prompt))[1])
        for _ in range(2)
    ]
    runs = [opened(study, judge, shard_size=5) for judge in judges]
    reports = []
    threads = [
        threading.Thread(target=lambda run=run: reports.append(rate_run(run))) for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(judge.num_asked for judge in judges) == NUM_PAIRS * 20
    assert sum(report.count("rated") for report in reports) == 5
    assert all(report.count("rated") + report.count("reused") == 5 for report in reports)
    assert shards.run_status(runs[0].run_dir).is_complete


def test_an_error_that_every_shard_would_meet_stops_the_run(study):
    def no_space(_: str) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    judge = ScriptedJudge(script=no_space)
    with pytest.raises(OSError, match="No space"):
        rate_run(opened(study, judge, shard_size=1))
    assert len(judge.calls) <= 4  # of 25 shards

    def no_engine(_: str) -> str:
        raise JudgeUnavailableError("no engine")

    with pytest.raises(JudgeUnavailableError, match="no engine"):
        rate_run(opened(study, ScriptedJudge(script=no_engine), shard_size=1))


def test_an_interrupt_keeps_what_is_written_and_records_no_failure(study):
    judge = ScriptedJudge()
    run = opened(study, judge)

    def interrupt(_outcome) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rate_run(run, on_outcome=interrupt)
    states = {shard.state for shard in shards.run_status(run.run_dir).shards}
    assert "done" in states
    assert "failed" not in states
    assert not list(run.run_dir.glob(".*tmp*"))
    assert rate_run(opened(study, judge)).failures == {}


def test_a_cancelled_run_interrupts_the_shard_at_work(study):
    run = opened(study, ScriptedJudge())
    run.cancelled.set()
    with pytest.raises(GenerationInterruptedError, match="cancelled"):
        rate_shard(run, run.manifest.shards[0])
    assert shards.run_status(run.run_dir).shards[0].state == "missing"


@pytest.mark.parametrize(
    ("changes", "judge"),
    [
        ({"rules": "encore-20"}, ScriptedJudge()),
        ({"shard_size": 9}, ScriptedJudge()),
        ({"limit": 5}, ScriptedJudge()),
        ({"overlong": "truncate-left"}, ScriptedJudge()),
        ({"max_reply_tokens": 17}, ScriptedJudge()),
        ({}, ScriptedJudge(name="other")),
        ({}, ScriptedJudge(revision="2")),
        ({}, ScriptedJudge(max_model_len=99_999)),
    ],
)
def test_any_change_makes_a_new_run_beside_the_old_one(study, changes, judge):
    old = opened(study, ScriptedJudge())
    new = opened(study, judge, **changes)
    assert old.manifest.run_key != new.manifest.run_key
    for run in (old, new):
        rate_run(run, only=[0])
    assert len(shards.list_runs(study.ratings_dir)) == 2


def test_the_same_run_has_the_same_key_wherever_the_study_lies(tmp_path):
    keys = set()
    for place in ("one", "two/deeper"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        ingest([f"mine={write_source(folder)}"], out=folder / "study")
        keys.add(opened(open_study(folder / "study"), ScriptedJudge()).manifest.run_key)
    assert len(keys) == 1


def test_a_pilot_rates_the_first_pairs_by_content_hash(study):
    run = opened(study, ScriptedJudge(), limit=7, shard_size=5)
    rate_run(run)
    all_ids = sorted(pair.pair_id for pair in records_of(read_pairs(study)))
    assert sorted(set(ratings(run)["pair_id"].to_pylist())) == all_ids[:7]


def test_an_overlong_prompt_keeps_a_null_row_and_is_never_asked(tmp_path):
    ingest([f"mine={write_source(tmp_path, num_pairs=3)}"], out=tmp_path / "study")
    study = open_study(tmp_path / "study")
    run = opened(study, ScriptedJudge(max_model_len=200))  # shorter than the template alone
    report = rate_run(run)
    assert report.null_reasons == {"prompt_too_long": 60}
    assert set(ratings(run)["raw_reply"].to_pylist()) == {None}


def test_truncation_cuts_the_oldest_text_and_is_counted(tmp_path):
    ingest([f"mine={write_source(tmp_path, num_pairs=3, length=100)}"], out=tmp_path / "study")
    study = open_study(tmp_path / "study")
    seen: list[str] = []
    judge = ScriptedJudge(script=lambda prompt: (seen.append(prompt), "0.5")[1], max_model_len=1300)
    run = opened(study, judge, overlong="truncate-left")
    report = rate_run(run)
    assert sum(outcome.num_truncated for outcome in report.outcomes) == 60
    assert report.null_reasons == {}
    for prompt in seen:
        assert len(prompt.encode()) + 4 <= 1300 - 16  # four special tokens frame the message
        assert "Question" not in prompt
        assert prompt.startswith("You are a helpful assistant.")
        assert prompt.endswith("Score:")
        assert "Assistant: " in prompt
    assert min(ratings(run)["num_truncated_tokens"].to_pylist()) > 0


def test_opening_a_run_writes_nothing_before_its_first_shard(study):
    run = opened(study, ScriptedJudge())
    assert not run.run_dir.exists()
    rate_run(run, only=[0])
    assert shards.list_runs(study.ratings_dir) == (run.run_dir,)


def test_pairs_replaced_while_the_judge_opens_are_another_run(study, tmp_path):
    """The key is that of the pairs that are rated, not of whatever lies there a minute later."""
    before = opened(study, ScriptedJudge()).manifest.run_key
    other = tmp_path / "other"
    other.mkdir()

    class ReplacesPairs(ScriptedJudge):
        @property
        def identity(self):
            source = write_source(other, num_pairs=NUM_PAIRS, length=2)
            ingest([f"mine={source}"], out=study.path, replace=True)
            return super().identity

    assert opened(study, ReplacesPairs()).manifest.run_key == before
    assert opened(study, ScriptedJudge()).manifest.run_key != before


def test_the_data_digest_of_a_table_is_that_of_its_study(study):
    assert data_digest_of(read_pairs(study)) == data_digest(study)


def test_a_context_without_room_for_a_prompt_is_refused(study):
    with pytest.raises(InputError, match="leaves no room"):
        opened(study, ScriptedJudge(max_model_len=16))


def test_a_complete_run_is_reused_where_nothing_may_be_written(study):
    judge = ScriptedJudge()
    rate_run(opened(study, judge))
    run = opened(study, judge)
    shutil.rmtree(run.run_dir / "locks")  # making one would need to write
    assert rate_run(run).summary == "0 rated, 3 reused, 0 failed"
    assert not (run.run_dir / "locks").exists()


def test_a_full_disk_while_writing_is_recorded_as_that_shards_failure(study, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    run = opened(study, ScriptedJudge())
    monkeypatch.setattr(shards, "write_shard", full)
    with pytest.raises(OSError, match="No space"):
        rate_run(run, only=[1])
    assert "No space" in shards.run_status(run.run_dir).shards[1].detail


def test_a_study_without_pairs_says_what_to_do(tmp_path):
    from encore.data.study import create_study

    with pytest.raises(InputError, match="encore ingest"):
        opened(create_study(tmp_path / "empty"), ScriptedJudge())
