"""Journal of replies: nothing that a server answered is asked again, whatever ends the run."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.core.errors import EncoreError
from encore.data.rating_runs import run_status
from encore.data.study import Study
from encore.judges.base import SERVER_ERROR, UNREADABLE_ANSWER, Reply, Usage, prompt_digest
from encore.judges.judge_options import JudgeConfig
from encore.rating.prompts import Question
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import RatingResult, RatingRun, open_run
from encore.rating.reply_journal import ReplyJournal
from encore.runs.shard_files import journal_path
from encore.runs.worker import work_through
from tests.rating.conftest import NUM_PAIRS
from tests.worlds.judges import ScriptedJudge, hashed_score
from tests.worlds.studies import without_run_options

NUM_PROMPTS = NUM_PAIRS * 20
REPLIES = [
    Reply(text="0.7", is_complete=True, usage=Usage(100, 60, 4)),
    Reply(text="", is_complete=False, null_reason="content_filter"),
    Reply(text="3", is_complete=True, label_logprobs=(-0.25, float("-inf"))),
    Reply(text="\ud800 half a pair of surrogates", is_complete=True),
]
PROMPTS = ["a", "b", [1, 2, 3], "d"]


def written(path: Path, *, run_key: str = "run") -> ReplyJournal:
    journal = ReplyJournal.read(path, run_key=run_key)
    for prompt, reply in zip(PROMPTS, REPLIES, strict=True):
        journal.add(prompt, reply)
    journal.flush()
    return journal


def read(path: Path) -> ReplyJournal:
    return ReplyJournal.read(path, run_key="run")


def test_replies_are_read_back_as_they_were_with_their_tokens(tmp_path):
    written(tmp_path / "replies")
    journal = read(tmp_path / "replies")
    assert journal.earlier_replies_to([*PROMPTS, "e", None]) == dict(enumerate(REPLIES))
    assert [reply.usage for reply in journal.paid_replies] == [
        reply.usage for reply in REPLIES
    ]  # a reply compares without


def test_a_torn_last_line_is_dropped_and_does_not_spoil_the_next_one(tmp_path):
    path = tmp_path / "replies"
    written(path)
    whole = path.read_bytes()
    for num_bytes in (1, 40):
        path.write_bytes(whole[:-num_bytes])
        journal = read(path)
        assert journal.earlier_replies_to(PROMPTS) == dict(enumerate(REPLIES[:3]))
        journal.flush()
        assert path.read_bytes() == whole[:-num_bytes]  # nothing new, nothing written
        journal.add("d", REPLIES[3])
        journal.flush()
        assert read(path).earlier_replies_to(PROMPTS) == dict(enumerate(REPLIES))


def test_a_damaged_line_is_ignored_and_counted(tmp_path, caplog):
    path = tmp_path / "replies"
    written(path)
    path.write_bytes(path.read_bytes().replace(b'"0.7"', b'"0.3"'))  # still JSON
    assert read(path).earlier_replies_to(PROMPTS).keys() == {1, 2, 3}
    assert "1 damaged line ignored" in caplog.text


def test_a_prompt_that_is_answered_twice_has_its_first_reply_and_the_cost_of_both(tmp_path):
    path = tmp_path / "replies"
    journal = read(path)
    for text, num_tokens in (("0.1", 5), ("0.9", 7)):
        journal.add("a", Reply(text=text, is_complete=True, usage=Usage(output_tokens=num_tokens)))
    journal.flush()
    journal = read(path)
    replies = journal.earlier_replies_to(["a", "b", "a"])  # two places may have one prompt
    assert {position: reply.text for position, reply in replies.items()} == {0: "0.1", 2: "0.1"}
    assert [reply.usage.output_tokens for reply in journal.paid_replies] == [5, 7]


def test_a_prompt_that_failed_has_its_cost_in_the_journal_and_no_answer(tmp_path):
    path = tmp_path / "replies"
    journal = read(path)
    usage = Usage(prompt_tokens=40, output_tokens=9)
    failed = {"is_complete": False, "usage": usage, "num_calls": 3}
    journal.add("a", Reply(text="server", null_reason=SERVER_ERROR, **failed))
    journal.add("b", Reply(text="unreadable", null_reason=UNREADABLE_ANSWER, **failed))
    journal.flush()
    journal = read(path)
    assert journal.earlier_replies_to(["a", "b"]).keys() == {1}
    assert [(reply.usage, reply.num_calls) for reply in journal.paid_replies] == [(usage, 3)] * 2


def test_a_disk_that_takes_a_part_of_a_write_gets_the_rest(tmp_path, monkeypatch):
    written(tmp_path / "whole")
    monkeypatch.setattr(Path, "open", _open_on_a_slow_disk)
    written(tmp_path / "in-parts")
    monkeypatch.undo()
    assert (tmp_path / "in-parts").read_bytes() == (tmp_path / "whole").read_bytes()


class _SlowFile(io.FileIO):
    """File that takes at most seven bytes of a write."""

    def write(self, data: bytes) -> int:
        return super().write(data[:7])


def _open_on_a_slow_disk(path: Path, mode: str, buffering: int = -1) -> io.FileIO:
    assert buffering == 0 or mode == "rb", "a write is not buffered"
    return _SlowFile(path, mode)


def test_two_writers_share_a_journal(tmp_path):
    path = tmp_path / "replies"
    first, second = read(path), read(path)
    for number in range(50):
        for name, journal in (("first", first), ("second", second)):
            journal.add(f"{name} {number}", REPLIES[0])
            journal.flush()
    assert len(read(path).earlier_replies) == 100


@pytest.mark.parametrize("content", ["another run", "something else"])
def test_a_journal_of_another_run_or_form_is_refused_and_kept(study, content):
    run = opened(study, ScriptedJudge(is_remote=True))
    path = journal_path(run.run_dir, 1)
    path.parent.mkdir(parents=True)
    if content == "another run":
        written(path, run_key="0123")
    else:
        path.write_text('{"prompt": "What?", "reply": "0.7"}\n')
    before = path.read_bytes()
    report = work_through(run.job())
    assert report.summary == "2 rated, 0 reused, 1 failed"  # the other shards are not held up
    assert report.failures[1].startswith(f"InputError: {path}: ")
    assert "move " in report.failures[1]
    assert path.read_bytes() == before
    assert run.judge.num_asked == NUM_PROMPTS - 200
    path.unlink()
    assert work_through(run.job()).summary == "1 rated, 2 reused, 0 failed"


def opened(study: Study, judge: ScriptedJudge, **changes: object) -> RatingRun:
    options, how = without_run_options({"shard_size": 10, **changes})
    config = RatingConfig(judge=JudgeConfig(model="scripted"), **options)
    return open_run(study, config, how, judge=judge)


def rows_of(run: RatingRun) -> list[dict[str, object]]:
    return pa.concat_tables(map(pq.read_table, run_status(run.run_dir).paths)).to_pylist()


def breaking(error: BaseException, *, after: int) -> ScriptedJudge:
    """Return a judge whose script raises an error once, after some replies."""

    def script(prompt: str) -> str:
        if judge.num_asked == after and errors:
            raise errors.pop()
        return hashed_score(prompt)

    errors = [error]
    judge = ScriptedJudge(script, is_remote=True, is_on_cpu=True)
    return judge


@pytest.mark.parametrize("error", [EncoreError("quota spent"), KeyboardInterrupt()])
def test_a_call_that_ends_in_the_middle_of_a_shard_wastes_no_reply(study, error, caplog):
    caplog.set_level(logging.WARNING)
    judge = breaking(error, after=270)  # 70 replies of the second shard of 200
    run = opened(study, judge)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt) as caught:
            work_through(run.job())
        kept = "1 of 3 shards and 70 replies of an unfinished shard are kept"
        assert caught.value.__notes__ == [kept]
    else:
        assert work_through(run.job()).summary == "2 rated, 0 reused, 1 failed"
    assert (
        len(
            ReplyJournal.read(
                journal_path(run.run_dir, 1), run_key=run.manifest.run_key
            ).earlier_replies
        )
        == 70
    )
    num_before = judge.num_asked
    run = opened(study, judge)
    report = work_through(run.job())
    assert len({*judge.asked}) == judge.num_asked == NUM_PROMPTS  # none twice
    assert not [*run.run_dir.glob("replies-*")]
    # The call took what was left; the shards record what they cost in all calls together.
    assert report.computed("num_kept") == 70
    plan = RatingResult(run=run, report=report).plan
    assert plan["num_calls"]["actual"] == NUM_PROMPTS - num_before
    assert plan["num_calls"]["planned"] == NUM_PROMPTS - num_before
    assert report.total("num_calls") == NUM_PROMPTS
    assert report.total("prompt_tokens") == sum(len(prompt.encode()) + 4 for prompt in judge.asked)
    rows = rows_of(run)
    for path in run.run_dir.iterdir():
        if path.is_file():
            path.unlink()
    work_through(opened(study, ScriptedJudge(is_remote=True)).job())
    assert rows_of(run) == rows


def test_a_text_that_no_file_can_hold_does_not_stop_its_shard(study):
    run = opened(study, ScriptedJudge(is_remote=True))
    [prompt, *_] = [prompt for prompt, _ in run.rater.prompts.make(first_questions(run))]
    # The text as it came, which a version wrote that did not mend texts.
    reply = Reply(text="", is_complete=True)
    object.__setattr__(reply, "text", "0.31 \ud83d")
    path = journal_path(run.run_dir, 0)
    path.parent.mkdir(parents=True)
    journal = ReplyJournal.read(path, run_key=run.manifest.run_key)
    journal.add(prompt, reply)
    journal.flush()
    assert work_through(run.job()).summary == "3 rated, 0 reused, 0 failed"
    texts = {row["raw_reply"]: row["null_reason"] for row in rows_of(run)}
    assert texts["0.31 \ufffd"] == "not_a_single_number"


def first_questions(run: RatingRun) -> list[Question]:
    """Return the questions of the plan's first pair."""
    return run.rater.prompts.questions(run.pairs.slice(0, 1))


def test_replies_of_a_judge_on_this_machine_are_kept_too(study):
    judge = ScriptedJudge(lambda prompt: str(1 / (300 - judge.num_asked)), is_on_cpu=True)
    run = opened(study, judge, allow_nulls=True)
    assert work_through(run.job()).failures
    judge.script = hashed_score
    assert not work_through(opened(study, judge, allow_nulls=True).job()).failures
    assert len({*judge.asked}) == judge.num_asked  # the kept replies were not asked again
    assert not [*run.run_dir.glob("replies-*")]


def test_a_prompt_has_one_digest_however_its_token_ids_are_held():
    assert prompt_digest([1, 2]) == prompt_digest((1, 2)) != prompt_digest([12])
