"""Drivers, workers, judges and a Prefect server that are killed: the ratings and the pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encore.data.rating_runs import list_runs, run_status
from encore.data.study import open_study
from tests.distributed.farm import (
    Farm,
    check_ratings,
    make_study,
    running_farm,
    shard_names,
    wait_until,
)
from tests.distributed.orders import ALWAYS
from tests.judges.standin_vllm import Standin

pytestmark = pytest.mark.services
NUM_PAIRS = 12
_SECONDS = 200


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("faults") / "farm"
    with running_farm(folder, num_engines=2, client_retries=2) as farm:
        yield farm


@pytest.fixture
def farm(running: Farm) -> Farm:
    """Return the module's server and workers, with no orders and an empty log."""
    running.control.forget()
    running.control.order(seconds=0.5, fails={})
    return running


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path, num_pairs=NUM_PAIRS)


def rate_while_the_server_is_away(
    farm: Farm, folder: Path, *, num_shards: int, seconds: float, away_seconds: float
) -> None:
    """Kill the Prefect server amid a run of which two shards fail, then retry the run.

    One of the two fails once. Each shard must be shown as it ended, and a retry rates one.
    """
    study = make_study(folder, num_pairs=num_shards)
    names = shard_names(study)
    farm.control.order(seconds=seconds, fails={names[5]: 1, names[7]: ALWAYS})
    run = farm.start_run(study=str(study))
    farm.wait_for_rated(3, seconds=180)
    farm.stop_server(is_killed=True)
    num_rated = len(farm.rated())
    time.sleep(away_seconds)
    assert len(farm.rated()) > num_rated, farm.tails()  # the run went on
    farm.start_server()
    ended_run = farm.wait_for(run, seconds=400)

    assert ended_run["state_type"] == "FAILED", farm.tails()
    assert "1 failed: shards 7;" in ended_run["state"]["message"]
    assert f"pair {names[7]}: the device fell off the bus" in str(farm.api.artifacts(run))
    ends = {f"shard {index}": "Completed" for index in range(num_shards)}
    farm.wait_for_shards(run, ends | {"shard 7": "Failed"})
    log = farm.logs()["coordinator"]
    assert log.count("Unable to connect to") <= 2 + away_seconds / 120
    assert "EventsWorker' failed to process" not in log

    farm.control.order(fails={})
    before = len(farm.rated())
    farm.retry(run)
    assert farm.wait_for(run, seconds=300)["state_type"] == "COMPLETED", farm.tails()
    assert farm.rated()[before:] == [names[7]]
    farm.wait_for_shards(run, ends)
    check_ratings(study, farm.control)


def test_a_run_goes_on_without_the_server_and_its_shards_are_shown_afterwards(
    farm: Farm, tmp_path: Path
) -> None:
    # Two retries of Prefect's client take 6 s, so none of its own calls outlasts the outage.
    rate_while_the_server_is_away(farm, tmp_path, num_shards=24, seconds=1.0, away_seconds=20)


@pytest.mark.full  # below a driver is killed too, whose judges are servers
def test_a_killed_driver_is_crashed_and_its_retry_goes_on(farm: Farm, study: Path) -> None:
    farm.control.order(seconds=2.0)
    run = farm.start_run(study=str(study))
    farm.wait_for_rated(2)
    farm.workers["coordinator"].kill(with_worker=False)
    assert farm.wait_for(run, seconds=_SECONDS)["state_type"] == "CRASHED"
    farm.retry(run)
    assert farm.wait_for(run, seconds=_SECONDS)["state_type"] == "COMPLETED", farm.tails()
    check_ratings(study, farm.control)


def test_runs_share_servers_of_the_pool_of_which_one_is_killed_and_the_driver_too(
    farm: Farm, study: Path, tmp_path: Path, tiny_judge: Path
) -> None:
    def start(**changes: Any) -> str:
        judge = {"model": str(tiny_judge), "backend": "vllm"}
        keep = {"servers": {"keep_minutes": 2}}  # longer than a retry takes on a busy machine
        config = {"study": str(study), "judge": judge, "engines": 2, "shard_size": 1} | changes
        return farm.start_run(parameters=keep, **config)

    def num_asked() -> int:
        return len(standin.lines("prompts"))

    standin = Standin(farm.control.folder)
    farm.control.order(seconds=8.0)  # the run outlasts the start of another server
    run = start()
    farm._with_logs(lambda: wait_until(lambda: num_asked() > 20, seconds=_SECONDS))
    farm.workers["w1"].kill(with_worker=False)
    farm._with_logs(lambda: wait_until(lambda: len(farm.server_runs()) == 3, seconds=_SECONDS))
    farm.workers["coordinator"].kill(with_worker=False)
    assert farm.wait_for(run, seconds=_SECONDS)["state_type"] == "CRASHED"
    third_server = farm.server_runs()[-1]["id"]  # a run ends the servers that answered none
    farm._with_logs(lambda: wait_until(lambda: farm.api.artifacts(third_server), seconds=_SECONDS))
    farm.control.order(seconds=0.1)
    farm.retry(run)
    assert farm.wait_for(run, seconds=_SECONDS)["state_type"] == "COMPLETED", farm.tails()

    assert run_status(list_runs(open_study(study).ratings_dir)[0]).is_complete
    states = [server["state_type"] for server in farm.server_runs()]
    # The retry took those that were there.
    assert sorted(states) == ["CRASHED", "RUNNING", "RUNNING"]
    num_starts = len(standin.pids)
    second = start(shard_size=2)  # another run with the same judge
    assert farm.wait_for(second, seconds=_SECONDS)["state_type"] == "COMPLETED", farm.tails()
    assert len(standin.pids) == num_starts == 3
    table = str(farm.api.artifacts(second))
    assert "prompts/s" in table
    assert "restarts" in table
    is_over = lambda: all(  # noqa: E731 - each ends two minutes after the last run
        server["state_type"] in ("CRASHED", "COMPLETED") for server in farm.server_runs()
    )
    wait_until(is_over, seconds=180, event="the end of the servers")
