"""Findings that several test modules look at, and reports without drawings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from encore.reports import write_report
from encore.reports.figure_drawing import Chart, DrawnChart, DrawnPanel
from encore.reports.findings import Findings, gather
from tests.reports.studies import some_ratings


@contextmanager
def without_drawing() -> Iterator[None]:
    """Leave figures empty, for tests of texts and files alone."""

    def empty_chart(
        chart: Chart, *, title: str, mark: str | None = None, **_: object
    ) -> DrawnChart:
        panels = [DrawnPanel("data:image/svg+xml;base64,")] * len(chart.panels)
        files = {"svg": (mark or "").encode(), "png": b"\x89PNG"}
        return DrawnChart(chart=chart, title=title, panels=panels, files=files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_report, "draw_chart", empty_chart)
        yield


@pytest.fixture
def quick() -> Iterator[None]:
    """Leave the figures of a test's reports empty."""
    with without_drawing():
        yield


@pytest.fixture(scope="session")
def findings() -> Findings:
    """Return the findings on two sources under six rules."""
    return gather(some_ratings())
