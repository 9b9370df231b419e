"""The page holds all that it shows, escapes texts from data, and states where they come from."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from encore.benchmarks.benchmark_table import BenchmarkTable, read_table, table_folders
from encore.core.terminal import minus_signs
from encore.reports.figure_drawing import DrawnChart, Missing
from encore.reports.findings import Findings, gather
from encore.reports.weight_charts import interval_chart
from encore.reports.write_report import _with_code, draw_all, render_page, report
from tests.reports.conftest import without_drawing
from tests.reports.studies import HOSTILE_SOURCE, HOSTILE_TITLES, write_rated_study
from tests.worlds.tables import benchmark_pairs, every_row, model_row, write_run

pytestmark = pytest.mark.services

#: Attributes through which a page can ask for something.
LOADING = {
    *("src", "srcset", "href", "xlink:href", "poster", "data", "action", "formaction", "ping"),
    *("background", "cite", "longdesc", "manifest", "srcdoc", "style"),
}
PAIRS = benchmark_pairs()


class Parsed(HTMLParser):
    """Elements of a page with their attributes, and all text outside style and script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:  # not inside style or script
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def of(self, tag: str) -> Iterator[dict[str, str]]:
        return (attributes for name, attributes in self.elements if name == tag)


@pytest.fixture(scope="module")
def drawn(findings: Findings) -> Mapping[str, DrawnChart | Missing]:
    return draw_all(findings)


