"""The flow `rate-pairs`: what is rated, what fails, what its final state and artifacts say."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prefect.client.schemas.objects import State

from encore.core.errors import InputError, JudgeUnavailableError, StudyIncompleteError
from encore.data.rating_runs import choose_run, run_status
from encore.data.study import open_study
from encore.judges import open_judge
from encore.judges.base import Judge, ProgressHook
from encore.judges.judge_config import JudgeConfig
from encore.judges.vllm_engine import VllmJudge
from encore.rating import rating_run
from encore.rating.rating_config import RateConfig, RatingConfig
from flows.rate_pairs import rate_pairs
from tasks.rate import ShardAttempts
from tests.flows.conftest import NUM_PAIRS, artifact, error_of
from tests.golden.command_line import encore

pytestmark = pytest.mark.usefixtures("prefect_api")

RatingOf = Callable[..., RatingConfig]


def run_flow(study: Path, rating: RatingConfig, *, retries: int = 2, **options: Any) -> State[Any]:
    config = RateConfig(study=study, **dict(rating), **options)
    attempts = ShardAttempts(shard_retries=retries)
    return rate_pairs(config, attempts, return_state=True)


def only_run(study: Path) -> Path:
    return choose_run(open_study(study).ratings_dir)


def give_judge(monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]) -> None:
    """Let every opened judge meet a fault at the first reply of its first generation."""

    def opened(config: JudgeConfig) -> Judge:
        judge = open_judge(config)
        reply, first = judge.reply, threading.Lock()

        def reply_once_wrong(prompts: Any, *, on_progress: ProgressHook, **options: Any) -> Any:
            is_first = first.acquire(blocking=False)

            def hook(num_done: int) -> None:
                if is_first and num_done:
                    fault()
                on_progress(num_done)

            return reply(prompts, on_progress=hook, **options)

        judge.reply = reply_once_wrong
        return judge

    monkeypatch.setattr(rating_run, "open_judge", opened)


def breaks_with(error: Exception) -> Callable[[], None]:
    def fault() -> None:
        raise error

    return fault


def test_all_shards_are_rated_as_by_the_command_and_the_final_state_counts_them(
    study: Path, tmp_path: Path, tiny_judge: Path, rating: RatingOf
) -> None:
    by_cli = shutil.copytree(study, tmp_path / "by-cli")
    state = run_flow(study, rating())

    assert state.is_completed()
    assert state.message == "3 rated, 0 reused, 0 failed"
    status = run_status(only_run(study))
    assert status.is_complete
    # Every pair has two responses, each rated under ten rules, or null.
    counted = status.total("num_ratings") + status.total("num_nulls")
    assert counted == NUM_PAIRS * 2 * 10
    assert float(artifact("rating-progress", study).data) == 100.0
    assert "none" in artifact("failed-shards", study).data
    rows = artifact("rule-statistics", study).data
    for column in ("entropy (nats)", "levels", "half", "untied", "ties", "coverage"):
        assert column in rows
    assert run_flow(study, rating()).message == "0 rated, 3 reused, 0 failed"

    options = ("--backend", "transformers", "--shard-size", 2, "--max-reply-tokens", 8)
    assert encore("rate", by_cli, "--judge", tiny_judge, *options).code == 0
    ours, theirs = (
        [pq.read_table(path) for path in sorted(only_run(folder).glob("shard-*.parquet"))]
        for folder in (study, by_cli)
    )
    assert ours == theirs  # replies, reasons, judge and run key too: it is the same run


def test_only_named_shards_are_looked_at(study: Path, rating: RatingOf) -> None:
    state = run_flow(study, rating(), shard=(2, 0))

    assert state.message == "2 rated, 0 reused, 0 failed"
    states = [shard.state for shard in run_status(only_run(study)).shards]
    assert states == ["done", "missing", "done"]
    assert "1 of 3 shards are not done" in artifact("rule-statistics", study).description
    error = run_flow(study, rating(), shard=(3,)).result(raise_on_failure=False)
    assert isinstance(error, InputError)
    assert "shard 3" in str(error)


@pytest.mark.services
def test_a_shard_whose_generation_times_out_fails_alone(
    study: Path, rating: RatingOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real engine: it is discarded in mid-generation and the next shards get a new one."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    num_starts = 0
    start_engine = VllmJudge._load

    def counted(judge: VllmJudge) -> Any:
        nonlocal num_starts
        num_starts += 1
        return start_engine(judge)

    monkeypatch.setattr(VllmJudge, "_load", counted)
    give_judge(monkeypatch, lambda: time.sleep(10.5))

    state = run_flow(study, rating("vllm", shard_timeout_seconds=10.0), retries=0)

    assert "2 rated, 0 reused, 1 failed" in str(error_of(state))
    assert num_starts == 2
    assert isinstance(state.result(raise_on_failure=False), StudyIncompleteError)
    [failed] = [shard for shard in run_status(only_run(study)).shards if shard.state == "failed"]
    assert "passed its limit of 10 s" in failed.detail
    table = artifact("failed-shards", study)
    assert "passed its limit of 10 s" in table.data
    assert f"shard=[{failed.index}]" in table.data


def test_a_shard_that_fails_is_tried_again_and_without_retries_fails_alone(
    study: Path, rating: RatingOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_judge(monkeypatch, breaks_with(RuntimeError("the device fell off the bus")))

    state = run_flow(study, rating(), retries=0)

    assert "2 rated, 0 reused, 1 failed" in str(error_of(state))
    assert "RuntimeError: the device fell off the bus" in artifact("failed-shards", study).data
    assert [shard.state for shard in run_status(only_run(study)).shards].count("done") == 2
    again = run_flow(study, rating(), retries=1)  # another judge, the same fault
    assert again.message == "1 rated, 2 reused, 0 failed"


@pytest.mark.parametrize(
    "error",
    [
        JudgeUnavailableError("judge 'x': vLLM could not start its engine"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
    ids=["no engine", "full disk"],
)
def test_an_error_that_every_shard_would_meet_is_met_once_and_not_retried(
    study: Path, rating: RatingOf, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    give_judge(monkeypatch, breaks_with(error))

    # With retries, or another generation, the fault would be gone: it strikes only once.
    state = run_flow(study, rating(shard_size=1), retries=2)

    assert state.is_failed()
    assert run_status(only_run(study)).count("done") == 0
    assert str(error) in str(state.result(raise_on_failure=False))
