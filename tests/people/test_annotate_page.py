"""The page for annotators in a browser: offline, by keys alone, and its file can be imported."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from encore.data.annotations import read_answers
from encore.data.study import open_study
from encore.people.import_answers import import_answers
from encore.people.people_options import AnnotateImportConfig
from tests.browser.chromium import Page, browser_page
from tests.people.answering import page_data
from tests.people.conftest import exported
from tests.report.test_report_page import SCREENS, THEMES

pytestmark = pytest.mark.services
_NUM_ITEMS = 4


@pytest.fixture(scope="module")
def page(chromium: str) -> Iterator[Page]:
    with browser_page(chromium) as opened:
        yield opened


def open_page(page: Page, file: Path, *, screen: str, theme: str = "light") -> None:
    width, height = SCREENS[screen]
    page.complaints.clear()
    page.requests.clear()
    page.open(file.as_uri(), width=width, height=height, theme=theme)
    page.wait_for("answered · ")


def saved_file(page: Page, folder: Path) -> Path:
    """Press the key that saves, and return the saved file."""
    page.press("s")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if files := list(folder.glob("*.json")):
            return files[0]
        time.sleep(0.1)
    raise AssertionError(f"nothing was saved; the page says: {page.text()}")


@pytest.mark.parametrize("screen", SCREENS)
def test_a_sample_is_answered_with_keys_alone_and_its_file_is_imported(
    page, study, tmp_path, screen
):
    export = exported(study, items=_NUM_ITEMS)
    file = export.files[0].rename(tmp_path / f"{screen}.html")
    width, height = SCREENS[screen]
    page.save_downloads(tmp_path)
    open_page(page, file, screen=screen)
    page.evaluate("localStorage.clear()")
    open_page(page, file, screen=screen)
    page.wait_for("Item 1 of 4", "0 of 4 answered", "How far does the response follow the rule?")
    page.press("2")
    ring = "getComputedStyle(document.activeElement.closest('label')).outlineWidth"
    assert page.evaluate(ring) == "3px"
    page.press("n", "3", "n", "n", "1", "p")
    page.wait_for("Item 3 of 4", "3 of 4 answered")
    assert page.evaluate("document.activeElement.id") == "position"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    box = "document.querySelector('form').getBoundingClientRect()"
    assert 0 < page.evaluate(f"{box}.top") < page.evaluate(f"{box}.bottom") <= height
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # The page continues at the same item after it was closed and opened again.
    open_page(page, file, screen=screen)
    page.wait_for("Item 3 of 4", "3 of 4 answered")
    page.press("n", "u")
    page.wait_for("Item 3 of 4")
    page.press("3")
    page.wait_for("All items are answered")
    answers = saved_file(page, tmp_path)
    page.wait_for(f"Saved {answers.name}.")
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("blob:")] == [file.as_uri()]
    import_answers(open_study(study), AnnotateImportConfig(study=study, files=(answers,)))
    labels = {
        row["item_id"]: row["label"]
        for row in read_answers(open_study(study), export.sample).to_pylist()
    }
    page_order = [item["item_id"] for item in page_data(file)["items"]]
    assert [labels[item_id] for item_id in page_order] == [0.5, 1.0, 1.0, 0.0]


def test_the_two_questions_about_rules_have_different_keys(page, study, tmp_path):
    export = exported(study, kind="rules", items=1)
    page.save_downloads(tmp_path)
    for screen in SCREENS:
        for theme in THEMES:
            open_page(page, export.files[0], screen=screen, theme=theme)
            page.wait_for("First rule", "Second rule", "Clarity", "Perceived reliability")
            assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen][0]
            assert page.complaints == []
    page.press("1", "4")
    answers = json.loads(saved_file(page, tmp_path).read_text())["answers"]
    assert [(answer["question"], answer["value"]) for answer in answers] == [
        ("clarity", "first"),
        ("reliability", "second"),
    ]


def test_hostile_texts_stay_text_and_every_choice_has_a_name(page, study):
    export = exported(study, items=400)
    open_page(page, export.files[0], screen="laptop")
    num_hostile = 0
    for _ in range(export.sample.num_items):
        num_hostile += "<script>document.title='owned'</script>" in page.text()
        page.press("n")
    assert num_hostile > 2
    assert page.evaluate("document.title") == "ENCORE annotate"
    assert (
        page.evaluate("document.querySelectorAll('main :is(img, script, b, textarea)').length") == 0
    )
    attempt = "try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; }"
    assert page.evaluate(f"(() => {{ {attempt} }})()") == "TypeError"
    inputs_are_named = (
        "[...document.querySelectorAll('input')].every(input => input.labels[0].innerText.trim() "
        "&& input.closest('fieldset').querySelector('legend').innerText)"
    )
    assert page.evaluate(inputs_are_named)


def test_progress_that_is_damaged_or_foreign_is_ignored(page, study):
    export = exported(study, items=3)
    data = page_data(export.files[0])
    name = f"encore-annotate:{data['sample']}:{data['annotator']}"
    first, second, _ = (item["item_id"] for item in data["items"])
    for stored, num_answered in (
        ("{", 0),
        ("null", 0),
        (json.dumps({"at": 99, "answers": {first: {"label": "7"}, second: {"label": "1"}}}), 1),
    ):
        open_page(page, export.files[0], screen="laptop")
        page.evaluate(f"localStorage.setItem({json.dumps(name)}, {json.dumps(stored)})")
        open_page(page, export.files[0], screen="laptop")
        page.wait_for("Item 1 of 3", f"{num_answered} of 3 answered")


def test_doubts_comments_and_turns_fit_a_phone_and_are_imported(page, study, tmp_path):
    export = exported(study, items=_NUM_ITEMS, annotators=2)
    page.save_downloads(tmp_path)
    open_page(page, export.files[1], screen="phone")
    assert page.evaluate("document.getElementById('instructions').open")
    page.press("4", "c", *"n3", "Escape", "n", "1")  # 4 is "cannot say"; n and 3 are a comment
    page.wait_for("Item 2 of 4", "2 of 4 answered")
    assert not page.evaluate("document.getElementById('instructions').open")
    assert page.evaluate("document.querySelector('form').offsetHeight") < 844 / 4
    assert page.evaluate("document.querySelectorAll('.turn.user').length") == 1
    answers = saved_file(page, tmp_path)
    import_answers(open_study(study), AnnotateImportConfig(study=study, files=(answers,)))
    rows = read_answers(open_study(study), export.sample).to_pylist()
    assert {(row["label"], row["comment"]) for row in rows} == {(None, "n3"), (0.0, None)}
