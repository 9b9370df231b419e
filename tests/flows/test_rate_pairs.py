"""The flow `rate-pairs`: the rated shards, failures, its final state and its artifacts."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, LogFilter, LogFilterTaskRunId
from prefect.client.schemas.objects import State, TaskRun

from encore.core.errors import StudyIncompleteError
from encore.data.rating_runs import list_runs, run_status
from encore.data.study import open_study
from encore.judges import open_judge
from encore.judges.base import Judge, ProgressHook
from encore.judges.vllm_engine import VllmJudge
from encore.rating import rating_run
from encore.rating.rating_options import RatingConfig, RatingRunOptions
from encore.runs import shard_files
from flows.rate_pairs import rate_pairs
from tasks.rate import ShardAttempts
from tests.flows.conftest import NUM_PAIRS, artifact, error_of
from tests.golden.command_line import encore
from tests.worlds.servers import wait_until

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("prefect_api")]

RatingOf = Callable[..., RatingConfig]

WRITE_ERROR = (
    "the disk was full while shard 1 was written; finished shards are kept; make room and run the "
    "same command again"
)


def run_flow(study: Path, rating: RatingConfig, *, retries: int = 2, **options: Any) -> State[Any]:
    how = RatingRunOptions(**options)
    attempts = ShardAttempts(shard_retries=retries)
    return rate_pairs(study, rating, how, attempts, return_state=True)


def tasks_of(state: State[Any]) -> dict[str, TaskRun]:
    """Return the task runs of a flow run by name, once all of them have ended."""
    return tasks_of_run(state.state_details.flow_run_id)


def tasks_of_run(flow_run_id: UUID | None) -> dict[str, TaskRun]:
    run_filter = FlowRunFilter.model_validate({"id": {"any_": [flow_run_id]}})
    deadline = time.monotonic() + 60
    with get_client(sync_client=True) as client:
        while True:  # the server stores the states of Prefect's own tasks a little later
            task_runs = client.read_task_runs(flow_run_filter=run_filter)
            has_stage = any(task.name.startswith("rate") for task in task_runs)
            is_over = has_stage and all(task.state.is_final() for task in task_runs)
            if is_over or time.monotonic() > deadline:
                break
            time.sleep(0.5)
    named = {task.name.partition("-")[0]: task for task in task_runs}
    return {name: task for name, task in named.items() if name.startswith(("rate", "shard"))}


def only_run(study: Path) -> Path:
    return list_runs(open_study(study).ratings_dir)[0]


def break_first_generation(monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]) -> None:
    """Call a fault at the first reply of the first generation of every opened judge."""

    def open_breaking_judge(*options: Any) -> Judge:
        judge = open_judge(*options)
        reply, first = judge.reply, threading.Lock()

        def breaking_reply(prompts: Any, *, on_progress: ProgressHook, **options: Any) -> Any:
            is_first = first.acquire(blocking=False)

            def report_progress(num_done: int) -> None:
                if is_first and num_done:
                    fault()
                on_progress(num_done)

            return reply(prompts, on_progress=report_progress, **options)

        judge.reply = breaking_reply
        return judge

    monkeypatch.setattr(rating_run, "open_judge", open_breaking_judge)


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


def test_only_the_named_shards_are_rated(study: Path, rating: RatingOf) -> None:
    state = run_flow(study, rating(), shard=(2, 0))

    assert state.message == "2 rated, 0 reused, 0 failed"
    states = [shard.state for shard in run_status(only_run(study)).shards]
    assert states == ["done", "missing", "done"]
    assert "1 of 3 shards are not done" in artifact("rule-statistics", study).description


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
    break_first_generation(monkeypatch, lambda: time.sleep(10.5))

    state = run_flow(study, rating("vllm"), retries=0, shard_timeout_seconds=10.0)

    error = error_of(state)
    assert isinstance(error, StudyIncompleteError)
    assert "2 rated, 0 reused, 1 failed" in str(error)
    assert num_starts == 2
    [failed] = [shard for shard in run_status(only_run(study)).shards if shard.state == "failed"]
    assert "passed its limit of 10 s" in failed.detail
    table = artifact("failed-shards", study)
    assert "passed its limit of 10 s" in table.data
    assert json.loads(table.data)[0]["how to rerun"].endswith(f'how={{"shard": [{failed.index}]}}')


def test_a_shard_that_fails_is_tried_again_and_without_retries_fails_alone(
    study: Path, rating: RatingOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_device() -> None:
        raise RuntimeError("the device fell off the bus")

    break_first_generation(monkeypatch, break_device)
    state = run_flow(study, rating(), retries=0)
    tasks = tasks_of(state)
    assert sorted(tasks) == ["rate", "shard 0", "shard 1", "shard 2"]
    assert tasks.pop("rate").state_name == "Failed"
    [red] = [task for task in tasks.values() if task.state_name != "Completed"]
    assert red.state_name == "Failed"
    error = "RuntimeError: the device fell off the bus"
    assert red.state.message == f"Task run encountered an exception {error}"
    log_filter = LogFilter(task_run_id=LogFilterTaskRunId(any_=[red.id]))
    with get_client(sync_client=True) as client:
        lines = wait_until(lambda: client.read_logs(log_filter), event="the log of the shard")
    assert any(error in line.message for line in lines)  # the page of a task run shows its log
    assert all(task.total_run_time.total_seconds() > 0 for task in tasks.values())

    assert "2 rated, 0 reused, 1 failed" in str(error_of(state))
    # Two of the three shards are rated: the progress is that of the end, although it was shown
    # less than ten seconds before.
    assert float(artifact("rating-progress", study).data) == pytest.approx(200 / 3)
    assert "RuntimeError: the device fell off the bus" in artifact("failed-shards", study).data
    assert [shard.state for shard in run_status(only_run(study)).shards].count("done") == 2
    again = run_flow(study, rating(), retries=1)  # another judge, the same fault
    assert again.message == "1 rated, 2 reused, 0 failed"
    [retried] = [task for name, task in tasks_of(again).items() if name.startswith("shard")]
    assert (retried.name, retried.state_name, retried.run_count) == (red.name, "Completed", 2)


def test_a_shard_that_cannot_be_written_is_red_and_so_is_the_stage(
    study: Path, rating: RatingOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = shard_files.publish

    def publish_on_a_full_disk(temporary: Path, path: Path) -> None:
        if path.name.startswith("shard-00001."):
            raise OSError(errno.ENOSPC, "No space left on device")
        publish(temporary, path)

    monkeypatch.setattr(shard_files, "publish", publish_on_a_full_disk)
    state = run_flow(study, rating())
    tasks = tasks_of(state)
    message = tasks["shard 1"].state.message

    assert tasks["shard 1"].state_name == tasks["rate"].state_name == "Failed"
    assert message.startswith("Task run encountered an exception EveryShardError: ")
    assert message.endswith(f"/{only_run(study).name}: {WRITE_ERROR}")
    assert tasks["shard 1"].run_count == 1  # another attempt would meet the same
    assert WRITE_ERROR in str(error_of(state))
    assert tasks["shard 0"].state_name == "Completed"


def test_finished_shards_stay_completed_where_the_run_failed_and_a_cancelled_one_is_cancelled(
    study: Path, rating: RatingOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect rolls back what was done within a task that fails: shards are in none."""
    num_calls = 0

    def stop_the_third() -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise KeyboardInterrupt

    def open_stopping_judge(*options: Any) -> Judge:
        judge = open_judge(*options)
        reply = judge.reply

        def stopping_reply(prompts: Any, **hooks: Any) -> Any:
            stop_the_third()
            return reply(prompts, **hooks)

        judge.reply = stopping_reply
        return judge

    monkeypatch.setattr(rating_run, "open_judge", open_stopping_judge)
    with pytest.raises(KeyboardInterrupt):
        run_flow(study, rating())
    with get_client(sync_client=True) as client:
        [run] = [
            run for run in client.read_flow_runs() if run.parameters.get("study") == str(study)
        ]
    tasks = tasks_of_run(run.id)
    states = {name: task.state_name for name, task in tasks.items()}
    shards = {"shard 0": "Completed", "shard 1": "Completed", "shard 2": "Cancelled"}
    assert states == {"rate": "Crashed", **shards}
    assert run_flow(study, rating()).message == "1 rated, 2 reused, 0 failed"
