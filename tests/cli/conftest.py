"""Run the `encore` command in this process and see what a shell would see."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from encore.data.ingestion import ingest
from encore.judges.judge_config import JudgeConfig
from encore.rating.rate_study import rate
from encore.rating.rating_config import RatingConfig
from tests.golden import command_line
from tests.golden.command_line import Finished
from tests.rating.test_rating_run import write_source
from tests.worlds.tiny_judge import make_tiny_judge

NUM_PAIRS = 6


Run = Callable[..., Finished]


@pytest.fixture
def encore() -> Run:
    """`encore("status", study)` runs that command."""
    return command_line.encore


@pytest.fixture(scope="session")
def judge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny real judge."""
    return make_tiny_judge(tmp_path_factory.mktemp("judge") / "tiny", max_model_len=1024)


@pytest.fixture(scope="session")
def made_studies(judge_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies with the same few pairs: ``fresh``, and ``rated`` in two shards."""
    folder = tmp_path_factory.mktemp("studies")
    ingest([f"mine={write_source(folder, num_pairs=NUM_PAIRS)}"], out=folder / "fresh")
    shutil.copytree(folder / "fresh", folder / "rated")
    judge = JudgeConfig(model=str(judge_folder), backend="transformers")
    rate(folder / "rated", RatingConfig(judge=judge, shard_size=4))
    return folder


@pytest.fixture
def study(made_studies: Path, tmp_path: Path) -> Path:
    """A study with a few pairs and no ratings."""
    return Path(shutil.copytree(made_studies / "fresh", tmp_path / "study"))


@pytest.fixture
def rated(made_studies: Path, tmp_path: Path) -> Path:
    """A study with the same pairs, rated in two shards by the tiny judge."""
    return Path(shutil.copytree(made_studies / "rated", tmp_path / "rated"))
