"""The flow `score`: the files of `encore score`, an artifact, attempts that go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from encore.errors import InputError, StudyIncompleteError
from encore.files import file_sha256
from encore.scoring import scoring_run
from flows.score import ScoreConfig, ScoringAttempts, score
from tasks import stage
from tests.flows.conftest import artifact, error_of
from tests.scoring.models import make_model
from tests.scoring.models import score as call_directly
from tests.training.studies import RULES, make_study

pytestmark = pytest.mark.usefixtures("prefect_api")

NUM_PAIRS = 10
ScoreFlow = Callable[..., State[Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scoring")
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    make_model(folder / "model")
    return folder


@pytest.fixture
def start(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScoreFlow:
    """The flow on the small study, three shards, in a folder of this test; retries at once."""
    monkeypatch.setattr(stage, "_RETRY_DELAYS_SECONDS", [0.0])

    def run_it(*, retries: int = 2) -> State[Any]:
        config = ScoreConfig(
            study=made / "study", model=str(made / "model"), out=tmp_path / "scores", shard_size=4
        )
        return score(config, ScoringAttempts(retries=retries), return_state=True)

    return run_it


def break_at(monkeypatch: pytest.MonkeyPatch, index: int, *errors: Exception) -> None:
    """Let the scoring raise at a shard, an error for each time that it gets there."""
    left = list(errors)
    score = scoring_run._score

    def breaking(*how):
        if how[-2].index == index and left:
            raise left.pop(0)
        return score(*how)

    monkeypatch.setattr(scoring_run, "_score", breaking)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in sorted(folder.glob("shard-*.parquet"))}


def test_the_flow_writes_the_files_of_the_command_and_shows_the_heads(start, made, tmp_path):
    state = start()
    assert state.is_completed(), state.message
    assert state.message == f"{NUM_PAIRS * 2 * 3} scores of 10 pairs: 3 shards scored, 0 reused"
    by_call = call_directly(made / "study", made / "model", out=tmp_path / "by-call", shard_size=4)
    assert digests(tmp_path / "scores") == digests(by_call.out)
    shown = artifact("head-accuracy")
    rows = json.loads(shown.data)
    assert [row["head"] for row in rows] == list(RULES)
    assert all(row["half"] == row["strict"] for row in rows)  # no ties among random scores
    assert "Scores of 10 pairs" in shown.description
    assert start().message.endswith("0 shards scored, 3 reused")


def test_a_retry_goes_on_from_the_shards_that_are_done(start, monkeypatch):
    break_at(monkeypatch, 2, RuntimeError("the device fell off the bus"), OSError("a cable"))
    state = start(retries=2)
    assert state.message.endswith("1 shards scored, 2 reused")


def test_what_a_retry_cannot_mend_is_tried_once(start, monkeypatch):
    break_at(monkeypatch, 1, InputError("pair abc: refused"))  # another attempt would succeed
    error = error_of(start(retries=3))
    assert isinstance(error, StudyIncompleteError)
    assert "1 of 3 shards failed, first 1: InputError: pair abc: refused" in str(error)
    assert start().message.endswith("1 shards scored, 2 reused")
