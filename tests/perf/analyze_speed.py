"""How fast is `encore analyze`, against Polars and pandas on the same ratings? Prints tables.

Run: python -m tests.perf.analyze_speed [--compare 1.4 28] [--scale 1.4 7 28 100] [--repeats 5]
(millions of ratings; pandas needs most of an hour and 9 GiB for five rounds of 28 million)

Ratings have hashed ids (32 hex digits) under ten rules. Ours are measured as a finished run (shards
that follow their digests) and as files from elsewhere, pair by pair and in any order of rows, which
need all checks. Polars and pandas read the same files and make the same checks; what each does is
in `tests.perf.analysis.contenders`. Each call is a process of its own on two cores, imports not
counted; cases take turns, so that a machine that is busy for a while is so for all of them.

Polars is put into a folder that is deleted afterwards; where no package index answers, it is left
out and the reason printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.perf.analysis.ratings import (
    RATINGS_PER_PAIR,
    write_foreign_ratings,
    write_run_of_ratings,
)

TASKS = ("entropy", "accuracies", "analyze")
NUM_CORES = 2
#: Leaves room for the process itself within 2.5 GB.
DUCKDB_MEMORY = "1500MB"
ROWS_PER_FILE = 400_000
KINDS = {
    "own": "own shards",
    "foreign": "files, pair by pair",
    "shuffled": "files, any order",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call: a library, a task, files."""

    library: str
    task: str
    kind: str


@dataclass(kw_only=True)
class Measured:
    """What the calls of a case gave."""

    seconds: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    figures: Any = None

    @property
    def median(self) -> float:
        """Of the seconds."""
        return statistics.median(self.seconds)


def main() -> None:
    """Generate, measure in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", type=float, nargs="*", default=[1.4, 28.0])
    parser.add_argument("--scale", type=float, nargs="*", default=[1.4, 7.0, 28.0])
    parser.add_argument("--libraries", nargs="*", default=["polars", "pandas"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        libraries = ["encore", *options.libraries]
        environment = dict(os.environ)
        if (
            options.compare
            and "polars" in libraries
            and not add_polars(folder / "packages", environment)
        ):
            libraries.remove("polars")
        scaled = []
        for millions in sorted({*options.compare, *options.scale}):
            paths = write_ratings(folder / "data", round(millions * 1e6))
            if millions in options.compare:
                compare(paths, libraries, environment, millions, repeats=options.repeats)
            if millions in options.scale:
                scaled.append(scale(paths, environment, millions, repeats=options.repeats))
            shutil.rmtree(folder / "data")
        if scaled:
            print(f"`encore analyze --by-source` as ratings grow, median of {options.repeats}")
            print("\n".join([scale_header(), *scaled]))


# --- what is measured -----------------------------------------------------------------------------


def add_polars(folder: Path, environment: dict[str, str]) -> bool:
    """Make Polars importable in an environment; False, with a printed reason, if there is none."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "polars"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"Polars is left out: pip cannot install it ({reason})")
        return False
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(Path.cwd())])
    return True


