"""A study with hostile texts, and its page behind a port; no test changes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.tables.browse.studies import browsing, write_hostile_study


@pytest.fixture(scope="session")
def hostile_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hostile_study(tmp_path_factory.mktemp("browse"))


@pytest.fixture(scope="session")
def browsed(hostile_study: Path) -> Iterator[httpx.Client]:
    with browsing(hostile_study) as client:
        yield client
