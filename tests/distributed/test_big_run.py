"""Long runs under a real server: outages of minutes, Postgres, a soak amid killed judges."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from encore.data.rating_runs import list_runs, run_status
from encore.data.study import open_study
from tests.distributed.farm import make_study, running_farm, running_postgres
from tests.distributed.test_faults import rate_while_the_server_is_away
from tests.judges.standin_vllm import Standin

pytestmark = pytest.mark.full
NUM_SOAK_SHARDS = 560
_LOCK_ERRORS = re.compile(r"database is locked|deadlock|could not serialize", re.IGNORECASE)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("away_seconds", [100, 600])
def test_a_run_goes_on_for_minutes_without_the_server(tmp_path: Path, away_seconds: float) -> None:
    """Rate 90 shards of 2 s; those that end meanwhile are shown afterwards as well."""
    with running_farm(tmp_path / "farm", num_engines=0) as farm:
        rate_while_the_server_is_away(
            farm, tmp_path, num_shards=90, seconds=2.0, away_seconds=away_seconds
        )


@pytest.mark.timeout(1800)
def test_on_postgres_a_run_meets_no_lock(tmp_path: Path) -> None:
    with (
        running_postgres() as url,
        running_farm(tmp_path / "farm", num_engines=0, database_url=url) as farm,
    ):
        rate_while_the_server_is_away(farm, tmp_path, num_shards=40, seconds=1.0, away_seconds=25)
        assert not list(farm.folder.rglob("prefect.db"))  # the server made no database of its own
        lock_errors = {name: _LOCK_ERRORS.findall(text) for name, text in farm.logs().items()}
    assert not any(lock_errors.values()), lock_errors


@pytest.mark.timeout(2400)
def test_a_run_of_minutes_whose_judges_are_killed_rates_every_shard(
    tmp_path: Path, tiny_judge: Path
) -> None:
    rng = random.Random(7)
    with running_farm(tmp_path / "farm", num_engines=4) as farm:
        study, standin = (
            make_study(tmp_path, num_pairs=NUM_SOAK_SHARDS),
            Standin(farm.control.folder),
        )
        farm.control.order(seconds=5.0)
        judge = {"model": str(tiny_judge), "backend": "vllm"}
        run = farm.start_run(study=str(study), judge=judge, engines=4)
        ended = ("COMPLETED", "FAILED", "CRASHED")
        for _ in range(10):
            time.sleep(rng.uniform(15, 40))
            if farm.api.flow_run(run)["state_type"] in ended:
                break
            if workers := [name for name in farm.workers if farm.workers[name].children]:
                farm.workers[rng.choice(workers)].kill(with_worker=False)
                if farm.api.flow_run(run)["state_type"] == "CRASHED":  # it was the coordinator
                    farm.retry(run)
        farm.control.order(seconds=0.0)
        farm.wait_for(run, seconds=300)
        if farm.api.flow_run(run)["state_type"] != "COMPLETED":
            farm.retry(run)
            farm.wait_for(run, seconds=300)
        assert farm.api.flow_run(run)["state_type"] == "COMPLETED", farm.tails()
        assert run_status(list_runs(open_study(study).ratings_dir)[0]).is_complete
        num_prompts = NUM_SOAK_SHARDS * 2 * 10
        # What was answered is in the journal: only what was at work at a kill is asked again.
        assert num_prompts <= len(standin.lines("prompts")) <= 1.2 * num_prompts