def write_ratings(folder: Path, num_ratings: int) -> dict[str, Path]:
    """The same ratings as a study and as files, pair by pair and in any order."""
    folder.mkdir()
    paths = {kind: folder / kind for kind in KINDS}
    run_dir = write_run_of_ratings(paths["own"], num_pairs=num_ratings // RATINGS_PER_PAIR)
    num_files = max(1, num_ratings // ROWS_PER_FILE)
    for kind in ("foreign", "shuffled"):
        write_foreign_ratings(
            paths[kind], run_dir, num_files=num_files, is_shuffled=kind == "shuffled"
        )
    return paths


def measured(
    cases: Sequence[Case], paths: Mapping[str, Path], environment: dict[str, str], *, repeats: int
) -> dict[Case, Measured]:
    """Every case so many times, in turns."""
    found = {case: Measured() for case in cases}
    for _ in range(repeats):
        for case in cases:
            answer = call(case, paths[case.kind], environment)
            found[case].seconds.append(answer["seconds"])
            found[case].peak_mib = max(found[case].peak_mib, answer["peak_mib"])
            found[case].figures = answer["figures"]
    return found


def call(case: Case, path: Path, environment: dict[str, str]) -> dict[str, Any]:
    """One call in a process of its own, on two cores."""
    limits = {
        "ENCORE_DUCKDB_MEMORY_LIMIT": DUCKDB_MEMORY,
        "ENCORE_DUCKDB_THREADS": str(NUM_CORES),
        "POLARS_MAX_THREADS": str(NUM_CORES),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.perf.analysis.contenders"]
    done = subprocess.run(
        [*command, case.library, case.task, str(path)],
        env=environment | limits,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=use_two_cores,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def use_two_cores() -> None:
    """Keep this process on two of the cores that it may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])


# --- tables ---------------------------------------------------------------------------------------


def compare(
    paths: Mapping[str, Path],
    libraries: Sequence[str],
    environment: dict[str, str],
    millions: float,
    *,
    repeats: int,
) -> None:
    """Print seconds and memory of every library and kind of files; figures must agree."""
    rows = [
        ("encore", "own"),
        *((name, kind) for kind in ("foreign", "shuffled") for name in libraries),
    ]
    cases = [Case(library=name, task=task, kind=kind) for name, kind in rows for task in TASKS]
    found = measured(cases, paths, environment, repeats=repeats)
    for task in TASKS:
        expected = found[Case(library="encore", task=task, kind="own")].figures
        for case in cases:
            if case.task == task:
                assert_same(found[case].figures, expected, f"{case}")
    print(f"\n{millions:g} million ratings, {NUM_CORES} cores, seconds, median of {repeats}")
    print(f"{'':32}{'entropy':>10}{'accuracies':>12}{'analyze':>10}{'peak memory':>14}")
    for name, kind in rows:
        own = [found[Case(library=name, task=task, kind=kind)] for task in TASKS]
        seconds = f"{own[0].median:10.2f}{own[1].median:12.2f}{own[2].median:10.2f}"
        peak = max(one.peak_mib for one in own)
        print(f"{name + ', ' + KINDS[kind]:32}{seconds}{peak:10.0f} MiB")
    print("every library's figures agree to 1e-9")


def scale(
    paths: Mapping[str, Path], environment: dict[str, str], millions: float, *, repeats: int
) -> str:
    """A line of seconds for one number of ratings."""
    cases = [
        Case(library="encore", task=task, kind=kind)
        for kind in KINDS
        for task in ("statistics", "analyze")
    ]
    found = measured(cases, paths, environment, repeats=repeats)
    cells = []
    for kind in KINDS:
        counts, whole = (
            found[Case(library="encore", task=task, kind=kind)]
            for task in ("statistics", "analyze")
        )
        rate = whole.median / millions
        cells.append(f"{counts.median:9.2f}{whole.median:9.2f}{rate:9.3f}{whole.peak_mib:9.0f}")
    return f"{millions:7g}M" + "".join(cells)


def scale_header() -> str:
    """Two lines over those of `scale`."""
    kinds = "".join(f"{name:>36}" for name in KINDS.values())
    return f"{'':8}{kinds}\n{'':8}" + f"{'counts':>9}{'whole':>9}{'s/M':>9}{'MiB':>9}" * len(KINDS)


def assert_same(found: Any, expected: Any, where: str) -> None:
    """Figures agree to 1e-9."""
    if isinstance(expected, Mapping):
        assert set(found) == set(expected), where
        for key, value in expected.items():
            assert_same(found[key], value, f"{where} {key}")
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, where)
    else:
        assert abs(found - expected) <= 1e-9, f"{where}: {found} is not {expected}"


if __name__ == "__main__":
    main()
