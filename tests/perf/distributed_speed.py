"""Measure Prefect's cost over `encore rate`, the start of engines, the gain of a second engine.

    python -m tests.perf.distributed_speed [--shards 20 100] [--rounds 3] [--wait-seconds 0.5]

A real server, workers and commands; the judge of tests/distributed answers at once, or waits
instead of computing. Targets on a quiet machine: at most 25 ms per shard and 10 s fixed; at most
45 s from a parent's start to the first rating of its children; two engines at least 1.85 times as
fast as one from the moment both are ready.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.distributed.farm import Farm, make_study, options, running_farm, wait_until
from tests.golden.command_line import run_process
from tests.perf import harness

_MODULES = {"encore rate": ("encore.cli", "rate"), "Prefect": ("flows.rate_pairs",)}
_SECONDS = 600


def main() -> None:
    """Measure and print the tables."""
    parser = harness.make_parser(__doc__)
    parser.add_argument(
        "--shards",
        type=int,
        nargs=2,
        default=[20, 100],
        help="two numbers of shards, the smaller one first",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--wait-seconds",
        type=float,
        default=0.5,
        help="seconds that the judge waits for each shard",
    )
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        running_farm(Path(name) / "farm", num_engines=2) as farm,
    ):
        studies = {}
        for count in arguments.shards:
            folder = Path(name) / str(count)
            folder.mkdir()
            studies[count] = make_study(folder, num_pairs=count)
        _costs(farm, studies, rounds=arguments.rounds)
        study = studies[arguments.shards[-1]]
        farm.control.order(seconds=arguments.wait_seconds)
        rows = []
        for measure in (_as_command, _as_deployment):
            one_engine, two_engines = (measure(farm, study, num_engines=n) for n in (1, 2))
            two_engines["speed-up"] = two_engines["shards/s"] / one_engine["shards/s"]
            rows += [one_engine, two_engines]
        harness.print_table(
            f"engines that wait {arguments.wait_seconds:g} s a shard, from when all are ready", rows
        )


def _costs(farm: Farm, studies: Mapping[int, Path], *, rounds: int) -> None:
    sides = {
        f"{name}, {count} shards": partial(
            harness.seconds_of, partial(_run, farm, study, *module, changes={})
        )
        for name, module in _MODULES.items()
        for count, study in studies.items()
    }
    seconds = harness.measure_in_turn(sides, rounds=rounds)
    rows = [
        {"command": name, "s": harness.median_and_range(rounds)} for name, rounds in seconds.items()
    ]
    harness.print_table("instant judge", rows)
    few, many = studies
    extra_seconds = {
        count: statistics.median(seconds[f"Prefect, {count} shards"])
        - statistics.median(seconds[f"encore rate, {count} shards"])
        for count in studies
    }
    per_shard = (extra_seconds[many] - extra_seconds[few]) / (many - few)
    fixed = extra_seconds[few] - few * per_shard
    costs = {"": "Prefect costs", "ms per shard": 1000 * per_shard, "s fixed": fixed}
    harness.print_table("over encore rate", [costs])


def _run(farm: Farm, study: Path, *module: str, changes: Mapping[str, object]) -> None:
    """Run a command that rates a fresh copy of a study."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(study, Path(folder) / "study")
        command = [sys.executable, "-m", *module, str(copy), *options(**changes)]
        done = run_process(*command, env=farm.environ("command"))
    assert done.code == 0, done.out + done.err


def _as_command(farm: Farm, study: Path, *, num_engines: int) -> dict[str, Any]:
    farm.control.forget()
    began = time.monotonic()
    _run(farm, study, *_MODULES["encore rate"], changes={"engines": num_engines})
    return _timing(farm, "encore rate", num_engines, began=began)


def _as_deployment(farm: Farm, study: Path, *, num_engines: int) -> dict[str, Any]:
    farm.control.forget()
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(study, Path(folder) / "study")
        run = farm.start_run(study=str(copy), engines=num_engines)
        running = partial(lambda: farm.api.flow_run(run)["state_type"] == "RUNNING")
        wait_until(running, seconds=_SECONDS, event="the parent's start")
        began = time.monotonic()
        ended_run = farm.wait_for(run, seconds=_SECONDS)
    assert ended_run["state_type"] == "COMPLETED", farm.tails()
    return _timing(farm, "deployment", num_engines, began=began)


def _timing(farm: Farm, name: str, num_engines: int, *, began: float) -> dict[str, Any]:
    loaded = [event["time"] for event in farm.control.events("loaded")]
    rated = [event["time"] for event in farm.control.events("rated")]
    assert len(loaded) == num_engines
    all_ready_at = max(loaded)
    num_rated_since = sum(moment > all_ready_at for moment in rated)
    return {
        "run": f"{name}, {num_engines} engine(s)",
        "s to first rating": min(rated) - began,
        "s wall": time.monotonic() - began,
        "shards/s": num_rated_since / (max(rated) - all_ready_at),
        "speed-up": "",
    }


if __name__ == "__main__":
    main()
