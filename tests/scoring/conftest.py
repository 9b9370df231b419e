"""One small study and one small model; tests that write work on a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encore.model.opening import OpenedModel, open_reward_model
from tests.scoring.models import make_model
from tests.training.studies import make_study

NUM_PAIRS = 22


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``study`` and ``model``."""
    folder = tmp_path_factory.mktemp("scores")
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    make_model(folder / "model")
    return folder


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "study", tmp_path / "study"))


@pytest.fixture(scope="session")
def model(made: Path) -> Path:
    return made / "model"


@pytest.fixture(scope="session")
def opened(model: Path) -> OpenedModel:
    return open_reward_model(model, device="cpu")
