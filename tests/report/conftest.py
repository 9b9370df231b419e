"""Findings, drawings and pages that several test modules look at; made once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from encore.report.drawing import DrawnChart, Missing
from encore.report.findings import Findings, gather
from encore.report.page import render_page
from encore.report.write_report import draw_all
from tests.report.studies import some_ratings, write_rated_study


@pytest.fixture(scope="session")
def findings() -> Findings:
    """What there is to say about two sources under six rules."""
    return gather(some_ratings())


@pytest.fixture(scope="session")
def drawn(findings: Findings) -> Mapping[str, DrawnChart | Missing]:
    """All its figures."""
    return draw_all(findings)


@pytest.fixture(scope="session")
def html(findings: Findings, drawn: Mapping[str, DrawnChart | Missing]) -> str:
    """Its page."""
    return render_page(findings, drawn)


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study; read only."""
    return write_rated_study(tmp_path_factory.mktemp("report") / "my-study")
