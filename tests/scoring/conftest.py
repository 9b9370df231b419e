"""One small study and one small model; tests that write work on a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encore.model.open_model import OpenedModel, open_reward_model
from tests.worlds.scorings import make_model
from tests.worlds.trainings import make_study

NUM_PAIRS = 22


@pytest.fixture(scope="session")
def scoring_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds ``study`` and ``model``."""
    folder = tmp_path_factory.mktemp("scores")
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    make_model(folder / "model")
    return folder


@pytest.fixture
def study(scoring_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scoring_folder / "study", tmp_path / "study"))


@pytest.fixture(scope="session")
def model(scoring_folder: Path) -> Path:
    return scoring_folder / "model"


@pytest.fixture(scope="session")
def opened(model: Path) -> OpenedModel:
    return open_reward_model(model, device="cpu")
