"""Measure the work per shard of runs with more and more shards: it must not grow.

    python -m tests.perf.many_shards [--shards 200 2000 20000] [--strace]

A scripted judge answers at once, and a shard has one pair under two rules: what is left is the
work of a shard itself. With --strace a further run of each size counts system calls. Targets: CPU
seconds a shard of 20,000 shards at most 1.5 times that of 200; `encore status` of 20,000 shards at
most 6 s.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from encore.data.study import open_study
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import open_run
from encore.runs.worker import work_through
from tests.perf import harness
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import numbered_pairs, study_of, write_rules

#: System calls that name or list files.
_TRACED = "trace=file,getdents64"


def main() -> None:
    """Measure and print the table, or rate one study and print its figures as JSON."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[200, 2000, 20000])
    parser.add_argument("--strace", action="store_true", help="count system calls as well")
    parser.add_argument("--study", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.study:
        print(json.dumps(_rate(arguments.study)))
        return
    rows = []
    for num_shards in arguments.shards:
        with tempfile.TemporaryDirectory() as folder:
            row = _measure(Path(folder), num_shards, traced=arguments.strace)
        rows.append({"shards": num_shards, **row})
        print(rows[-1], file=sys.stderr, flush=True)
    harness.print_table("instant judge, one pair under two rules a shard", rows)


def _measure(folder: Path, num_shards: int, *, traced: bool) -> dict[str, object]:
    write_rules(folder / "rules.toml", ["kind", "brief"])

    def rate(name: str, *prefix: str) -> tuple[Path, dict[str, float]]:
        study = study_of(numbered_pairs(num_shards), folder / name)
        module = ("-m", __spec__.name, "--study", study)
        command = [*prefix, sys.executable, *map(str, module)]
        return study, json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    study, figures = rate("study")
    _, status_seconds, status_mib = harness.run_python("-m", "encore.cli", "status", study)
    row: dict[str, object] = {
        "CPU ms a shard": 1000 * figures["cpu_seconds"] / num_shards,
        "s": figures["seconds"],
        "peak MiB": figures["peak_mib"],
        "status s": status_seconds,
        "status MiB": status_mib,
    }
    if traced:
        counts = folder / "strace.txt"
        rate("traced", "strace", "-f", "-c", "-o", str(counts), "-e", _TRACED)
        total = next(line for line in counts.read_text().splitlines() if line.endswith(" total"))
        row["file calls a shard"] = int(total.split()[3]) / num_shards
    return row


def _rate(path: Path) -> dict[str, float]:
    """Rate a study in this process and return its figures."""

    judge = ScriptedJudge(reads_texts=True, is_on_cpu=True)
    judge.asked = deque(maxlen=0)  # type: ignore[assignment]
    rules = str(path.parent / "rules.toml")
    config = RatingConfig(judge=JudgeConfig(model="scripted"), rules=rules, shard_size=1)
    job, began = open_run(open_study(path), config, judge=judge).job(), time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF)
    report = work_through(job)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert report.count("rated") == len(job.manifest.shards)
    return {
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "seconds": time.monotonic() - began,
        "peak_mib": after.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
