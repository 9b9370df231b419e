"""Put findings and drawings into one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from encore.data.records import slug
from encore.report import words
from encore.report.drawing import DataTable, DrawnChart, Missing, missing
from encore.report.findings import Findings
from encore.report.interval_charts import leading_rows
from encore.report.weight_charts import scheme_name
from encore.report.words import NONE, number, p_value, plural, printable
from encore.weighting.scheme import DEFAULT_TAU

_TEMPLATES = Path(__file__).parent / "templates"
_LOOSE_PERCENT = re.compile(r"(?<=\d) %")


def render_page(findings: Findings, drawn: Mapping[str, DrawnChart | Missing]) -> str:
    """The page as HTML; the same text for the same findings and drawings.

    Args:
        findings: What there is to say.
        drawn: Every figure by name, drawn or missing.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        """Make visible what a text hides, and keep a number and its per cent sign together."""
        if not isinstance(value, str) or isinstance(value, Markup):
            return value
        return _LOOSE_PERCENT.sub("\N{NO-BREAK SPACE}%", printable(value))

    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=shown
    )
    environment.filters |= {
        **{name: getattr(words, name) for name in ("count", "number", "percent", "plural")},
        "sentence": lambda text: missing(text).reason,
        "slug": slug,
        "ends": _ends,
        "spread": _spread,
        "scheme_name": scheme_name,
        "leading": leading_rows,
    }
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = (_TEMPLATES / "script.js").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(
        findings=findings,
        drawn=drawn,
        tau=DEFAULT_TAU,
        policy=_policy(style, script),
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        paper=_paper(findings),
        has_paper=any(row.our_value is not None for row in findings.analysis.paper),
        notes=page_notes(findings, drawn),
    )


def page_notes(findings: Findings, drawn: Mapping[str, DrawnChart | Missing]) -> tuple[str, ...]:
    """What limits the figures and their files, as sentences."""
    notes = [missing(note).reason for note in findings.notes]
    charts = [chart for chart in drawn.values() if not isinstance(chart, Missing)]
    if glyphs := sorted({glyph for chart in charts for glyph in chart.missing_glyphs}):
        notes.append(
            f"The PNG files show boxes for characters that their font lacks: {' '.join(glyphs)}. "
            "The SVG files and this page show them where fonts have them."
        )
    if hidden := len(findings.sources) - len(findings.drawn_sources):
        notes.append(
            f"{plural(hidden, 'source')} with fewer pairs are in the tables, not in the drawings."
        )
    return tuple(notes)


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded, and nothing run or styled but what the page was written with."""
    digests = [hashlib.sha256(text.encode()).digest() for text in (style, script)]
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    return (
        f"default-src 'none'; img-src data:; style-src {hashes[0]}; script-src {hashes[1]}; "
        "base-uri 'none'; form-action 'none'"
    )


def _spread(values: Sequence[float | None], digits: int, unit: str) -> str:
    """The least and the greatest of some values; shares in per cent."""
    scale = 100 if unit == "%" else 1
    known = [scale * value for value in values if value is not None]
    ends = [number(end, digits=digits) for end in (min(known), max(known))] if known else []
    return f"{ends[0]} to {ends[1]} {unit}" if ends else NONE


def _ends(record: object, quantity: str, digits: int = 1, scale: int = 100) -> str:
    """The ends of an interval, as short as a narrow column wants them; neither is negative."""
    ends = [getattr(record, f"{quantity}_{end}", None) for end in ("low", "high")]
    known = [number(scale * end, digits=digits) for end in ends if end is not None]
    return "–".join(known) if len(known) == 2 else ""


def _paper(findings: Findings) -> DataTable:
    """The paper's numbers with ours beside them; ours are dashes where we have no such thing."""
    columns = ("setting", "quantity", "the paper", "here, strict", "here, half", "here, untied")
    return DataTable(
        columns=(*columns, "our source", "where in the paper", "remark"),
        rows=tuple(
            (
                row.setting,
                row.quantity,
                *(
                    p_value(value) if row.quantity.startswith("p") else number(value, digits=2)
                    for value in (row.paper_value, row.our_value, row.our_half, row.our_untied)
                ),
                NONE if row.our_source is None else findings.source_name(row.our_source),
                row.source_in_paper,
                row.remark,
            )
            for row in findings.analysis.paper
        ),
    )
