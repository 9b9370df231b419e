"""Several processes on one study without any server: local engines, and slices of an array job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from encore.core.errors import InputError
from encore.core.versions import code_digest
from encore.data.study import open_study
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import RatingRun, open_run
from encore.runs.engine import work_as_engine
from encore.runs.engine_messages import EngineSpec, read_heartbeats
from encore.runs.run_files import claim_folder
from tests.distributed.farm import (
    check_ratings,
    judge_environ,
    make_study,
    options,
    rating,
    shard_names,
    wait_until,
)
from tests.distributed.orders import ALWAYS, Control
from tests.worlds.judges import ScriptedJudge

pytestmark = pytest.mark.services  # several processes

NUM_PAIRS = 12
_SECONDS = 120


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path, num_pairs=NUM_PAIRS)


@pytest.fixture
def control(tmp_path: Path) -> Control:
    control = Control(tmp_path / "control")
    control.order(seconds=0.1)
    return control


def start(study: Path, control: Control, *extra: object) -> subprocess.Popen[str]:
    """Start `encore rate` with the steered judge in a process."""
    command = [sys.executable, "-m", "encore.cli", "rate", str(study), *options()]
    return subprocess.Popen(
        [*command, *map(str, extra)],
        env=judge_environ(control),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_end(process: subprocess.Popen[str], *, code: int = 0) -> str:
    """Wait until a command has ended with this exit code; return its output."""
    text, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == code, text
    return text


def test_two_local_engines_share_the_shards_and_give_what_one_process_gives(
    study: Path, control: Control
) -> None:
    control.order(seconds=1.0)  # long beside the difference of the engines' starts
    wait_for_end(start(study, control, "--engines", 2))

    check_ratings(study, control, most_times=1)
    share = Counter(event["pid"] for event in control.events("rated"))
    assert len(share) == 2
    assert min(share.values()) >= NUM_PAIRS // 4


def test_two_local_engines_keep_a_budget_together_and_a_larger_one_goes_on(
    study: Path, control: Control
) -> None:
    calls = 20  # of a shard: one pair under ten rules
    text = wait_for_end(
        start(study, control, "--engines", 2, "--budget-calls", 5 * calls + 7), code=3
    )
    assert "5 rated, 0 reused, 0 failed" in text
    assert "7 of 12 shards are left" in text
    assert sorted(event["shard"] for event in control.events("rated")) == sorted(
        shard_names(study)[:5]
    )
    assert len({event["pid"] for event in control.events("loaded")}) == 2
    wait_for_end(start(study, control, "--engines", 2, "--budget-calls", NUM_PAIRS * calls))
    check_ratings(study, control)


def test_an_engine_that_is_killed_in_mid_shard_costs_that_shard_alone(
    study: Path, control: Control
) -> None:
    names = shard_names(study)
    control.order(seconds=0.7, fails={names[3]: 1})  # a shard that fails once beside it
    process = start(study, control, "--engines", 2, "--silence-seconds", 30)

    def at_work() -> list[int]:
        rated = {event["shard"] for event in control.events("rated")}
        begun = [event for event in control.events("began") if event["shard"] not in rated]
        return [event["pid"] for event in begun] if len(rated) > 2 else []

    def loaded() -> set[int]:
        return {event["pid"] for event in control.events("loaded")}

    os.kill(wait_until(at_work, seconds=_SECONDS, event="a shard at work")[-1], signal.SIGKILL)
    control.order(seconds=3.0)  # there is work until the replacement has loaded, however slowly
    wait_until(
        lambda: len(loaded()) == 3 or process.poll() is not None,
        seconds=_SECONDS,
        event="the replacement",
    )
    control.order(seconds=0.1)
    wait_for_end(process)

    check_ratings(study, control)
    assert len(loaded()) == 3


def test_engines_that_die_at_their_third_shard_are_replaced_and_every_shard_is_rated_once(
    study: Path, control: Control
) -> None:
    control.order(seconds=0.3, dies_at=3)
    text = wait_for_end(start(study, control, "--engines", 2))
    assert "12 rated, 0 reused, 0 failed" in text
    check_ratings(study, control, most_times=1)
    died = [event["pid"] for event in control.events("died")]
    loaded = [event["pid"] for event in control.events("loaded")]
    assert len(died) == len({*died}) >= 2  # a process ends with its engine
    assert len(loaded) >= len(died) + 1
    assert "is replaced: RuntimeError: the generation failed" in text
    assert not [*study.glob("ratings/*/failed-*")]


def test_a_process_alone_starts_its_engine_again(study: Path, control: Control) -> None:
    control.order(dies_at=3)
    text = wait_for_end(start(study, control))
    assert "12 rated, 0 reused, 0 failed" in text
    assert "is put back, its engine died: RuntimeError: the generation failed" in text
    check_ratings(study, control, most_times=1)


def test_engines_end_with_a_killed_parent_and_the_same_command_goes_on(
    study: Path, control: Control
) -> None:
    control.order(freezes=["*"])  # the first of them hangs, and must end all the same
    process = start(study, control, "--engines", 2, "--silence-seconds", 4)
    wait_until(lambda: len(control.events("rated")) > 1, seconds=_SECONDS, event="two shards")
    process.kill()
    process.communicate()
    engines = [event["pid"] for event in control.events("loaded")]
    wait_until(
        lambda: not any(map(psutil.pid_exists, engines)), seconds=_SECONDS, event="the engines' end"
    )
    wait_for_end(start(study, control))  # alone: the same run

    check_ratings(study, control)


def test_a_shard_that_fails_on_every_engine_is_named_and_rated_by_a_later_command(
    study: Path, control: Control
) -> None:
    bad = shard_names(study)[5]
    control.order(fails={bad: ALWAYS}, seconds=0.05)
    text = wait_for_end(start(study, control, "--engines", 2), code=3)

    assert "shard 5" in text
    assert f"pair {bad}: the device fell off the bus" in text
    assert len({event["pid"] for event in control.events("failed")}) == 2  # both engines tried
    control.order(fails={})
    before = len(control.events("rated"))
    wait_for_end(start(study, control, "--engines", 2))
    assert [event["shard"] for event in control.events("rated")[before:]] == [bad]
    assert len(list(study.glob("ratings/*/engines/*.json"))) == 1  # enough for one shard


def test_slices_in_three_processes_equal_one_run(study: Path, control: Control) -> None:
    slices = [start(study, control, "--slice", f"{number}/3") for number in range(3)]
    for process in slices:
        wait_for_end(process)

    check_ratings(study, control, most_times=1)
    num_rated_by_process = Counter(event["pid"] for event in control.events("rated"))
    assert [*num_rated_by_process.values()] == [NUM_PAIRS // 3] * 3


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"judge": ScriptedJudge(revision="2")}, 'judge.revision is "2" here and "1" in the run'),
        ({"rules": "encore-20"}, "rules_sha256 is "),
        ({"num_pairs": NUM_PAIRS + 1}, "data_sha256 is "),
        ({"code": "another"}, "its code of encore"),
    ],
    ids=["judge", "rules", "pairs", "code"],
)
def test_an_engine_with_another_judge_or_rules_or_pairs_or_code_is_refused_by_name(
    tmp_path: Path, difference: dict[str, Any], message: str
) -> None:
    def opened(*, rules: str = "encore-10", num_pairs: int = NUM_PAIRS, **judge: Any) -> RatingRun:
        study = make_study(tmp_path, num_pairs=num_pairs)
        config = RatingConfig.model_validate(rating(rules=rules))
        return open_run(open_study(study), config, **({"judge": ScriptedJudge()} | judge))

    run = opened()
    claim_folder(run.run_dir, run.manifest)
    code = difference.pop("code", code_digest())
    spec = EngineSpec(name="0-a", slot=0, num_engines=2, run_key=run.manifest.key, code_digest=code)
    with pytest.raises(InputError, match=r"^engine 1 of 2 on .+: ") as refused:
        work_as_engine(opened(**difference).job(), spec, silence_seconds=10)
    assert message in str(refused.value)
    assert message in read_heartbeats(run.run_dir)["0-a"].error  # where the parent looks
    assert not list(run.run_dir.glob("shard-*"))
