"""A run with several engines: what a killed driver, a second driver and their clocks do to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from encore.core.errors import InputError
from encore.data.rating_runs import list_runs, run_status
from encore.judges.judge_options import JudgeConfig
from encore.rating import shard_rating
from encore.rating.rating_options import EngineOptions
from encore.rating.rating_run import open_rating_judge
from encore.runs.worker import work_through
from tests.judges.standin_vllm import Standin
from tests.rating.conftest import NUM_PAIRS
from tests.rating.served_driver import rate_with_standins
from tests.rating.test_rating_run import opened
from tests.worlds.judges import ScriptedJudge
from tests.worlds.servers import wait_until
from tests.worlds.tiny_judge import make_tiny_judge

pytestmark = pytest.mark.timeout(400)

NUM_PROMPTS = NUM_PAIRS * 20
_SECONDS = 150


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_judge(tmp_path_factory.mktemp("judges") / "tiny", max_model_len=2048)


@pytest.fixture
def standin(tmp_path: Path) -> Standin:
    return Standin(tmp_path / "standin")


def driver(
    study: Path, judge: Path, standin: Standin, *, num_servers: int
) -> subprocess.Popen[Any]:
    command = [sys.executable, "-m", "tests.rating.served_driver"]
    return subprocess.Popen(
        [*command, str(study), str(judge), str(standin.folder), str(num_servers)]
    )


def num_asked(standin: Standin) -> int:
    """Return the number of prompts that servers answered, repeated ones included."""
    return len(standin.lines("prompts"))


def check_complete(study: Path) -> None:
    """Check that the study's one run has each rating once."""
    [run_dir] = list_runs(study / "ratings")
    status = run_status(run_dir)
    assert status.is_complete
    assert len([*run_dir.glob("shard-*.parquet")]) == NUM_PAIRS // 5
    rows = [row for path in status.paths for row in pq.read_table(path).to_pylist()]
    keys = {(row["pair_id"], row["response"], row["rule_id"]) for row in rows}
    assert len(keys) == len(rows) == NUM_PROMPTS
    assert not [*run_dir.glob("replies-*")]


@pytest.mark.services
def test_a_killed_driver_loses_no_reply_and_the_same_command_goes_on(study, judge, standin):
    """A prompt is asked twice only if its request was under way when the driver was killed.

    Half of the requests are still under way then, so no shard is done.
    """
    standin.order(seconds=0.1, seconds_of_even=600)
    process = driver(study.path, judge, standin, num_servers=2)
    try:
        wait_until(
            lambda: any(study.path.glob("ratings/*/replies-*")), seconds=_SECONDS, event="replies"
        )
    finally:
        process.kill()
        process.wait()
    wait_until(
        lambda: not any(map(psutil.pid_exists, standin.pids)), seconds=_SECONDS, event="the end"
    )
    before = num_asked(standin)
    standin.order()
    kept = sum(
        len(path.read_bytes().splitlines()) for path in study.path.glob("ratings/*/replies-*")
    )
    assert kept
    assert not [*study.path.glob("ratings/*/shard-*")]
    result = rate_with_standins(study.path, judge, standin.folder)
    assert not result.report.failures
    assert result.report.computed("num_kept") == kept
    assert num_asked(standin) - before == NUM_PROMPTS - kept
    check_complete(study.path)


@pytest.mark.services
def test_two_drivers_share_a_run_by_its_locks(study, judge, standin):
    standin.order(seconds=0.1)
    drivers = [driver(study.path, judge, standin, num_servers=1) for _ in range(2)]
    assert [process.wait(_SECONDS) for process in drivers] == [0, 0]
    assert num_asked(standin) == NUM_PROMPTS
    check_complete(study.path)


@pytest.mark.parametrize(("num_engines", "engine_seconds"), [(1, 8.0), (2, 4.0)])
def test_engine_seconds_are_those_of_the_engines(study, monkeypatch, num_engines, engine_seconds):
    """Two engines have four shards at work: each shard takes half of one engine's time."""
    monkeypatch.setattr(shard_rating._ProgressWatch, "seconds", 8.0)
    report = work_through(opened(study, ScriptedJudge(num_engines=num_engines)).job())
    assert {state.footer["engine_seconds"] for state in report.outcomes} == {engine_seconds}


@pytest.mark.parametrize(
    ("engines", "backend", "message"),
    [
        (2, "transformers", "--engines 2: engines are vLLM servers, .* share the run by --slice"),
        ("auto", "http", "--engines auto: engines are vLLM servers, .* several servers to --base"),
    ],
)
def test_engines_that_no_judge_can_have_are_refused(engines, backend, message):
    judge = JudgeConfig(model="judge", backend=backend)
    url = "http://127.0.0.1:1/v1" if backend == "http" else None
    with pytest.raises(InputError, match=message):
        open_rating_judge(judge, EngineOptions(engines=engines, base_url=url))


@pytest.mark.parametrize("engines", [0, 1025])
def test_a_number_of_engines_out_of_bounds_is_refused(engines):
    with pytest.raises(ValueError, match="expected a whole number from 1 to 1024, or auto"):
        EngineOptions(engines=engines)


@pytest.mark.services
def test_one_engine_starts_nothing_and_imports_no_client():
    code = (
        "import sys; from encore.rating.rating_run import open_rating_judge; "
        "from encore.rating.rating_options import EngineOptions; "
        "from encore.judges.judge_options import JudgeConfig; "
        "judge = open_rating_judge(JudgeConfig(model='encore/demo/judge'), EngineOptions()); "
        "print(type(judge).__name__, sorted({'openai', 'encore.judges.served_judge', "
        "'encore.judges.vllm_servers', 'encore.judges.http_judge'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert result.stdout == "VllmJudge []\n"
