"""Put findings and drawings into one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.benchmarks.stored_tables import StoredTable
from encore.report.drawing import Chart, DataTable, DrawnChart, Missing, Theme, missing
from encore.report.findings import Findings
from encore.report.rule_table import rule_table
from encore.report.words import NONE, count, number, p_value, percent, plural, printable

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"
_LOOSE_PERCENT = re.compile(r"(?<=\d) %")
_LOOKS = {"reproduced": "yes", "not reproduced": "no", "depends on ties": "ties"}
#: What a figure that cannot be drawn is called, by section in the order of the page.
FIGURES: dict[str, dict[str, str]] = {
    "claim": {
        "entropy-accuracy": "Entropy against accuracy",
        "correlations": "Correlation of entropy with accuracy",
    },
    "rules": {
        "rating-histograms": "How each rule's ratings are spread",
        "ties": "Who wins: chosen, rejected, or neither",
        "rule-agreement": "Do rules decide alike?",
    },
    "weights": {
        "scheme-weights": "Weights by scheme",
        "scheme-accuracy": "Accuracy by scheme",
        "tau-sweep": "What the temperature does",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePart:
    """A figure in its place on the page: drawn, or the reason why not.

    ``marks`` are a word and a sentence each that must be read with the figures, ``notes`` further
    sentences about them.
    """

    name: str
    title: str
    chart: Chart | None = None
    drawings: Mapping[Theme, Sequence[str]]
    reason: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def render_page(findings: Findings, drawn: Mapping[str, DrawnChart | Missing]) -> str:
    """The page as HTML; the same text for the same findings and drawings.

    Args:
        findings: What there is to say.
        drawn: Every figure by name, drawn or missing.
    """
    from markupsafe import Markup

    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = (_TEMPLATES / "script.js").read_text(encoding="utf-8")
    figures = {
        section: [_part(name, title, drawn[name]) for name, title in titles.items()]
        for section, titles in FIGURES.items()
    }
    template = _environment().get_template("page.html")
    return template.render(
        findings=findings,
        policy=_policy(style, script),
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        lead=_lead(findings),
        figures=figures,
        benchmarks=[
            _benchmark_part(name, table, drawn[name]) for name, table in findings.benchmarks.items()
        ],
        verdicts=list(_cards(findings)),
        numbers=list(_numbers(findings)),
        rule_table=rule_table(findings),
        paper=_paper(findings),
        has_paper=any(row.our_value is not None for row in findings.analysis.paper),
        notes=page_notes(findings, drawn),
        counts=list(_counts(findings)),
    )


def page_notes(findings: Findings, drawn: Mapping[str, DrawnChart | Missing]) -> tuple[str, ...]:
    """What limits the figures and their files, as sentences."""
    notes = [_sentence(note) for note in findings.notes]
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


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        """Make visible what a text hides, and keep a number and its per cent sign together."""
        if not isinstance(value, str) or isinstance(value, Markup):
            return value
        return _LOOSE_PERCENT.sub("\N{NO-BREAK SPACE}%", printable(value))

    loader = FileSystemLoader(_TEMPLATES)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=shown)


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded, and nothing run or styled but what the page was written with."""
    digests = [hashlib.sha256(text.encode()).digest() for text in (style, script)]
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    return (
        f"default-src 'none'; img-src data:; style-src {hashes[0]}; script-src {hashes[1]}; "
        "base-uri 'none'; form-action 'none'"
    )


def _part(name: str, title: str, drawn: DrawnChart | Missing, **more: Any) -> FigurePart:
    if isinstance(drawn, Missing):
        return FigurePart(name=name, title=title, reason=drawn.reason, drawings={})
    chart = drawn.chart
    return FigurePart(name=name, title=chart.title, chart=chart, drawings=drawn.panels, **more)


def _benchmark_part(
    name: str, table: StoredTable | Missing, drawn: DrawnChart | Missing
) -> FigurePart:
    if isinstance(table, Missing):
        return _part(name, "A table that cannot be read", table)
    marks, parts = [], table.synthetic_parts
    if parts:
        more = f", and {plural(len(parts) - 1, 'thing')} more, see the notes" if parts[1:] else ""
        sentence = f"{parts[0]}{more}. Read these figures as an example, not as evidence."
        marks.append(("SYNTHETIC", _sentence(sentence)))
    if table.is_partial:
        marks.append(("PARTIAL", "Not all pairs of the benchmark: no figure compares with others."))
    notes = [*(f"synthetic: {part}" for part in parts), *table.notes]
    return _part(name, "", drawn, marks=tuple(marks), notes=tuple(map(_sentence, notes)))


def _sentence(text: str) -> str:
    return missing(text).reason


def _lead(findings: Findings) -> str:
    origin = findings.provenance
    words = [
        plural(len(findings.rules), "rule"),
        plural(origin.num_pairs, "pair"),
        plural(origin.num_ratings, "rating"),
        "" if origin.judge is None else f"judge {origin.judge}",
        "" if origin.run_key is None else f"run {origin.run_key}",
    ]
    return " · ".join(filter(None, words))


def _cards(findings: Findings) -> Iterator[dict[str, str]]:
    """The verdict on each drawn source."""
    for source in findings.drawn_sources:
        verdicts = {verdict.entropy: verdict for verdict in findings.verdicts(source)}
        main, other = verdicts.get("discrete"), verdicts.get("differential")
        if main is not None:
            yield {
                "where": findings.source_name(source),
                "word": main.verdict,
                "reason": _sentence(main.reason),
                "other": ""
                if other is None
                else f"With differential (KDE) entropy: {other.verdict}.",
                "look": _LOOKS[main.verdict],
            }


def _numbers(findings: Findings) -> Iterator[tuple[str, str]]:
    rules = findings.pooled
    yield "entropy of rules", _range([rule.entropy_nats for rule in rules], 2, "nats")
    for name, shares in (
        ("accuracy, ties half", [rule.accuracy.half for rule in rules]),
        ("accuracy, untied", [rule.accuracy.untied for rule in rules]),
        ("ties", [rule.tie_rate for rule in rules]),
    ):
        yield name, _range([None if one is None else 100 * one for one in shares], 0, "%")
    yield "null ratings", _null_share(findings)


def _range(values: Sequence[float | None], digits: int, unit: str) -> str:
    known = [value for value in values if value is not None]
    ends = [number(end, digits=digits) for end in (min(known), max(known))] if known else []
    return f"{ends[0]} to {ends[1]} {unit}" if ends else NONE


def _null_share(findings: Findings) -> str:
    origin = findings.provenance
    total = origin.num_nulls + origin.num_ratings
    return percent(origin.num_nulls / total if total else None, digits=2)


def _counts(findings: Findings) -> Iterator[tuple[str, str]]:
    origin = findings.provenance
    sources = [
        f"{findings.source_name(source)} {count(max(rule.num_pairs_total for rule in rules))}"
        for source in findings.sources[1:]
        if (rules := findings.of_source(source))
    ]
    yield "pairs", count(origin.num_pairs) + (f" ({', '.join(sources)})" if sources else "")
    yield "ratings", count(origin.num_ratings)
    why = ""
    if origin.num_nulls and origin.null_reasons is None:
        why = ", why is not recorded"
    elif origin.num_nulls and origin.null_reasons:
        words = (f"{one.replace('_', ' ')} {count(num)}" for one, num in origin.null_reasons)
        why = f": {', '.join(words)}"
    yield "nulls", f"{count(origin.num_nulls)} ({_null_share(findings)}){why}"


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
