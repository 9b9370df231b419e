"""One run with many engines while servers, workers and links fail.

In each case the run ends by itself, its ratings equal those of an undisturbed run, and no shard was
rated more than twice.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.distributed.farm import (
    Farm,
    check_ratings,
    judge_environ,
    make_study,
    network,
    options,
    running_farm,
    running_postgres,
    shard_names,
    wait_until,
)
from tests.distributed.orders import ALWAYS
from tests.worlds.servers import background_process

NUM_SHARDS = 40
NUM_SOAK_SHARDS = 560
LINK_DOWN_SECONDS = 60
_LOCK_ERRORS = re.compile(r"database is locked|deadlock|could not serialize", re.IGNORECASE)


def rate_amid_faults(
    farm: Farm,
    folder: Path,
    *,
    num_engines: int,
    away_seconds: float,
    num_shards: int = NUM_SHARDS,
    is_killed: bool = False,
) -> None:
    """Rate amid faults, then retry; check the end of both runs and the ratings.

    Two shards fail, a child and a worker are killed, and the server is away for a while.
    ``is_killed``: the server ends by SIGKILL.
    """
    study = make_study(folder, num_pairs=num_shards)
    names = shard_names(study)
    farm.control.order(seconds=0.9 * num_engines, fails={names[11]: 2, names[23]: ALWAYS})
    run = farm.start_run(study=str(study), engines=num_engines, silence_seconds=30)
    farm.wait_for_rated(3, seconds=180)
    farm.workers["w1"].kill(with_worker=False)
    farm.wait_for_rated(len(farm.rated()) + 3)
    wait_until(lambda: farm.workers["w2"].children, seconds=60, event="a child of w2")
    farm.stop_server(is_killed=is_killed)
    farm.workers["w2"].kill(with_worker=True)
    time.sleep(away_seconds)
    farm.start_server()
    ended_run = farm.wait_for(run, seconds=300)

    assert ended_run["state_type"] == "FAILED", farm.tails()
    assert "1 failed: shards 23;" in ended_run["state"]["message"]
    assert f"pair {names[23]}: the device fell off the bus" in str(farm.api.artifacts(run))
    assert sorted(set(farm.rated())) == sorted({*names} - {names[23]})

    farm.control.order(fails={})
    before = len(farm.rated())
    farm.retry(run)
    assert farm.wait_for(run, seconds=300)["state_type"] == "COMPLETED", farm.tails()
    assert farm.rated()[before:] == [names[23]]
    check_ratings(study, farm.control)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_run_survives_ten_minutes_without_the_killed_server(tmp_path: Path) -> None:
    with running_farm(tmp_path / "farm", num_engines=3) as farm:
        rate_amid_faults(farm, tmp_path, num_engines=3, away_seconds=600, is_killed=True)


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_local_engines_and_the_pools_share_a_run_of_ten_minutes_amid_kills(tmp_path: Path) -> None:
    rng = random.Random(7)
    with running_farm(tmp_path / "farm", num_engines=4) as farm:
        study = make_study(tmp_path, num_pairs=NUM_SOAK_SHARDS)
        farm.control.order(seconds=7.0)  # 560 shards by eight engines: 490 s
        run = farm.start_run(study=str(study), engines=4, silence_seconds=120)
        command = [sys.executable, "-m", "encore.cli", "rate", str(study)]
        command += options(engines=4, silence_seconds=120)
        environ, log = judge_environ(farm.control), tmp_path / "local.log"
        with background_process(*command, environ=environ, log=log) as local:
            farm.wait_for_rated(20, seconds=400)
            while len(farm.rated()) < NUM_SOAK_SHARDS - 30:
                time.sleep(rng.uniform(15, 40))
                engines = [[child] for child in psutil.Process(local.pid).children()]
                engines += [farm.workers[f"w{number}"].children for number in range(1, 5)]
                for process in rng.choice([processes for processes in engines if processes]):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            assert local.wait(timeout=300) == 0, log.read_text("utf-8")
        assert farm.wait_for(run, seconds=300)["state_type"] == "COMPLETED", farm.tails()
        check_ratings(study, farm.control)


@pytest.mark.full
def test_two_workers_rate_with_a_server_on_postgres(tmp_path: Path) -> None:
    with (
        running_postgres() as url,
        running_farm(tmp_path / "farm", num_engines=2, database_url=url) as farm,
    ):
        study = make_study(tmp_path, num_pairs=6)
        farm.control.order(seconds=0.1)
        run = farm.start_run(study=str(study), engines=2)
        assert farm.wait_for(run, seconds=300)["state_type"] == "COMPLETED", farm.tails()
        assert sorted(farm.rated()) == sorted(shard_names(study))
        # The server made no database of its own.
        assert not list(farm.folder.rglob("prefect.db"))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_eight_workers_on_postgres_meet_no_lock(tmp_path: Path) -> None:
    with (
        running_postgres() as url,
        running_farm(tmp_path / "farm", num_engines=8, database_url=url) as farm,
    ):
        rate_amid_faults(farm, tmp_path, num_engines=8, away_seconds=100)
        lock_errors = {name: _LOCK_ERRORS.findall(text) for name, text in farm.logs().items()}
    assert not any(lock_errors.values()), lock_errors


@pytest.mark.full
def test_a_run_survives_a_link_that_is_cut_for_a_minute(tmp_path: Path) -> None:
    with (
        network("a", "b") as net,
        running_farm(tmp_path / "farm", num_engines=0, host=net.address) as farm,
    ):
        for host in ("a", "b"):
            farm.start_worker(f"w-{host}", inside=net.inside(host))
        study = make_study(tmp_path, num_pairs=NUM_SHARDS)
        farm.control.order(seconds=4.0)  # 80 s for two engines
        run = farm.start_run(study=str(study), engines=2, silence_seconds=30)
        farm.wait_for_rated(4)
        net.link("b", "down")
        time.sleep(LINK_DOWN_SECONDS)
        net.link("b", "up")

        assert farm.wait_for(run, seconds=300)["state_type"] == "COMPLETED", farm.tails()
        check_ratings(study, farm.control)
        assert {event["who"] for event in farm.control.events("rated")} == {"w-a", "w-b"}
