"""Write a report to disk: the page, and each of its figures as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from encore.benchmarks.stored_tables import StoredTable
from encore.data.study import MARKER
from encore.errors import EncoreError, InputError
from encore.files import atomic_write_bytes
from encore.ratings_input import ratings_input
from encore.report.canvas import DrawnChart, draw_chart
from encore.report.chart import Missing
from encore.report.charts import CHARTS
from encore.report.charts.benchmark_rows import benchmark_rows
from encore.report.findings import BENCHMARK_FIGURE, Findings, benchmark_figures
from encore.report.gather import StepHook, gather
from encore.report.page import page_notes, render_page

PAGE_NAME = "report.html"
FIGURES_FOLDER = "figures"
REPORTS_FOLDER = "reports"
_FORMATS = ("svg", "png")
_SYNTHETIC_MARK = "SYNTHETIC: made by a program, no evidence for or against anything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was written.

    Attributes:
        page: The HTML file.
        figures: The files of each figure by its name.
        missing: Why a figure is not there, by its name.
        findings: What it says.
        notes: What limits it, as sentences.
    """

    page: Path
    figures: Mapping[str, tuple[Path, ...]]
    missing: Mapping[str, str]
    findings: Findings
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore report --json``."""
        findings = self.findings
        return {
            "page": str(self.page),
            "figures": {
                name: {path.suffix.removeprefix("."): str(path) for path in paths}
                for name, paths in self.figures.items()
            },
            "missing": dict(self.missing),
            "run_key": findings.provenance.run_key,
            "judge": findings.provenance.judge,
            "synthetic": list(findings.provenance.synthetic),
            "num_pairs": findings.provenance.num_pairs,
            "num_ratings": findings.provenance.num_ratings,
            "num_nulls": findings.provenance.num_nulls,
            "num_shards": findings.analysis.num_shards,
            "num_missing_shards": findings.analysis.num_missing_shards,
            "verdicts": [
                {
                    "source": verdict.source,
                    "entropy": verdict.entropy,
                    "verdict": verdict.verdict,
                    "reason": verdict.reason,
                }
                for verdict in findings.analysis.verdicts
            ],
            "notes": list(self.notes),
        }


def report(
    ratings: str | Path | Any,
    *,
    out: str | Path,
    run: str | None = None,
    judge: str | None = None,
    on_step: StepHook = lambda _: None,
) -> Report:
    """Write a report on some ratings into a folder: ``report.html`` and ``figures/``.

    A report that is there already is replaced. The same ratings give the same bytes.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        out: The folder; made if it is not there.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.
        on_step: Told what is being done.

    Raises:
        InputError: Not a ratings table, or ``out`` is a file.
        EncoreError: The packages that draw are not installed.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder}: this is a file; name a folder for the report")
    _require("matplotlib", "jinja2")
    findings = gather(ratings, run=run, judge=judge, on_step=on_step)
    drawn = draw_all(findings, on_step=on_step)
    html = render_page(findings, drawn)
    figures_dir = folder / FIGURES_FOLDER
    figures_dir.mkdir(parents=True, exist_ok=True)
    _remove_others(figures_dir, keep=drawn)
    figures = {name: _write_figure(figures_dir, name, chart) for name, chart in drawn.items()}
    # Last, so that a page that is there has its figures.
    atomic_write_bytes(folder / PAGE_NAME, html.encode())
    return Report(
        page=folder / PAGE_NAME,
        figures={name: paths for name, paths in figures.items() if paths},
        missing={name: chart.reason for name, chart in drawn.items() if isinstance(chart, Missing)},
        findings=findings,
        notes=page_notes(findings, drawn),
    )


def default_folder(ratings: Path, *, run: str | None = None, judge: str | None = None) -> Path:
    """Where a report goes if nobody says: into the study of its run, else to ``report`` here.

    Raises:
        InputError: Nothing there, or several runs and none chosen.
    """
    source = ratings_input(ratings, run=run, judge=judge)
    if not source.is_validated:
        return Path("report")
    run_dir = source.files[0].parent
    study = run_dir.parent.parent
    if not (study / MARKER).is_file():  # a run's folder, copied to somewhere else
        return Path("report")
    return study / REPORTS_FOLDER / run_dir.name


def draw_all(
    findings: Findings, *, on_step: StepHook = lambda _: None
) -> dict[str, DrawnChart | Missing]:
    """Every chart by name: drawn, or why it is missing."""
    mark = _SYNTHETIC_MARK if findings.provenance.is_synthetic else None
    drawn: dict[str, DrawnChart | Missing] = {}
    for name, make in CHARTS.items():
        on_step(f"drawing {name}")
        chart = make(findings)
        drawn[name] = chart if isinstance(chart, Missing) else draw_chart(chart, mark=mark)
    for name, table in benchmark_figures(findings).items():
        on_step(f"drawing {name}")
        drawn[name] = table if isinstance(table, Missing) else _draw_table(table, name=name)
    return drawn


def _draw_table(table: StoredTable, *, name: str) -> DrawnChart:
    """Marked by what of the table itself is synthetic, whatever the ratings are."""
    mark = _SYNTHETIC_MARK if table.synthetic_parts else None
    return draw_chart(benchmark_rows(table, name=name), mark=mark)


def _write_figure(folder: Path, name: str, chart: DrawnChart | Missing) -> tuple[Path, ...]:
    """The files of a figure; of one that is missing, an older report's files are removed."""
    paths = tuple(folder / f"{name}.{suffix}" for suffix in _FORMATS)
    if isinstance(chart, Missing):
        for path in paths:
            path.unlink(missing_ok=True)
        return ()
    for path, content in zip(paths, (chart.svg, chart.png), strict=True):
        atomic_write_bytes(path, content)
    return paths


def _remove_others(folder: Path, *, keep: Mapping[str, object]) -> None:
    """Figures of benchmark tables that an older report had and this one has not."""
    for path in folder.glob(f"{BENCHMARK_FIGURE}*"):
        if path.suffix.removeprefix(".") in _FORMATS and path.stem not in keep:
            path.unlink()


def _require(*packages: str) -> None:
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        raise EncoreError(
            f"a report needs {' and '.join(absent)}, which is not installed: "
            "pip install 'encore-reward[report]'"
        )
