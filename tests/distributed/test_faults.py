"""Engines and parents that fail under a real server: the run's message and its ratings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.farm import (
    Farm,
    check_ratings,
    make_study,
    running_farm,
    shard_names,
    wait_until,
)
from tests.distributed.orders import ALWAYS
from tests.distributed.test_big_run import rate_amid_faults

pytestmark = pytest.mark.services
NUM_PAIRS = 12
_SECONDS = 200


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("faults") / "farm"
    with running_farm(folder, num_engines=3, client_retries=2) as farm:
        yield farm


@pytest.fixture
def farm(running: Farm) -> Farm:
    """Return the module's server and workers, with no orders and an empty log."""
    running.control.forget()
    orders = {"seconds": 0.5, "fails": {}, "freezes": [], "cannot_load": [], "revision": {}}
    running.control.order(**orders, clock={})
    for name, worker in list(running.workers.items()):
        if worker.process.poll() is not None:  # killed by an earlier test
            running.start_worker(name)
    return running


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path, num_pairs=NUM_PAIRS)


def start(farm: Farm, study: Path, **changes: Any) -> str:
    config = {"study": str(study), "engines": 3, "silence_seconds": 15} | changes
    return farm.start_run(**config)


def test_an_engine_that_hangs_is_replaced_and_a_wrong_clock_does_no_harm(
    farm: Farm, study: Path
) -> None:
    bad, clock = shard_names(study)[7], {"w2": 600, "w3": -600}
    # There is work for the engine that hangs, however late it starts.
    farm.control.order(freezes=["w1"], clock=clock, fails={bad: ALWAYS}, seconds=3.0)
    before = len(farm.engine_states())
    run = start(farm, study)
    ended_run = farm.wait_for(run, seconds=_SECONDS)

    assert ended_run["state_type"] == "FAILED", farm.tails()
    assert "1 failed: shards 7;" in ended_run["state"]["message"]
    assert sorted(set(farm.rated())) == sorted({*shard_names(study)} - {bad})
    hung = [event["pid"] for event in farm.control.events("hung")]
    assert len(hung) == 1
    # The silent engine was replaced, and no other one; the rest may be done before that one loads.
    assert len(farm.engine_states()) == before + 4
    is_gone = lambda: hung[0] not in {child.pid for child in farm.workers["w1"].children}  # noqa: E731
    wait_until(is_gone, seconds=60, event="the end of the engine that hung")

    farm.control.order(fails={}, seconds=0.5)
    farm.retry(run)
    assert farm.wait_for(run, seconds=_SECONDS)["state_type"] == "COMPLETED", farm.tails()
    check_ratings(study, farm.control)


def test_engines_that_cannot_do_the_run_are_named_and_the_others_go_on(
    farm: Farm, study: Path
) -> None:
    # The third one has work until the slower of the two has started.
    farm.control.order(cannot_load=["w1"], revision={"w2": "another"}, seconds=2.5)
    run = start(farm, study)
    ended_run = farm.wait_for(run, seconds=_SECONDS)

    assert ended_run["state_type"] == "COMPLETED", farm.tails()
    assert {event["who"] for event in farm.control.events("rated")} == {"w3"}
    check_ratings(study, farm.control)
    # The text that the UI shows of a run: its state's message and its artifacts.
    text = f"{ended_run['state']['message']}\n{farm.api.artifacts(run)}"
    assert "its weights do not load" in text
    assert "judge.revision is " in text


def test_a_judge_that_no_engine_can_load_fails_the_run_with_its_error(
    farm: Farm, study: Path
) -> None:
    farm.control.order(cannot_load=["w1", "w2", "w3"])
    ended_run = farm.wait_for(start(farm, study), seconds=_SECONDS)

    assert ended_run["state_type"] == "FAILED"
    assert "its weights do not load" in ended_run["state"]["message"]
    assert not farm.rated()


def test_two_parents_share_a_study_and_a_killed_one_can_be_retried(farm: Farm, study: Path) -> None:
    farm.control.order(seconds=2.0)
    first = start(farm, study, engines=2)
    farm.wait_for_rated(2)
    farm.workers["coordinator"].kill(with_worker=False)
    assert farm.wait_for(first, seconds=60)["state_type"] == "CRASHED"
    farm.retry(first)
    second = start(farm, study, engines=1)

    for run in (first, second):
        assert farm.wait_for(run, seconds=_SECONDS)["state_type"] == "COMPLETED", farm.tails()
    check_ratings(study, farm.control)


def test_a_run_survives_its_children_a_worker_and_the_server(farm: Farm, tmp_path: Path) -> None:
    # Two retries of Prefect's client take 6 s, so none of its own calls outlasts the outage.
    rate_amid_faults(farm, tmp_path, num_engines=3, num_shards=24, away_seconds=25)
