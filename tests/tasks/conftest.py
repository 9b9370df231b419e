"""What tests of the tracker share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.mlflow_store import copied, new_template


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_template(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture
def store_uri(_template: Path, tmp_path: Path) -> str:
    """A real MLflow store of this test alone."""
    return copied(_template, tmp_path / "mlflow.db")
