"""Write a report to disk: the page, and each of its figures as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from encore.data.study import MARKER
from encore.errors import EncoreError, InputError
from encore.files import atomic_write_bytes
from encore.report import rule_charts, weight_charts
from encore.report.drawing import Chart, DrawnChart, Missing, draw_chart
from encore.report.findings import BENCHMARK_FIGURE, Findings, gather
from encore.report.interval_charts import interval_chart
from encore.report.page import page_notes, render_page
from encore.report.words import printable
from encore.warehouse import open_ratings

PAGE_NAME = "report.html"
FIGURES_FOLDER = "figures"
REPORTS_FOLDER = "reports"
#: File name -> its title and how it is made, in the order of the page.
CHARTS: dict[str, tuple[str, Callable[[Findings], Chart | Missing]]] = {
    "entropy-accuracy": ("Entropy against accuracy", rule_charts.entropy_accuracy),
    "correlations": ("Correlation of entropy with accuracy", rule_charts.correlations),
    "rating-histograms": ("How each rule's ratings are spread", rule_charts.rating_histograms),
    "ties": ("Who wins: chosen, rejected, or neither", rule_charts.ties),
    "rule-agreement": ("Do rules decide alike?", rule_charts.rule_agreement),
    "scheme-weights": ("Weights by scheme", weight_charts.scheme_weights),
    "scheme-accuracy": ("Accuracy by scheme", weight_charts.scheme_accuracy),
    "tau-sweep": ("What the temperature does", weight_charts.tau_sweep),
}
_FORMATS = ("svg", "png")
_SYNTHETIC_MARK = "SYNTHETIC: made by a program, no evidence for or against anything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was written.

    Attributes:
        page: The HTML file.
        figures: The files of each figure by its name, then by its format.
        missing: Why a figure is not there, by its name.
        findings: What it says.
        notes: What limits it, as sentences.
    """

    page: Path
    figures: Mapping[str, Mapping[str, Path]]
    missing: Mapping[str, str]
    findings: Findings
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore report --json``."""
        origin, analysis = self.findings.provenance, self.findings.analysis
        figures = {
            name: {one: str(path) for one, path in files.items()}
            for name, files in self.figures.items()
        }
        return {
            "page": str(self.page),
            "figures": figures,
            "missing": dict(self.missing),
            "run_key": origin.run_key,
            "judge": origin.judge,
            "synthetic": list(origin.synthetic),
            "num_pairs": origin.num_pairs,
            "num_ratings": origin.num_ratings,
            "num_nulls": origin.num_nulls,
            "num_shards": analysis.num_shards,
            "num_missing_shards": analysis.num_missing_shards,
            "verdicts": [
                {name: getattr(one, name) for name in ("source", "entropy", "verdict", "reason")}
                for one in analysis.verdicts
            ],
            "notes": list(self.notes),
        }


def report(
    ratings: str | Path | Any,
    *,
    out: str | Path,
    run: str | None = None,
    judge: str | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Report:
    """Write a report on some ratings into a folder: ``report.html`` and ``figures/``.

    A report that is there already is replaced. The same ratings give the same bytes.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        out: The folder; made if it is not there.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.
        on_step: Called with what is being done.

    Raises:
        InputError: Not a ratings table, or ``out`` is a file.
        EncoreError: The packages that draw are not installed.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder}: this is a file; name a folder for the report")
    absent = [package for package in ("matplotlib", "jinja2") if find_spec(package) is None]
    if absent:
        raise EncoreError(
            f"a report needs {' and '.join(absent)}, which is not installed: "
            "pip install 'encore-reward[report]'"
        )
    findings = gather(ratings, run=run, judge=judge, on_step=on_step)
    drawn = draw_all(findings, on_step=on_step)
    html = render_page(findings, drawn)
    figures = _write_figures(folder / FIGURES_FOLDER, drawn)
    # Last, so that a page that is there has its figures.
    atomic_write_bytes(folder / PAGE_NAME, html.encode())
    return Report(
        page=folder / PAGE_NAME,
        figures=figures,
        missing={name: chart.reason for name, chart in drawn.items() if isinstance(chart, Missing)},
        findings=findings,
        notes=page_notes(findings, drawn),
    )


def default_folder(ratings: Path, *, run: str | None = None, judge: str | None = None) -> Path:
    """Where a report goes if nobody says: into the study of its run, else to ``report`` here.

    Raises:
        InputError: Nothing there, or several runs and none chosen.
    """
    source = open_ratings(ratings, run=run, judge=judge)
    run_dir = source.files[0].parent if source.is_validated else Path()
    study = run_dir.parent.parent
    if not source.is_validated or not (study / MARKER).is_file():  # a run's folder was copied
        return Path("report")
    return study / REPORTS_FOLDER / run_dir.name


def draw_all(
    findings: Findings, *, on_step: Callable[[str], None] = lambda _: None
) -> dict[str, DrawnChart | Missing]:
    """Every figure by name: drawn, or why it is missing."""
    charts: dict[str, tuple[str, Chart | Missing, bool]] = {
        name: (title, make(findings), bool(findings.provenance.synthetic))
        for name, (title, make) in CHARTS.items()
    }
    for name, table in findings.benchmarks.items():
        if isinstance(table, Missing):
            charts[name] = ("A table that cannot be read", table, False)
        else:  # marked by what of the table itself is synthetic, whatever the ratings are
            title = f"{printable(table.benchmark.headline)}: {printable(table.benchmark.name)}"
            charts[name] = (title, interval_chart(table), bool(table.synthetic_parts))
    drawn: dict[str, DrawnChart | Missing] = {}
    for name, (title, chart, is_synthetic) in charts.items():
        on_step(f"drawing {name}")
        if isinstance(chart, Missing):
            drawn[name] = Missing(title=title, reason=chart.reason)
        else:
            mark = _SYNTHETIC_MARK if is_synthetic else None
            drawn[name] = draw_chart(chart, title=title, mark=mark)
    return drawn


def _write_figures(
    folder: Path, drawn: Mapping[str, DrawnChart | Missing]
) -> dict[str, dict[str, Path]]:
    """The files of each figure; those of an older report that are missing now are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = {name: one for name, one in drawn.items() if not isinstance(one, Missing)}
    older = [*CHARTS, *(path.stem for path in folder.glob(f"{BENCHMARK_FIGURE}*"))]
    for name in set(older) - charts.keys():
        for suffix in _FORMATS:
            (folder / f"{name}.{suffix}").unlink(missing_ok=True)
    figures: dict[str, dict[str, Path]] = {}
    for name, chart in charts.items():
        figures[name] = {suffix: folder / f"{name}.{suffix}" for suffix in _FORMATS}
        atomic_write_bytes(figures[name]["svg"], chart.svg)
        atomic_write_bytes(figures[name]["png"], chart.png)
    return figures
