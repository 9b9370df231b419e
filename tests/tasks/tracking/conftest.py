"""Fixtures of MLflow tests: a study with a store of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.tracking.store_uri import TRACKING_URI_VARIABLE
from tests.tasks.tracking.mlflow_store import Logged, copy_store
from tests.tasks.tracking.study_files import make_study

#: The experiment of the tables that `study_files.benchmark` writes.
TABLES = "encore-generic-1.0-d1d1d1d1"


@pytest.fixture
def study(tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a study with an empty store of its own."""
    monkeypatch.delenv(TRACKING_URI_VARIABLE, raising=False)
    study = make_study(tmp_path / "study")
    copy_store(mlflow_template, study / "mlflow.db")
    return study


def logged(study: Path, experiment: str = "encore") -> Logged:
    """Return an experiment of a study's own store."""
    return Logged(f"sqlite:///{study / 'mlflow.db'}", experiment=experiment)
