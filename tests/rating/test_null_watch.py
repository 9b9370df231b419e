"""A run whose replies hold no ratings stops, and says what to change."""

from __future__ import annotations

import math
from itertools import count

import pytest

from encore.data.rating_runs import status
from encore.rating.null_watch import NoRatingsError, NullWatch
from encore.rating.reply_journal import ReplyJournal
from encore.runs.shard_files import journal_path
from encore.runs.worker import work_through
from tests.golden.command_line import encore
from tests.judges.hostile_server import KEY, HostileServer, serving
from tests.judges.test_http_judge import over
from tests.rating.test_reply_journal import opened
from tests.worlds.judges import ScriptedJudge, hashed_score
from tests.worlds.studies import numbered_pairs, study_of


@pytest.mark.parametrize(
    ("num_nulls", "num_ratings", "stops"),
    [(25, 25, False), (26, 24, True), (49, 0, False), (50, 0, True), (500, 500, False)],
)
def test_a_run_stops_above_half_nulls_of_50_replies(num_nulls, num_ratings, stops):
    watch = NullWatch(is_on=True)
    for _ in range(num_ratings):
        watch.count(None, "0.5")
    for number in range(num_nulls):
        watch.count("not_a_single_number", f"reply {number} " + "x" * 100)
    if not stops:
        watch.check()
        return
    with pytest.raises(NoRatingsError) as caught:
        watch.check()
    message = str(caught.value)
    assert f"{num_nulls} of {num_nulls + num_ratings} replies hold no rating" in message
    assert [f"reply {number} " in message for number in range(4)] == [True, True, True, False]
    assert "--strip-thinking" in message
    # An engine passes on 500 characters of an error.
    assert len(f"NoRatingsError: {message}") <= 500
    NullWatch(is_on=False, num_replies=1000, num_nulls_by_reason=watch.num_nulls_by_reason).check()


def test_refusals_and_failures_get_other_advice():
    watch = NullWatch(is_on=True)
    for reason in 20 * ["refused"] + 15 * ["server_error"] + 25 * ["not_a_single_number"]:
        watch.count(reason, "")
    with pytest.raises(
        NoRatingsError, match=r"25 not_a_single_number, 20 refused, 15 server_.*filters less"
    ):
        watch.check()


def test_labels_without_probability_are_shown_with_it_and_not_told_to_write_more(study):
    """The labels 0 to 9 have 10 times 0.7 %, also those of a pilot, which are counted first."""
    judge = ScriptedJudge(label_logprobs=(math.log(0.007),) * 10, is_on_cpu=True)
    work_through(opened(study, judge, decode="expected", limit=1).job())
    with pytest.raises(
        NoRatingsError, match=r"50 low_label_mass.*'0 \(7 % on the labels\)'"
    ) as caught:
        work_through(opened(study, judge, decode="expected").job())
    assert "--scale" in str(caught.value)
    assert "--max-reply-tokens" not in str(caught.value)


@pytest.mark.parametrize("is_remote", [False, True])
def test_replies_are_kept_when_a_run_without_ratings_stops(study, is_remote):
    judge = ScriptedJudge(lambda _: "no", is_remote=is_remote, is_on_cpu=True)
    run = opened(study, judge)
    with pytest.raises(NoRatingsError, match="50 of 50 replies"):
        work_through(run.job())
    assert judge.num_asked == 50
    path = journal_path(run.run_dir, 0)
    assert len(ReplyJournal.read(path, run_key=run.manifest.run_key).paid_replies) == 50
    with pytest.raises(NoRatingsError):  # and the same command asks nothing
        work_through(opened(study, judge).job())
    assert judge.num_asked == 50
    work_through(opened(study, judge, allow_nulls=True).job())
    assert len({*judge.asked}) == judge.num_asked


def test_few_nulls_do_not_stop_a_run(study):
    numbers = count()  # every third reply is null
    judge = ScriptedJudge(
        lambda prompt: hashed_score(prompt) if next(numbers) % 3 else "no", is_on_cpu=True
    )
    assert work_through(opened(study, judge).job()).count("rated") == 3


def test_a_run_without_the_thinking_has_ratings_and_tells_its_tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    study = study_of(numbered_pairs(3), tmp_path / "study")
    with serving(HostileServer(fault="thinking")) as server:
        stopped = encore("rate", study, *over(server), "--shard-size", 10)
        assert stopped.code == 1
        assert "--strip-thinking think" in stopped.error
        finished = encore("rate", study, *over(server), "--strip-thinking", "think")
    assert finished.code == 0, finished.err
    [run] = [run for run in status(study) if run.is_complete]
    assert (run.total("num_ratings"), run.total("num_nulls")) == (60, 0)
    # "<think>1/2</think>" is 18 of 22 characters, of 4 tokens in each of 60 replies.
    assert f"thinking took {round(240 * 18 / 22)} of 240 output tokens (estimated" in finished.err
