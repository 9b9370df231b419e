"""Findings, drawings and pages that several test modules look at; made once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from encore.report import write_report
from encore.report.drawing import Chart, DrawnChart, Missing, Theme
from encore.report.findings import Findings, gather
from encore.report.page import render_page
from encore.report.write_report import draw_all
from tests.report.studies import some_ratings, write_rated_study

THEMES: tuple[Theme, ...] = ("light", "dark")


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Figures are empty, for tests that look at words and files alone."""

    def not_drawn(chart: Chart, *, title: str, mark: str | None = None) -> DrawnChart:
        uris = {theme: ("data:image/svg+xml;base64,",) * len(chart.panels) for theme in THEMES}
        svg, png = (mark or "").encode(), b"\x89PNG"
        return DrawnChart(
            chart=chart, title=title, panels=uris, svg=svg, png=png, missing_glyphs=()
        )

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
