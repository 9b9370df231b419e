"""Rate a study with several engines that are stand-ins, as a process that a test can kill.

python -m tests.rating.served_driver STUDY JUDGE FOLDER NUM_SERVERS
"""

from __future__ import annotations

import sys
from pathlib import Path

from encore.core.reporting import SILENT
from encore.data.study import open_study
from encore.judges.judge_options import JudgeConfig
from encore.judges.served_judge import ServedJudge
from encore.judges.server_options import ServerOptions
from encore.judges.vllm_servers import LocalServers
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import RatingResult, open_run, rate_run
from tests.judges.standin_vllm import Standin

SHARD_SIZE = 5


def rate_with_standins(
    study: Path, judge: Path, folder: Path, *, num_servers: int = 2
) -> RatingResult:
    """Rate the shards of a study that are not done."""
    config = RatingConfig(judge=JudgeConfig(model=str(judge)), shard_size=SHARD_SIZE)
    servers = LocalServers(
        shares=[{}] * num_servers, log_dir=folder / "logs", make_command=Standin(folder).command
    )
    served = ServedJudge(config.judge, ServerOptions(), servers=servers)
    return rate_run(open_run(open_study(study), config, judge=served), reporter=SILENT)


if __name__ == "__main__":
    rate_with_standins(*map(Path, sys.argv[1:4]), num_servers=int(sys.argv[4]))
