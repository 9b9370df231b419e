"""What tests of the tracker share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.mlflow_store import new_template


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow store, to be copied."""
    return new_template(tmp_path_factory.mktemp("mlflow"))
