"""Studies and a reward model for commands, and the commands in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from encore.judges.judge_options import JudgeConfig
from encore.model.saved_model import save_model
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import rate
from tests.golden import command_line
from tests.golden.command_line import Finished
from tests.worlds.models import opened_model
from tests.worlds.studies import numbered_pairs, study_of
from tests.worlds.tiny_judge import make_tiny_judge

NUM_PAIRS = 6

Run = Callable[..., Finished]


@pytest.fixture
def encore() -> Run:
    """Return a function that runs a command: `encore("status", study)`."""
    return command_line.encore


@pytest.fixture(scope="session")
def judge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tiny real judge."""
    return make_tiny_judge(tmp_path_factory.mktemp("judge") / "tiny", max_model_len=1024)


@pytest.fixture(scope="session")
def made_studies(judge_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make two studies with the same few pairs: ``fresh``, and ``rated`` in two shards."""
    folder = tmp_path_factory.mktemp("studies")
    study_of(numbered_pairs(NUM_PAIRS), folder / "fresh")
    shutil.copytree(folder / "fresh", folder / "rated")
    judge = JudgeConfig(model=str(judge_folder), backend="transformers")
    rate(folder / "rated", RatingConfig(judge=judge, shard_size=4))
    return folder


@pytest.fixture
def study(made_studies: Path, tmp_path: Path) -> Path:
    """Copy a study with a few pairs and no ratings."""
    return Path(shutil.copytree(made_studies / "fresh", tmp_path / "study"))


@pytest.fixture
def rated(made_studies: Path, tmp_path: Path) -> Path:
    """Copy a study with the same pairs, rated in two shards by the tiny judge."""
    return Path(shutil.copytree(made_studies / "rated", tmp_path / "rated"))


@pytest.fixture(scope="session")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a reward model with the heads `tests.worlds.models.RULES`."""
    folder, opened = tmp_path_factory.mktemp("reward") / "model", opened_model()
    save_model(folder, opened.model, opened.tokenizer, metadata={"run_key": "0123"})
    return folder
