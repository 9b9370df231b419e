"""Write a report: one self-contained HTML page, and its figures as SVG and PNG files."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from inspect import getmembers, isfunction
from pathlib import Path
from typing import Any

from encore.analysis.answer_options import DEFAULT_TAU
from encore.core import number_text
from encore.core.errors import InputError
from encore.core.extras import missing_package
from encore.core.files import atomic_write_bytes, remove_file
from encore.core.number_text import printable
from encore.core.shown_record import ShownRecord
from encore.data.records import slug
from encore.reports import rule_charts, weight_charts
from encore.reports.figure_drawing import FORMATS, Chart, DrawnChart, Missing, draw_chart
from encore.reports.findings import BENCHMARK_FIGURE, Findings, gather
from encore.reports.headline import headline
from encore.warehouse import Ratings, open_ratings

PAGE_NAME = "report.html"
FIGURES_FOLDER = "figures"
REPORTS_FOLDER = "reports"
#: Title of each figure and the function that makes it, by file name, in the order of the page.
CHARTS: dict[str, tuple[str, Callable[[Findings], Chart | Missing]]] = {
    "entropy-accuracy": ("Entropy against accuracy", rule_charts.entropy_accuracy),
    "rating-histograms": ("How each rule's ratings are spread", rule_charts.rating_histograms),
    "ties": ("Who wins: chosen, rejected, or neither", rule_charts.ties),
    "rule-agreement": ("Do rules decide alike?", rule_charts.rule_agreement),
    "scheme-weights": ("Weights by scheme", weight_charts.scheme_weights),
    "scheme-accuracy": ("Accuracy by scheme", weight_charts.scheme_accuracy),
    "tau-sweep": ("What the temperature does", weight_charts.tau_sweep),
}
LABEL_CURVE_FIGURE = "label-curve"
_SYNTHETIC_MARK = "SYNTHETIC: made by a program, no evidence for or against anything"
_TEMPLATES = Path(__file__).parent / "templates"

Drawn = Mapping[str, DrawnChart | Missing]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report(ShownRecord):
    """Result of `report`: the files, and the findings that they show.

    Attributes:
        page: Path of the HTML page.
        figures: Paths of each figure's files, by figure name, then by format.
        missing: Reason why a figure is missing, by figure name.
        findings: Results that the page shows.
    """

    page: Path
    figures: Mapping[str, Mapping[str, str]]
    missing: Mapping[str, str]
    findings: Findings

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``encore report --json``."""
        findings = self.findings
        return {
            "page": str(self.page),
            "figures": self.figures,
            "missing": self.missing,
            "run_key": findings.provenance.run_key,
            "judge": findings.provenance.judge,
            "synthetic": findings.provenance.synthetic,
            "num_pairs": findings.num_pairs,
            "num_ratings": findings.num_ratings,
            "num_nulls": findings.num_nulls,
            **(
                {"num_not_applicable": findings.num_not_applicable}
                if findings.num_not_applicable
                else {}
            ),
            "num_shards": findings.analysis.ratings.num_shards,
            "num_missing_shards": findings.analysis.ratings.num_missing_shards,
            "verdicts": [asdict(verdict) for verdict in findings.analysis.verdicts],
            "notes": findings.notes,
        }


def report(
    ratings: str | Path | Ratings | Any,
    out: str | Path | None = None,
    *,
    label_curve: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> Report:
    """Write a report on some ratings into a folder: ``report.html`` and ``figures/``.

    An earlier report in the folder is replaced. The same ratings give the same bytes.

    >>> report("ratings.csv", "rules.html").page.name
    'rules.html'

    Args:
        ratings: Ratings as `encore.analysis.analyze.analyze` takes them, or its result.
        out: Folder of the report; created if it does not exist. A name that ends in ``.html`` is
            the page, which is then written alone. None: ``reports/KEY`` in the study of the
            run, or ``report`` for ratings from elsewhere.
        label_curve: True adds a chart of how good weights are that learn from few labels.
        on_step: Function that receives the name of each step before it begins.

    Raises:
        InputError: Not a ratings table, or ``out`` is a file.
    """
    folder = default_folder(ratings) if out is None else Path(out)
    page, is_page_alone = folder / PAGE_NAME, folder.suffix == ".html" and not folder.is_dir()
    if is_page_alone:
        page, folder = folder, folder.parent
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder}: this is a file; name a folder for the report")
    findings = gather(ratings, label_curve=label_curve, on_step=on_step)
    drawn = draw_all(findings, on_step=on_step, formats=() if is_page_alone else FORMATS)
    html = render_page(findings, drawn)
    folder.mkdir(parents=True, exist_ok=True)
    figures = {} if is_page_alone else _write_figures(folder / FIGURES_FOLDER, drawn)
    # The page is written last, so that its figures exist when it does.
    atomic_write_bytes(page, html.encode())
    return Report(
        page=page,
        figures=figures,
        missing={name: chart.reason for name, chart in drawn.items() if isinstance(chart, Missing)},
        findings=findings,
    )


def default_folder(ratings: str | Path | Ratings) -> Path:
    """Return the default folder of a report: in the study of its run, else ``report``.

    Raises:
        InputError: There are no ratings, or two runs have most pairs and none is chosen.
    """
    opened = open_ratings(ratings)
    study = opened.study
    if study is None or opened.run_dir is None:
        return Path("report")
    return study.path / REPORTS_FOLDER / opened.run_dir.name


