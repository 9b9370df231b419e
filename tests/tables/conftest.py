"""Rated studies and a page of one, which tests only read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.tables.browse.studies import browsing
from tests.tables.sql.studies import make_pairs, rate_study


@pytest.fixture(scope="session")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a study rated by one judge."""
    study = make_pairs(tmp_path_factory.mktemp("one"))
    rate_study(study)
    return study


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a study rated by judges "one" and "two"."""
    study = make_pairs(tmp_path_factory.mktemp("two"))
    rate_study(study, judge="one")
    rate_study(study, judge="two")
    return study


@pytest.fixture(scope="session")
def browsed(hostile_study: Path) -> Iterator[httpx.Client]:
    """Serve the page of the hostile study; yield a client of it."""
    with browsing(hostile_study) as client:
        yield client