@pytest.fixture(scope="module")
def html(findings: Findings, drawn: Mapping[str, DrawnChart | Missing]) -> str:
    """Return the page on two real sources under six rules, in memory."""
    return render_page(findings, drawn)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study with hostile names and two tables; the second is partial and synthetic."""
    study = write_rated_study(
        tmp_path_factory.mktemp("hostile") / "study",
        titles=HOSTILE_TITLES,
        sources=(HOSTILE_SOURCE, "plain"),
        judge="</title><script>alert(4)</script>",
    )
    write_run(study, every_row(PAIRS), pairs=PAIRS, key="a" * 16)
    wins = [1.0] * 10 + [0.0] * (PAIRS.num_pairs - 10)
    rows = [
        model_row("first", wins, pairs=PAIRS),
        model_row("<script>alert(5)</script>\u202e", wins[::-1], pairs=PAIRS),
    ]
    partial = replace(PAIRS, is_partial=True)
    write_run(study, rows, pairs=partial, key="b" * 16, synthetic=["every <b>pair</b>"])
    return study


@pytest.fixture(scope="module")
def hostile(world: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    with without_drawing():
        page = report(world, out=tmp_path_factory.mktemp("out")).page
    return page.read_text(encoding="utf-8")


def test_nothing_on_the_page_refers_to_anything_outside(html, hostile):
    for page in (html, hostile):
        for _, attributes in Parsed(page).elements:
            assert "style" not in attributes
            assert not any(name.startswith("on") for name in attributes)
            for name in LOADING & set(attributes):
                assert attributes[name].startswith(("#", "data:")), attributes
        style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
        assert style
        assert "url(" not in style.group(1)
        assert "@import" not in style.group(1)
        assert "//" not in re.sub(r"//[^\n]*\n", "", page.split("<script>")[1])


def test_the_policy_allows_only_the_pages_own_style_and_script(html):
    [policy] = [
        attributes["content"]
        for attributes in Parsed(html).of("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for name in ("style", "script"):
        [content] = re.findall(rf"<{name}>(.*?)</{name}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in policy


def test_names_from_data_stay_text(hostile):
    parsed = Parsed(hostile)
    assert len(list(parsed.of("script"))) == 1
    assert all(image["src"].startswith("data:image/svg+xml;") for image in parsed.of("img"))
    assert not list(parsed.of("b"))
    for title in HOSTILE_TITLES[:4]:
        assert " ".join(title.split()) in parsed.text
    for character in "\u202e\x00\x1b":
        assert character not in hostile
    for text in (r"right\u202eleft\x1b[31m\x00", "<b>s</b>&\\u202e", "alert(5)</script>\\u202e"):
        assert text in parsed.text


def test_every_figure_has_a_text_alternative_and_its_data(html):
    parsed = Parsed(html)
    drawings = list(parsed.of("img"))
    assert len(drawings) > 15
    assert all(drawing["alt"] and drawing["width"] for drawing in drawings)
    assert len({drawing["src"] for drawing in drawings}) == len(drawings)
    assert len(list(parsed.of("details"))) >= 8


def test_the_page_states_verdicts_notes_and_the_papers_figures(html, findings):
    text = Parsed(html).text
    for verdict in findings.analysis.verdicts:
        assert verdict.verdict in text
    assert len(re.findall(r'<li class="(yes|no|ties)">', html)) == 3
    for note in findings.notes:
        assert minus_signs(note)[1:].replace("`", "") in text
    section = html[html.index('id="paper"') :]
    for row in findings.analysis.paper[:3]:
        assert row.source_in_paper in section
    assert "not a run of a study" in text
    assert "SYNTHETIC" not in html


def test_what_a_terminal_shows_between_backticks_is_set_as_code():
    assert _with_code("<b> (`--scale`, `x<`)") == (
        "&lt;b&gt; (<code>--scale</code>, <code>x&lt;</code>)"
    )


def test_the_page_begins_with_the_verdict_on_each_rule(html, findings):
    section = html[html.index('<section id="answer">') : html.index('<section id="rules">')]
    text = Parsed(section).text
    answers = [findings.answer(source) for source in findings.sources]
    assert [sentence for sentence in answers[0].summary if sentence not in text] == []
    rows = [row for answer in answers for row in answer.rows]
    cells = re.findall(r'data-value="(\d+)">\d+.*?<strong class="chip ([a-z-]+)">', section, re.S)
    assert cells == [(str(row.number), row.verdict.replace(" ", "-")) for row in rows]
    assert {row.number: row.rule_id for row in rows} == dict(enumerate(findings.titles, start=1))
    assert f"<li>{escape(findings.judge)}</li>" in html
    assert "they can be told from a coin under" in findings.judge


def test_a_bar_has_the_shares_of_each_rules_variance(html, findings):
    section = html[html.index('<figure id="variance"') : html.index('id="rating-histograms"')]
    rows = [row for row in findings.analysis.variance if row.source == "all"]
    bars = re.findall(r'class="part-(\d)" x="([\d.]+)" width="([\d.]+)"', section)
    assert len(bars) == 2 * len(rows)  # without a repeated run there is no noise
    for row, (_, _, prompts), (part, x, responses) in zip(rows, bars[::2], bars[1::2], strict=True):
        assert (part, x) == ("2", prompts)
        assert prompts == f"{100 * row.between_prompts.value:.2f}"
        assert responses == f"{100 * row.between_responses.value:.2f}"
    worth = next(row for row in findings.analysis.effective_rules if row.source == "all")
    assert f"as much as {worth.effective.value:.1f} independent ones" in Parsed(html).text


def test_the_table_of_rules_has_a_row_each_and_sorts_with_buttons(html, findings):
    table = html[html.index("All statistics of every rule") :]
    head, body = table[: table.index("</table>")].split("</thead>")
    assert head.count("<button") == head.count("aria-sort=") >= 14
    assert head.count('aria-sort="ascending"') == 1
    values = re.findall(r'data-value="([^"]*)"', body)
    width = len(values) // len(findings.pooled)
    for index, rule in enumerate(findings.pooled):
        row = values[index * width : (index + 1) * width]
        assert row[:2] == [str(index + 1), rule.rule_id]
        accuracy = (rule.accuracy.half, rule.accuracy.untied)
        assert [float(cell) for cell in row[2:5]] == [rule.entropy_nats, *accuracy]


def test_a_studys_page_states_its_provenance(hostile, world):
    text = Parsed(hostile).text
    findings = gather(world)
    assert findings.provenance.run_key
    assert findings.num_nulls > 0
    for fact in (
        *(findings.provenance.run_key, "sha256:0123", "cafe", "feed", "beef", "mine, 6 rules"),
        *("3 of 3", "vllm 0.32.0", "matplotlib", f"empty reply {findings.num_nulls}"),
    ):
        assert fact in text


# --- benchmark tables -----------------------------------------------------------------------------


@pytest.fixture
def table(world: Path) -> BenchmarkTable:
    return read_table(table_folders(world)[0])


def test_rows_are_sorted_and_all_of_them_in_the_table(table):
    chart = interval_chart(table)
    assert len(chart.table.rows) == len(table.rows)
    scores = [float(row[1].removesuffix(" %")) for row in chart.table.rows]
    assert scores == sorted(scores, reverse=True)
    by_name = {row.name: row for row in table.rows}
    for name, _, _, difference, *_ in chart.table.rows:
        comparison = by_name[name].our_figures.comparison
        expected = "–" if comparison is None else f"{100 * comparison.difference:+.1f}"
        assert difference.lstrip("+") == expected.replace("-", "−").lstrip("+")


def test_the_papers_methods_and_models_are_drawn_but_not_each_rule(table, hostile):
    leading = [
        row for row in table.rows if row.our_figures.method is not None or row.kind != "scheme"
    ]
    assert {"uniform", "encore (τ 2)", "initial"} <= {row.name for row in leading}
    assert not [row for row in leading if row.name.startswith("single: ")]
    assert f"{len(leading)} rows on" in interval_chart(table).panels[0].subtitle
    hidden = len(table.rows) - len(leading)
    assert f"{hidden} further rows: in the table." in Parsed(hostile).text
    # If no row is leading, all rows are drawn.
    remaining = tuple(row for row in table.rows if row not in leading)
    subtitle = interval_chart(table.model_copy(update={"rows": remaining})).panels[0].subtitle
    assert f"{len(remaining)} rows on" in subtitle


def test_a_table_says_what_is_synthetic_or_partial_and_its_notes(hostile, table, world):
    assert '<a href="#benchmarks">' in hostile
    first, second = hostile.split('<figure id="benchmark-')[1:]
    for mark in ("<strong>SYNTHETIC</strong>", "<strong>PARTIAL</strong>"):
        assert mark not in first
        assert mark in second
    assert "every &lt;b&gt;pair&lt;/b&gt;" in second
    with without_drawing():
        drawn = draw_all(gather(world))
    marked = [b"SYNTHETIC" in drawn[f"benchmark-{number}"].files["svg"] for number in (1, 2)]
    assert marked == [False, True]
    assert table.notes
    for note in table.notes:
        assert note[1:].rstrip(".") in Parsed(hostile).text
