"""The report on a study with benchmark tables: its rows, sorted, with what must be read beside."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from encore.benchmarks.table import BenchmarkTable, read_table, table_folders
from encore.report.drawing import DrawnChart, Missing
from encore.report.findings import Findings, gather
from encore.report.interval_charts import interval_chart
from encore.report.page import render_page
from encore.report.write_report import draw_all, report
from tests.benchmarks.stored_world import every_row, model_row, real_pairs, write_run
from tests.report.conftest import nothing_drawn
from tests.report.studies import write_rated_study
from tests.report.test_page import Parsed

pytestmark = pytest.mark.usefixtures("quick")
PAIRS = real_pairs()
KEYS = ("a" * 16, "b" * 16)
HOSTILE = "<script>alert(1)</script>\u202e"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables; the second is partial and synthetic, and a row of it has a hostile name."""
    study = write_rated_study(
        tmp_path_factory.mktemp("report") / "study",
        titles=("Calm", "Kind", "Open"),
        sources=("hh",),
        num_pairs=60,
    )
    write_run(study, every_row(PAIRS), pairs=PAIRS, key=KEYS[0])
    wins = [1.0] * 10 + [0.0] * (PAIRS.num_pairs - 10)
    rows = [model_row("first", wins, pairs=PAIRS), model_row(HOSTILE, wins[::-1], pairs=PAIRS)]
    partial = replace(PAIRS, is_partial=True)
    write_run(study, rows, pairs=partial, key=KEYS[1], synthetic=["every <b>pair</b>"])
    return study


@pytest.fixture(scope="module")
def findings(study: Path) -> Findings:
    return gather(study)


@pytest.fixture(scope="module")
def drawn(findings: Findings) -> Mapping[str, DrawnChart | Missing]:
    with nothing_drawn():
        return draw_all(findings)


@pytest.fixture(scope="module")
def html(findings: Findings, drawn: Mapping[str, DrawnChart | Missing]) -> str:
    return render_page(findings, drawn)


@pytest.fixture
def table(study: Path) -> BenchmarkTable:
    return read_table(table_folders(study)[0])


def test_every_table_of_the_study_has_a_figure_in_a_section_of_its_own(html: str) -> None:
    section = html[html.index('<section id="benchmarks">') :]
    assert section.count('<figure id="benchmark-') == 2
    assert '<a href="#benchmarks">' in html


def test_rows_are_sorted_and_all_of_them_in_the_table(table: BenchmarkTable) -> None:
    chart = interval_chart(table)
    assert len(chart.table.rows) == len(table.rows)
    scores = [float(row[1].removesuffix(" %")) for row in chart.table.rows]
    assert scores == sorted(scores, reverse=True)
    by_name = {row.name: row for row in table.rows}
    for name, _, _, difference, *_ in chart.table.rows:
        found = by_name[name].own.comparison
        expected = "–" if found is None else f"{100 * found.difference:+.1f}".replace("-", "−")
        assert difference.lstrip("+") == expected.lstrip("+")


def test_drawn_are_the_papers_methods_and_models_not_one_line_for_each_rule(
    table: BenchmarkTable, html: str
) -> None:
    leading = [row for row in table.rows if row.own.method is not None or row.kind != "scheme"]
    assert {"uniform", "encore (τ 2)", "initial"} <= {row.name for row in leading}
    assert not [row for row in leading if row.name.startswith("single: ")]
    chart = interval_chart(table)
    assert f"{len(leading)} rows on" in chart.panels[0].alt
    assert f"{len(table.rows) - len(leading)} further rows: in the table." in Parsed(html).text
    # Where nothing leads, everything is drawn.
    rest = tuple(row for row in table.rows if row not in leading)
    others = table.model_copy(update={"rows": rest})
    assert f"{len(others.rows)} rows on" in interval_chart(others).panels[0].alt


def test_what_is_synthetic_or_partial_is_said_beside_the_figures(html: str) -> None:
    first, second = html.split('<figure id="benchmark-')[1:]
    for mark in ("<strong>SYNTHETIC</strong>", "<strong>PARTIAL</strong>"):
        assert mark not in first
        assert mark in second
    assert "every &lt;b&gt;pair&lt;/b&gt;" in second


def test_the_tables_notes_are_there(html: str, table: BenchmarkTable) -> None:
    text = Parsed(html).text
    assert table.notes
    for note in table.notes:
        assert note[1:].rstrip(".") in text


def test_names_of_rows_stay_text(html: str) -> None:
    assert "alert(1)</script>" not in html
    assert "\u202e" not in html
    assert "<script>alert(1)</script>\\u202e" in Parsed(html).text


def test_a_synthetic_table_is_marked_in_its_file_too(
    findings: Findings, drawn: Mapping[str, DrawnChart | Missing]
) -> None:
    assert not findings.provenance.synthetic
    marked = {}
    for name in ("benchmark-1", "benchmark-2"):
        figure = drawn[name]
        assert not isinstance(figure, Missing)
        marked[name] = b"SYNTHETIC" in figure.svg
    assert marked == {"benchmark-1": False, "benchmark-2": True}


def test_a_table_that_cannot_be_read_costs_its_figure_alone(study: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(study, tmp_path / "study"))
    (copied / "benchmarks" / KEYS[0] / "table.json").write_text("{}", encoding="utf-8")
    written = report(copied, out=tmp_path / "out")
    assert "no table of a benchmark" in written.missing["benchmark-1"]
    assert set(written.figures) >= {"benchmark-2", "ties"}
    page = written.page.read_text(encoding="utf-8")
    assert "no table of a benchmark" in page


def test_a_study_without_benchmarks_has_no_such_section_and_no_figures_of_an_older_one(
    study: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(study, tmp_path / "study"))
    first = report(copied, out=tmp_path / "out")
    assert {"benchmark-1", "benchmark-2"} <= set(first.as_dict()["figures"])
    assert (tmp_path / "out/figures/benchmark-1.svg").is_file()
    shutil.rmtree(copied / "benchmarks")
    page = report(copied, out=tmp_path / "out").page.read_text(encoding="utf-8")
    assert "benchmarks" not in Parsed(page).text.casefold()
    assert not re.findall(r'id="benchmark', page)
    assert not list((tmp_path / "out/figures").glob("benchmark-*"))
