"""The pages of `docs/`: commands can be called, links lead somewhere, the site has every page."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cyclopts import CycloptsError, MissingArgumentError

from encore.cli.app import COMMANDS, build_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
MACHINES = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))
OTHERS = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "docs/llms.txt")
TEXTS = [*PAGES, *MACHINES, *(ROOT / name for name in OTHERS)]
#: The reference and pages of `make perf` are generated, and the changes name commands of earlier
#: versions.
WITH_COMMANDS = [
    page
    for page in TEXTS
    if page.name not in ("reference.md", "changes.md")
    and "\nWritten by `make perf` on " not in page.read_text(encoding="utf-8")
]
#: Groups of commands, and the option of `encore` itself.
NAMES_OF_NO_CALL = ("rules", "annotate", "plan", "--help")
#: What a line of a page leaves out, or chooses from: it cannot be parsed.
ELLIPSES = ("…", "...", "|")


def commands_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the calls of `encore` in a page, and True if the call stands in a block of code."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if block := re.match(r"(?:    |\$ |\.venv/bin/)*encore ([^`]+)$", line):
            yield re.split(r"\s+#\s|\s+>\s|\s+&&\s|;", block[1])[0], True
        yield from ((call, False) for call in re.findall(r"`encore ([^`]+)`", line))


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda path: path.name)
def test_every_command_of_a_page_can_be_called(page):
    app = build_app()
    for call, is_block in commands_of(page.read_text(encoding="utf-8")):
        if call in NAMES_OF_NO_CALL or any(mark in call for mark in ELLIPSES):
            continue
        assert any(f"{call} ".startswith(f"{name} ") for name in COMMANDS), f"{call}: no command"
        try:
            app.parse_args(shlex.split(call), print_error=False, exit_on_error=False)
        except MissingArgumentError:
            assert not is_block, f"{call}: an argument is missing"
        except CycloptsError as error:
            raise AssertionError(f"{call}: {error}") from error


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain_headings = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {re.sub(r"[ -]+", "-", heading.strip()) for heading in plain_headings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: path.name)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target.read_text(encoding="utf-8")), link


def test_the_site_shows_every_page_once():
    config = yaml.safe_load((ROOT / "infra" / "mkdocs.yml").read_text(encoding="utf-8"))
    entries = [entry for part in config["nav"] for entry in names_in(part)]
    tutorials = (ROOT / "docs" / "tutorials").glob("*.py")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (*PAGES, *tutorials)]
    assert set(pages) - set(entries) == set(), "pages that `nav` of infra/mkdocs.yml lacks"
    assert set(entries) - set(pages) == set(), "`nav` of infra/mkdocs.yml names no page"
    assert len(entries) == len(pages), "`nav` of infra/mkdocs.yml names a page twice"


def names_in(part: object) -> list[str]:
    """Return the pages in a part of the site's navigation."""
    if isinstance(part, dict):
        return [name for entries in part.values() for name in names_in(entries)]
    if isinstance(part, list):
        return [name for entry in part for name in names_in(entry)]
    return [str(part)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_opens_with_the_question_that_it_answers(page):
    """`llms.txt` shows it. The changes are a list of versions."""
    body = page.read_text(encoding="utf-8").partition("\n")[2].strip()
    assert page.name == "changes.md" or re.match(r"[A-Z][^.]+\?\s", body), body[:80]


def test_the_index_for_language_models_has_every_page_and_its_question():
    """After a change: `.venv/bin/python infra/mkdocs_hooks.py`."""
    index = runpy.run_path(str(ROOT / "infra" / "mkdocs_hooks.py"))["index_of_pages"]()
    assert (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8") == index
    assert all(f"]({page.name}): " in index for page in PAGES)
    assert "- [Evidence](evidence.md): What is shown about ENCORE" in index


@pytest.mark.parametrize(
    ("page", "link"), [("a.md", "Code"), ("benchmarks/a.md", "[Code](../code.md)")]
)
def test_the_site_shows_the_text_of_a_link_that_leads_out_of_the_pages(page, link):
    prepare = runpy.run_path(str(ROOT / "infra" / "mkdocs_hooks.py"))["on_page_markdown"]
    of_site = {"config": SimpleNamespace(repo_url=None)}
    of_page = {"page": SimpleNamespace(file=SimpleNamespace(src_uri=page))}
    assert prepare("[Code](../code.md)", **of_site, **of_page) == link


def test_the_site_links_a_picture_of_a_page_to_its_file():
    link = runpy.run_path(str(ROOT / "infra" / "mkdocs_hooks.py"))["on_page_content"]
    picture = '<img alt="A run" src="run.png" />'
    of_page = {"page": SimpleNamespace(file=SimpleNamespace(src_uri="a.md"))}
    assert link(f"<p>{picture}</p>", **of_page) == f'<p><a href="run.png">{picture}</a></p>'


def test_a_tutorial_of_the_site_links_to_pages_of_the_site():
    link = runpy.run_path(str(ROOT / "infra" / "mkdocs_hooks.py"))["on_page_content"]
    of_page = {"page": SimpleNamespace(file=SimpleNamespace(src_uri="tutorials/a.py"))}
    assert link('<a href="../export.md#a">', **of_page) == '<a href="../export.html#a">'


def test_blocks_of_a_numbered_list_stand_four_columns_in():
    """And a blank line follows them: else the site's Markdown ends the list, or loses an item."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^ {1,3}```", text, re.MULTILINE), page.name
        assert not re.search(r"^ {4}\S.*\n\d+\. ", text, re.MULTILINE), page.name