def page_of(run_dir: Path) -> Path:
    """Return the default page of a run's report; as ``out`` of `report` it is written alone.

    The figures as files take as long as the page itself.
    """
    return default_folder(run_dir) / PAGE_NAME


def draw_all(
    findings: Findings,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    formats: Sequence[str] = FORMATS,
) -> dict[str, DrawnChart | Missing]:
    """Draw every figure; return each by name, drawn or missing with the reason.

    Without matplotlib all of them are missing. ``formats`` are those of the figures' files.
    """
    is_synthetic = bool(findings.provenance.synthetic)
    charts: list[tuple[str, str, Chart | Missing, bool]] = [
        (name, title, make(findings), is_synthetic) for name, (title, make) in CHARTS.items()
    ]
    if findings.label_curve is not None:
        chart = weight_charts.label_curve_chart(findings.label_curve)
        charts.append((LABEL_CURVE_FIGURE, "From how many labels on?", chart, is_synthetic))
    for name, table in findings.benchmarks.items():
        if isinstance(table, Missing):
            charts.append((name, "A table that cannot be read", table, False))
        else:  # the mark depends on the table's own synthetic parts, not on the ratings'
            title = f"{printable(table.benchmark.headline)}: {printable(table.benchmark.name)}"
            is_marked = bool(table.synthetic)
            charts.append((name, title, weight_charts.interval_chart(table), is_marked))
    if find_spec("matplotlib") is None:
        absent = Missing(missing_package("a chart", "matplotlib"))
        charts = [(name, title, absent, is_marked) for name, title, _, is_marked in charts]
    drawn: dict[str, DrawnChart | Missing] = {}
    for name, title, chart, is_marked in charts:
        on_step(f"drawing {name}")
        if isinstance(chart, Missing):
            drawn[name] = Missing(chart.reason, title=title)
        else:
            mark = _SYNTHETIC_MARK if is_marked else None
            drawn[name] = draw_chart(chart, title=title, mark=mark, formats=formats)
    return drawn


def _write_figures(folder: Path, drawn: Drawn) -> dict[str, dict[str, str]]:
    """Write the files of each figure; remove surplus figures of an earlier report."""
    figures: dict[str, dict[str, str]] = {}
    for name, chart in drawn.items():
        if isinstance(chart, DrawnChart):
            folder.mkdir(exist_ok=True)
            paths = {kind: folder / f"{name}.{kind}" for kind in chart.files}
            for kind, path in paths.items():
                atomic_write_bytes(path, chart.files[kind])
            figures[name] = {kind: str(path) for kind, path in paths.items()}
    for path in [path for kind in FORMATS for path in folder.glob(f"*.{kind}")]:
        is_ours = path.stem in (*CHARTS, LABEL_CURVE_FIGURE) or path.stem.startswith(
            BENCHMARK_FIGURE
        )
        if is_ours and path.stem not in figures:
            remove_file(path)
    return figures


# --- the page -------------------------------------------------------------------------------------


def render_page(findings: Findings, drawn: Drawn) -> str:
    """Return the page as HTML. The same findings and drawings give the same text.

    Args:
        findings: Results that the page shows.
        drawn: Every figure by name, drawn or missing.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else number_text.printable(value),
    )
    environment.filters |= {
        **dict(getmembers(number_text, isfunction)),
        "slug": slug,
        "with_code": _with_code,
        "zip": zip,
        "spread": _spread,
        "scheme_name": weight_charts.scheme_name,
        "headline": headline,
        "interval_beside_half": _interval_beside_half,
        "leading": weight_charts.leading_rows,
        "correlation_table": rule_charts.correlation_table,
    }
    style, script = (
        (_TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "script.js")
    )
    # The content security policy allows only the page's own style and script.
    digests = [hashlib.sha256(text.encode()).digest() for text in (style, script)]
    style_hash, script_hash = (base64.b64encode(digest).decode() for digest in digests)
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{style_hash}'; "
        f"script-src 'sha256-{script_hash}'; base-uri 'none'; form-action 'none'"
    )
    return environment.get_template("page.html").render(
        findings=findings,
        drawn=drawn,
        tau=DEFAULT_TAU,
        policy=policy,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
    )


def _with_code(text: str) -> str:
    """Return a sentence as HTML: what stands between backticks in a terminal is set as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))  # noqa: S704 - escaped


def _spread(values: Sequence[float | None], digits: int, unit: str) -> str:
    """Return the range of some values as text; shares are in percent."""
    scale = 100 if unit == "%" else 1
    scaled = [scale * value for value in values if value is not None]
    if not scaled:
        return number_text.NONE
    return f"{number_text.interval(min(scaled), max(scaled), digits=digits)} {unit}"


def _interval_beside_half(low: float | None, high: float | None) -> str:
    """Return an interval of a share in per cent, with so many digits that no end reads 50.0."""
    if low is None or high is None:
        return number_text.NONE
    shares = [100 * low, 100 * high]
    digits = 1
    while digits < 5 and 50 in [round(share, digits) for share in shares]:
        digits += 1
    return "–".join(number_text.number(share, digits=digits) for share in shares)
