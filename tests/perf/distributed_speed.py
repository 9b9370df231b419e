"""Measure Prefect's cost over `encore rate`.

    python -m tests.perf.distributed_speed [--shards 20 100] [--rounds 3]

A real server and commands; the judge of tests/distributed answers at once. Targets on a quiet
machine: at most 25 ms per shard and 10 s fixed.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.distributed.farm import Farm, make_study, options, running_farm
from tests.golden.command_line import run_process
from tests.perf import harness

_MODULES = {"encore rate": ("encore.cli", "rate"), "Prefect": ("flows.rate_pairs",)}


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
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        running_farm(Path(name) / "farm", num_engines=0) as farm,
    ):
        studies = {}
        for count in arguments.shards:
            folder = Path(name) / str(count)
            folder.mkdir()
            studies[count] = make_study(folder, num_pairs=count)
        _costs(farm, studies, rounds=arguments.rounds)


def _costs(farm: Farm, studies: Mapping[int, Path], *, rounds: int) -> None:
    sides = {
        f"{name}, {count} shards": partial(harness.seconds_of, partial(_run, farm, study, *module))
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


def _run(farm: Farm, study: Path, *module: str) -> None:
    """Run a command that rates a fresh copy of a study."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(study, Path(folder) / "study")
        command = [sys.executable, "-m", *module, str(copy), *options()]
        done = run_process(*command, env=farm.environ("command"))
    assert done.code == 0, done.out + done.err


if __name__ == "__main__":
    main()
