"""Findings and pages that several test modules look at; made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.report.findings import Findings
from encore.report.gather import gather
from tests.report.studies import some_ratings, write_rated_study


@pytest.fixture(scope="session")
def findings() -> Findings:
    """What there is to say about two sources under six rules."""
    return gather(some_ratings())


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study; read only."""
    return write_rated_study(tmp_path_factory.mktemp("report") / "my-study")
