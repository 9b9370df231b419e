"""Rated studies that tests only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables.sql.studies import make_pairs, rate_study


@pytest.fixture(scope="session")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study rated by one judge."""
    study = make_pairs(tmp_path_factory.mktemp("one"))
    rate_study(study)
    return study


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study rated by judges "one" and "two"."""
    study = make_pairs(tmp_path_factory.mktemp("two"))
    rate_study(study, judge="one")
    rate_study(study, judge="two")
    return study
