"""The flow `score`: the files of `encore score`, an artifact, attempts that go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from encore.scoring.scoring_options import ScoringConfig, ScoringRunOptions
from flows.score import score
from tests.flows.conftest import artifact
from tests.worlds.scorings import make_model
from tests.worlds.scorings import score as call_directly
from tests.worlds.studies import file_digests
from tests.worlds.trainings import RULES, make_study

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("prefect_api")]

NUM_PAIRS = 10
ScoreFlow = Callable[..., State[Any]]


@pytest.fixture(scope="module")
def scoring_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scoring")
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    make_model(folder / "model")
    return folder


@pytest.fixture
def start(scoring_folder: Path, tmp_path: Path) -> ScoreFlow:
    """Return a function that runs the flow on the small study in three shards."""
    config = ScoringConfig(model=str(scoring_folder / "model"), shard_size=4)
    how = ScoringRunOptions(out=tmp_path / "scores")
    return lambda: score(scoring_folder / "study", config, how, return_state=True)


def test_the_flow_writes_the_files_of_the_command_and_shows_the_heads(
    start, scoring_folder, tmp_path
):
    state = start()
    assert state.is_completed(), state.message
    assert state.message == f"{NUM_PAIRS * 2 * 3} scores of 10 pairs: 3 shards scored, 0 reused"
    by_call = call_directly(
        scoring_folder / "study", scoring_folder / "model", out=tmp_path / "by-call", shard_size=4
    )
    shards = "shard-*.parquet"
    assert file_digests(tmp_path / "scores", shards) == file_digests(by_call.out, shards)
    accuracy_table = artifact("head-accuracy", scoring_folder / "study")
    rows = json.loads(accuracy_table.data)
    assert [row["head"] for row in rows] == list(RULES)
    assert all(row["half"] == row["strict"] for row in rows)  # no ties among random scores
    assert "Scores of 10 pairs" in accuracy_table.description
    assert start().message.endswith("0 shards scored, 3 reused")
