"""`encore rate` and the flow call the same library: their ratings are equal, row by row."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.config import RatingConfig
from encore.data.study import open_study
from encore.schemas import RATINGS_CONTRACT
from encore.shards import choose_run, run_status, validated_shards
from flows.rate_pairs import rate_pairs


def ratings_of(study: Path) -> pa.Table:
    files = validated_shards(run_status(choose_run(open_study(study).ratings_dir, None)))
    assert len(files) == 3
    return pa.concat_tables([pq.read_table(file) for file in files])


@pytest.mark.usefixtures("prefect_api")
def test_cli_and_flow_write_equal_ratings(
    study: Path, tmp_path: Path, tiny_judge: Path, rating: Callable[..., RatingConfig]
) -> None:
    by_cli = Path(shutil.copytree(study, tmp_path / "by-cli"))
    command = [
        *(sys.executable, "-m", "encore.cli", "rate", str(by_cli)),
        *("--judge", str(tiny_judge), "--backend", "transformers"),
        *("--shard-size", "2", "--max-reply-tokens", "8"),
    ]
    subprocess.run(command, check=True, capture_output=True)

    assert rate_pairs(study, rating(), return_state=True).is_completed()

    ours, theirs = ratings_of(study), ratings_of(by_cli)
    for column in RATINGS_CONTRACT.names:
        assert ours[column].to_pylist() == theirs[column].to_pylist()
    # Replies, reasons, judge and run key too: it is the same run.
    assert ours.equals(theirs)
    assert ours["rating"].null_count < ours.num_rows
