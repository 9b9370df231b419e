"""Findings, drawings and pages that several test modules look at; made once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from encore.report import write_report
from encore.report.figure_drawing import Chart, DrawnChart
from encore.report.findings import Findings, gather
from tests.report.studies import some_ratings


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Figures are empty, for tests that look at words and files alone."""

    def not_drawn(chart: Chart, *, title: str, mark: str | None = None) -> DrawnChart:
        uris = ["data:image/svg+xml;base64,"] * len(chart.panels)
        files = {"svg": (mark or "").encode(), "png": b"\x89PNG"}
        return DrawnChart(chart=chart, title=title, panels=uris, files=files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_report, "draw_chart", not_drawn)
        yield


@pytest.fixture
def quick() -> Iterator[None]:
    """As `nothing_drawn`."""
    with nothing_drawn():
        yield


@pytest.fixture(scope="session")
def findings() -> Findings:
    """What there is to say about two sources under six rules."""
    return gather(some_ratings())
