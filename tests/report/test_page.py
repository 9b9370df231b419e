"""The page holds everything it shows, escapes what data say, and tells where it comes from."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from encore.data.ingestion import ingest
from encore.demo import data_paths
from encore.report.drawing import DrawnChart, Missing
from encore.report.findings import Findings, gather
from encore.report.page import render_page
from encore.report.write_report import report
from tests.report.conftest import nothing_drawn
from tests.report.studies import (
    HOSTILE_SOURCE,
    HOSTILE_TITLES,
    some_ratings,
    write_rated_study,
)

#: Attributes through which a page can ask for something.
LOADING = {
    *("src", "srcset", "href", "xlink:href", "poster", "data", "action", "formaction", "ping"),
    *("background", "cite", "longdesc", "manifest", "srcdoc", "style"),
}


class Parsed(HTMLParser):
    """Every element of a page with its attributes, and all text outside style and script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._open.append("/" + tag)

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in {"style", "script"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def of(self, tag: str) -> Iterator[dict[str, str]]:
        return (attributes for name, attributes in self.elements if name == tag)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hostile")
    study = write_rated_study(
        folder / "study",
        titles=HOSTILE_TITLES,
        sources=(HOSTILE_SOURCE, "plain"),
        judge="</title><script>alert(4)</script>",
    )
    with nothing_drawn():
        return report(study, out=folder / "out").page.read_text(encoding="utf-8")


def test_nothing_on_the_page_refers_to_anything_outside(html: str, hostile: str) -> None:
    for page in (html, hostile):
        for _, attributes in Parsed(page).elements:
            for name in LOADING & set(attributes):
                assert attributes[name].startswith(("#", "data:")), attributes
        style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
        assert style
        assert "url(" not in style.group(1)
        assert "@import" not in style.group(1)
        assert "//" not in re.sub(r"//[^\n]*\n", "", page.split("<script>")[1])


def test_its_policy_allows_its_own_style_and_script_alone(html: str) -> None:
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


def test_no_element_has_a_handler_or_a_style_of_its_own(html: str, hostile: str) -> None:
    for page in (html, hostile):
        for _, attributes in Parsed(page).elements:
            assert "style" not in attributes
            assert not any(name.startswith("on") for name in attributes)


def test_names_from_data_stay_text(hostile: str) -> None:
    parsed = Parsed(hostile)
    assert len(list(parsed.of("script"))) == 1
    assert all(image["src"].startswith("data:image/svg+xml;") for image in parsed.of("img"))
    assert not list(parsed.of("b"))
    for title in HOSTILE_TITLES[:4]:
        assert " ".join(title.split()) in parsed.text
    assert "\u202e" not in hostile
    assert "\x00" not in hostile
    assert "\x1b" not in hostile
    assert r"right\u202eleft\x1b[31m\x00" in parsed.text
    assert "<b>s</b>&\\u202e" in parsed.text


def test_every_figure_has_a_text_alternative_and_its_data(html: str) -> None:
    parsed = Parsed(html)
    drawings = list(parsed.of("img"))
    for theme in ("light", "dark"):
        found = [one for one in drawings if one["class"] == theme]
        assert len(found) > 15
        assert all(one["alt"] and one["width"] for one in found)
    assert len({one["src"] for one in drawings}) == len(drawings)
    assert len(list(parsed.of("details"))) >= 8


def test_ids_are_unique_and_links_of_the_page_lead_somewhere(html: str) -> None:
    parsed = Parsed(html)
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for attributes in parsed.of("a"):
        assert attributes["href"].removeprefix("#") in ids


def test_the_table_of_rules_sorts_with_buttons(html: str) -> None:
    table = html[html.index("data-sortable") :]
    head = table[: table.index("</thead>")]
    assert head.count("<button") == head.count("aria-sort=") >= 14
    assert head.count('aria-sort="ascending"') == 1


def test_verdicts_and_their_reasons_are_in_words(html: str, findings: Findings) -> None:
    text = Parsed(html).text
    for verdict in findings.analysis.verdicts:
        assert verdict.verdict in text
    assert len(re.findall(r'<li class="(yes|no|ties)">', html)) == 3


def test_notes_are_on_the_page(html: str, findings: Findings) -> None:
    text = Parsed(html).text
    for note in findings.notes:
        assert note[1:] in text


def test_the_paper_s_figures_stand_next_to_ours(html: str, findings: Findings) -> None:
    assert findings.analysis.paper
    section = html[html.index('id="paper"') :]
    for row in findings.analysis.paper[:3]:
        assert row.source_in_paper in section


def test_what_is_missing_is_said(
    findings: Findings, drawn: Mapping[str, DrawnChart | Missing]
) -> None:
    reason = "There is no sweep here."
    without = dataclasses.replace(findings, sweep=Missing(reason=reason))
    page = render_page(without, {**drawn, "tau-sweep": Missing(reason=reason)})
    assert reason in Parsed(page).text


@pytest.mark.usefixtures("quick")
def test_a_study_s_page_tells_its_provenance(study: Path, tmp_path: Path) -> None:
    written = report(study, out=tmp_path / "out")
    text = Parsed(written.page.read_text(encoding="utf-8")).text
    key = written.findings.provenance.run_key
    assert key
    for words in (key, "tiny-judge", "sha256:0123", "feed", "beef", "mine, 6 rules", "3 of 3"):
        assert words in text
    nulls = written.findings.provenance.num_nulls
    assert nulls > 0
    assert f"empty reply {nulls}" in text
    assert "vllm 0.32.0" in text
    assert "matplotlib" in text


def test_ratings_without_a_study_say_what_is_not_recorded(html: str) -> None:
    assert "not a run of a study" in Parsed(html).text


# --- synthetic ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_synthetic_sources_are_marked_on_the_page_and_in_every_figure(tmp_path: Path) -> None:
    table = some_ratings(sources=("synthetic-hh",), rule_ids=("a", "b", "c"))
    written = report(table, out=tmp_path)
    page = written.page.read_text(encoding="utf-8")
    assert "<strong>SYNTHETIC</strong>" in page
    assert "source synthetic-hh" in Parsed(page).text
    for files in written.figures.values():
        assert "SYNTHETIC" in files["svg"].read_text(encoding="utf-8")


def test_a_judge_that_is_called_synthetic_is_marked(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study", judge="synthetic-judge")
    assert gather(study).provenance.synthetic == ("the judge (synthetic-judge)",)


def test_the_demo_s_judge_is_known_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encore.synthetic._demo_judge_digest", lambda: "0123")
    study = write_rated_study(tmp_path / "study")
    assert gather(study).provenance.synthetic


def test_the_demo_s_pairs_are_known_under_another_label(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study", sources=("mine",))
    ingest([f"mine={data_paths()['synthetic-hh']}"], out=study)
    assert gather(study).provenance.synthetic == ("all pairs (source mine)",)


def test_a_judge_that_a_file_records_is_told_and_marked(tmp_path: Path) -> None:
    table = some_ratings(rule_ids=("a", "b", "c"))
    judged = table.append_column("judge", [["synthetic-judge"] * table.num_rows])
    pq.write_table(judged, tmp_path / "ratings.parquet")
    provenance = gather(tmp_path / "ratings.parquet").provenance
    assert provenance.judge == "synthetic-judge"
    assert provenance.synthetic == ("the judge (synthetic-judge)",)


def test_real_data_carry_no_mark(html: str) -> None:
    assert "SYNTHETIC" not in html
