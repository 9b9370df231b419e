"""A run with two real vLLM servers on the CPU gives the files of the engine in process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from encore.core.reporting import Reporter
from encore.data.rating_runs import list_runs, run_status
from encore.data.study import open_study
from encore.judges.judge_options import JudgeConfig
from encore.judges.served_judge import ServedJudge
from encore.rating.rating_options import RatingConfig, RatingRunOptions
from encore.rating.rating_run import open_run, rate, rate_run
from encore.runs.worker import work_through
from tests.worlds.studies import numbered_pairs, study_of

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

NUM_PAIRS = 24


class Killer(Reporter):
    """Kill a server's process when the first shard is saved.

    Attributes:
        killed: Ids of the killed processes.
    """

    def __init__(self) -> None:
        self.killed: list[int] = []

    def saved(self, path: Path, *, kind: str = "") -> None:
        if not self.killed:
            server = next(
                child
                for child in psutil.Process().children()
                if "vllm.entrypoints.openai.api_server" in child.cmdline()
            )
            os.kill(server.pid, signal.SIGKILL)
            self.killed.append(server.pid)


def shard_files(study: Path) -> list[str]:
    """Return the names of the shards' files of a study's only run, which hold their digests."""
    [run_dir] = list_runs(study / "ratings")
    assert run_status(run_dir).is_complete
    return sorted(path.name for path in run_dir.glob("shard-*.parquet"))


def test_two_servers_of_which_one_is_killed_rate_what_one_engine_rates(folder, tmp_path):
    """Either continues the other's run: the key, the files and their digests are equal."""
    studies = [study_of(numbered_pairs(NUM_PAIRS), tmp_path / name) for name in ("one", "two")]
    config = RatingConfig(judge=JudgeConfig(model=str(folder)), shard_size=2)
    rate(open_study(studies[0]), config)

    how = RatingRunOptions(engines=2, shard=(0, 1, 2, 3, 4, 5, 6, 7))
    run = open_run(open_study(studies[1]), config, how)
    assert isinstance(run.judge, ServedJudge)
    killer = Killer()
    report = rate_run(run, reporter=killer).report
    assert (report.summary, len(killer.killed)) == ("8 rated, 0 reused, 0 failed", 1)
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert not [text for text in commands if "server_keeper" in text or "api_server" in text]

    in_process = open_run(open_study(studies[1]), config)
    report = work_through(in_process.job())
    in_process.judge.close()
    assert report.summary == "4 rated, 8 reused, 0 failed"
    assert shard_files(studies[1]) == shard_files(studies[0])
