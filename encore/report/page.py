"""Put findings and drawings into one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from encore.report.canvas import DrawnChart
from encore.report.chart import DataTable, Missing
from encore.report.charts.convergence import recommendations
from encore.report.findings import Findings, benchmark_figures
from encore.report.palette import PALETTE
from encore.report.rule_table import rule_table
from encore.report.words import (
    NONE,
    count,
    number,
    p_value,
    percent,
    plural,
    printable,
)

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from encore.analysis.verdicts import Verdict
    from encore.benchmarks.stored_tables import StoredTable

_TEMPLATES = Path(__file__).parent / "templates"
_LOOSE_PERCENT = re.compile(r"(?<=\d) %")
_LOOKS = {"reproduced": "yes", "not reproduced": "no", "depends on ties": "ties"}
#: How panels of a figure share its width: many small ones, or two that belong together.
_GRIDS = {"rating-histograms": "small", "entropy-accuracy": "two", "scheme-weights": "two"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """A part of the page: its figures by name."""

    anchor: str
    short: str
    title: str
    intro: str
    figures: tuple[str, ...]


_SECTIONS = (
    _Section(
        anchor="claim",
        short="The claim",
        title="Do rules of higher entropy side with people less often?",
        intro=(
            "That is the paper’s premise: the more a rule’s ratings are spread out, the worse it "
            "predicts which response people prefer. Ties decide much of it, so the answer counts "
            "only if it is the same with ties as half and with ties left out, and if chance alone "
            "would rarely give it."
        ),
        figures=("entropy-accuracy", "correlations"),
    ),
    _Section(
        anchor="rules",
        short="The rules",
        title="The rules, one by one",
        intro=(
            "A rule that always says the same has entropy 0 and ranks nothing. A rule with many "
            "ties decides few pairs, however accurate it is on those."
        ),
        figures=("rating-histograms", "ties", "rule-agreement"),
    ),
    _Section(
        anchor="weights",
        short="Weights",
        title="What weights follow, and what they do",
        intro=(
            "Weights compose the rules’ ratings into one reward. Every scheme is shown with what "
            "it has seen: a scheme that learns from the labels is flattered by them."
        ),
        figures=("scheme-weights", "scheme-accuracy", "left-out", "tau-sweep"),
    ),
    _Section(
        anchor="enough",
        short="How many ratings",
        title="How many ratings are enough?",
        intro="How far ENCORE’s weights from fewer pairs are from the ones they settle at.",
        figures=("convergence",),
    ),
)


#: Only of a study that has benchmark tables.
_BENCHMARKS = {
    "anchor": "benchmarks",
    "short": "Benchmarks",
    "title": "Reward models on benchmarks",
    "intro": (
        "Every benchmark table of this study: the heads of a trained model under every scheme’s "
        "weights, beside other reward models and judges. Weights are made from training ratings; "
        "the notes of a table say where those are of its own pairs."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePart:
    """A figure in its place on the page: drawn, or the reason why not.

    ``marks`` are a word and a sentence each that must be read with the figures, ``notes`` further
    sentences about them.
    """

    name: str
    title: str
    drawn: DrawnChart | None = None
    drawings: tuple[Markup, ...] = ()
    reason: str = ""
    is_wide: bool = False
    grid: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """The verdict on one source."""

    where: str
    word: str
    reason: str
    other: str
    look: str


def render_page(findings: Findings, drawn: Mapping[str, DrawnChart | Missing]) -> str:
    """The page as HTML; the same text for the same findings and drawings.

    Args:
        findings: What there is to say.
        drawn: Every chart of `encore.report.charts.CHARTS` by name, drawn or missing.
    """
    from markupsafe import Markup

    style = f"{_tone_css()}{(_TEMPLATES / 'style.css').read_text(encoding='utf-8')}"
    script = (_TEMPLATES / "script.js").read_text(encoding="utf-8")
    sections: list[dict[str, object]] = [
        {
            "anchor": section.anchor,
            "short": section.short,
            "title": section.title,
            "intro": section.intro,
            "parts": [_part(name, drawn[name]) for name in section.figures],
        }
        for section in _SECTIONS
    ]
    if findings.benchmarks:
        sections.append({**_BENCHMARKS, "parts": list(_benchmark_parts(findings, drawn))})
    return (
        _environment()
        .get_template("page.html")
        .render(
            findings=findings,
            policy=_policy(style, script),
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            lead=_lead(findings),
            sections=sections,
            verdicts=list(_cards(findings)),
            numbers=list(_numbers(findings)),
            rule_table=rule_table(findings),
            recommendations=recommendations(findings),
            paper=_paper(findings),
            has_paper=any(row.our_value is not None for row in findings.analysis.paper),
            notes=page_notes(findings, drawn),
            counts=list(_counts(findings)),
        )
    )


def page_notes(findings: Findings, drawn: Mapping[str, DrawnChart | Missing]) -> tuple[str, ...]:
    """What limits the figures and their files, as sentences."""
    notes = [_sentence(note) for note in findings.notes]
    glyphs = sorted(
        {
            glyph
            for chart in drawn.values()
            if not isinstance(chart, Missing)
            for glyph in chart.missing_glyphs
        }
    )
    if glyphs:
        notes.append(
            f"The PNG files show boxes for characters that their font lacks: {' '.join(glyphs)}. "
            "The SVG files and this page name them, and show them where fonts have them."
        )
    hidden = len(findings.sources) - len(findings.drawn_sources)
    if hidden:
        notes.append(
            f"{plural(hidden, 'source')} with fewer pairs are in the tables, not in the drawings."
        )
    return tuple(notes)


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )


def _shown(value: object) -> object:
    """Every text on the page: what it hides is made visible, a number keeps its per cent sign.

    Escaping comes after.
    """
    from markupsafe import Markup

    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _LOOSE_PERCENT.sub("\N{NO-BREAK SPACE}%", printable(value))


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded, and nothing run or styled but what the page was written with."""
    return (
        "default-src 'none'; img-src data:; "
        f"style-src '{_source_hash(style)}'; script-src '{_source_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _source_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _tone_css() -> str:
    """Each colour as a variable, and as classes for what is filled or stroked with it."""
    variables = "".join(
        f"--{name}: light-dark({tone.light}, {tone.dark}); " for name, tone in PALETTE.items()
    )
    classes = "".join(
        f".f-{name} {{ fill: var(--{name}); }} .s-{name} {{ stroke: var(--{name}); }}\n"
        for name in PALETTE
    )
    return f"\n:root {{ {variables}}}\n{classes}"


def _part(name: str, chart: DrawnChart | Missing) -> FigurePart:
    from markupsafe import Markup

    if isinstance(chart, Missing):
        return FigurePart(name=name, title=_TITLES[name], reason=chart.reason)
    return FigurePart(
        name=name,
        title=chart.chart.title,
        drawn=chart,
        drawings=tuple(Markup(panel) for panel in chart.panels),  # noqa: S704 - our own, escaped
        is_wide=len(chart.panels) > 1,
        grid=_GRIDS.get(name, ""),
    )


def _benchmark_parts(
    findings: Findings, drawn: Mapping[str, DrawnChart | Missing]
) -> Iterator[FigurePart]:
    for name, table in benchmark_figures(findings).items():
        if isinstance(table, Missing):
            yield FigurePart(name=name, title="A table that cannot be read", reason=table.reason)
        else:
            notes = (
                *(_sentence(f"synthetic: {part}") for part in table.synthetic_parts),
                *map(_sentence, table.notes),
            )
            part = _part(name, drawn[name])
            yield replace(part, is_wide=True, marks=tuple(_marks(table)), notes=notes)


def _marks(table: StoredTable) -> Iterator[tuple[str, str]]:
    parts = table.synthetic_parts
    if parts:
        more = f", and {plural(len(parts) - 1, 'thing')} more, see the notes" if parts[1:] else ""
        sentence = f"{parts[0]}{more}. Read these figures as an example, not as evidence."
        yield "SYNTHETIC", _sentence(sentence)
    if table.is_partial:
        yield "PARTIAL", "Not all pairs of the benchmark: no figure compares with others."


#: What a figure that cannot be drawn is called.
_TITLES = {
    "entropy-accuracy": "Entropy against accuracy",
    "correlations": "Correlation of entropy with accuracy",
    "rating-histograms": "How each rule's ratings are spread",
    "ties": "Who wins: chosen, rejected, or neither",
    "rule-agreement": "Do rules decide alike?",
    "scheme-weights": "Weights by scheme",
    "scheme-accuracy": "Accuracy by scheme",
    "tau-sweep": "What the temperature does",
    "left-out": "What each rule contributes",
    "convergence": "How many ratings are enough",
}


def _lead(findings: Findings) -> str:
    origin = findings.provenance
    words = [
        plural(len(findings.rules), "rule"),
        plural(origin.num_pairs, "pair"),
        plural(origin.num_ratings, "rating"),
    ]
    if origin.judge is not None:
        words.append(f"judge {origin.judge}")
    if origin.run_key is not None:
        words.append(f"run {origin.run_key}")
    return " · ".join(words)


def _cards(findings: Findings) -> Iterator[_Card]:
    for source in findings.drawn_sources:
        verdicts = {verdict.entropy: verdict for verdict in findings.verdicts(source)}
        main = verdicts.get("discrete")
        if main is None:
            continue
        other = verdicts.get("differential")
        yield _Card(
            where=findings.source_name(source),
            word=main.verdict,
            reason=_sentence(main.reason),
            other="" if other is None else _other_words(other),
            look=_LOOKS[main.verdict],
        )


def _other_words(verdict: Verdict) -> str:
    return f"With differential (KDE) entropy: {verdict.verdict}."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _numbers(findings: Findings) -> Iterator[tuple[str, str]]:
    rules = findings.pooled
    yield "entropy of rules", _range([rule.entropy_nats for rule in rules], "nats")
    yield "accuracy, ties half", _percent_range([rule.accuracy.half for rule in rules])
    yield "accuracy, untied", _percent_range([rule.accuracy.untied for rule in rules])
    yield "ties", _percent_range([rule.tie_rate for rule in rules])
    yield "null ratings", _null_share(findings)


def _range(values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return number(None)
    return f"{number(min(known), digits=2)} to {number(max(known), digits=2)} {unit}"


def _percent_range(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return number(None)
    return f"{number(min(known), digits=0)} to {number(max(known), digits=0)} %"


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
    yield "nulls", f"{count(origin.num_nulls)} ({_null_share(findings)}){_reasons(findings)}"


def _reasons(findings: Findings) -> str:
    reasons = findings.provenance.null_reasons
    if findings.provenance.num_nulls == 0:
        return ""
    if reasons is None:
        return ", why is not recorded"
    named = (f"{printable(reason).replace('_', ' ')} {count(num)}" for reason, num in reasons)
    return f": {', '.join(named)}"


def _paper(findings: Findings) -> DataTable:
    """The paper's numbers with ours beside them; ours are dashes where we have no such thing."""
    return DataTable(
        columns=(
            *("setting", "quantity", "the paper", "here, strict", "here, half", "here, untied"),
            *("our source", "where in the paper", "remark"),
        ),
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
