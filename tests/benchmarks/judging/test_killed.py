"""Kill -9 costs the shard at work and nothing else: the verdicts end up those of a quiet run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encore.files import file_sha256
from tests.benchmarks.judging.scripted import make_pair
from tests.benchmarks.judging.test_rating_reward import RULES_TOML
from tests.tiny_judge import make_tiny_judge

NUM_PAIRS, PAIRS_PER_SHARD = 120, 2
_START_SECONDS = 300


def judge_command(folder: Path, out: str, *, by: str) -> list[str]:
    code = "import typer; from encore.cli.judge import judge; typer.run(judge)"
    data = ["--benchmark", "generic", "--data", str(folder / "rows.jsonl")]
    model = ["--judge", str(folder / "tiny"), "--backend", "transformers"]
    plan = ["--protocol", "verdict-only", "--shard-size", str(PAIRS_PER_SHARD)]
    way = ["--by", "rule", "--rules", str(folder / "two.toml")] if by == "rule" else []
    return [sys.executable, "-c", code, *data, *model, *plan, *way, "--out", str(folder / out)]


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Every shard file with what would change if it were written again."""
    files = folder.glob("*/shard-*.parquet")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@pytest.mark.full
@pytest.mark.parametrize("by", ["pair", "rule"])
def test_after_a_kill_the_verdicts_are_those_of_an_undisturbed_run(tmp_path, by):
    (tmp_path / "two.toml").write_text(RULES_TOML)
    make_tiny_judge(tmp_path / "tiny", max_model_len=4096)
    pairs = [make_pair(index) for index in range(NUM_PAIRS)]
    rows = [
        {"prompt": f"Question {n}?", "chosen": p.chosen, "rejected": p.rejected, "id": n}
        for n, p in enumerate(pairs)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    process = subprocess.Popen(
        judge_command(tmp_path, "killed", by=by),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + _START_SECONDS
    while len(written(tmp_path / "killed")) < 3:
        assert process.poll() is None, f"ended by itself with {process.returncode}"
        assert time.monotonic() < deadline, "no shard was written"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = written(tmp_path / "killed")
    assert 0 < len(kept) < NUM_PAIRS // PAIRS_PER_SHARD

    for out in ("killed", "quiet"):
        subprocess.run(judge_command(tmp_path, out, by=by), check=True, capture_output=True)
    assert kept.items() <= written(tmp_path / "killed").items()
    for path in (tmp_path / "quiet").glob("*/*.*"):
        same = tmp_path / "killed" / path.relative_to(tmp_path / "quiet")
        assert file_sha256(same) == file_sha256(path), path.name
    assert not list((tmp_path / "killed").rglob(".*.tmp-*"))
