"""The page for annotators in a browser: offline, by keys alone, and its file can be imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from encore.data.annotations import read_answers
from encore.data.study import open_study
from encore.people.import_answers import import_answers
from encore.people.people_options import AnnotateImportConfig
from tests.browser.chromium import Page
from tests.people.answering import page_data
from tests.people.conftest import exported
from tests.reports.test_report_page import SCREENS, THEMES
from tests.worlds.servers import wait_until

pytestmark = pytest.mark.services
_NUM_ITEMS = 4
#: True if the turn that the response answers ends above the questions; a long one begins there.
_LAST_TURN_IS_SEEN = """(() => {
    const turn = [...document.querySelectorAll('.turn.user')].at(-1);
    const [card, box, form] = [turn.closest('article'), turn, document.querySelector('form')]
        .map(node => node.getBoundingClientRect());
    const bottom = Math.min(card.bottom, form.top);
    const isShort = box.height < card.height - 24;
    return box.top >= card.top && (isShort ? box.bottom : box.top + 24) <= bottom;
})()"""


def open_page(page: Page, file: Path, *, screen: str, theme: str = "light") -> None:
    width, height = SCREENS[screen]
    page.complaints.clear()
    page.requests.clear()
    page.open(file.as_uri(), width=width, height=height, theme=theme)
    page.wait_for("answered · ")


def saved_file(page: Page, folder: Path) -> Path:
    """Press the key that saves, and return the saved file."""
    page.press("s")
    # The browser makes the file before it writes into it.
    whole = lambda: [file for file in folder.glob("*.json") if file.stat().st_size]  # noqa: E731
    return wait_until(whole, seconds=20, event="a saved file")[0]


@pytest.mark.parametrize("screen", SCREENS)
def test_a_sample_is_answered_with_keys_alone_and_its_file_is_imported(
    page, study, tmp_path, screen
):
    # Another seed is another sample, which the browser stores apart from the other screen's.
    export = exported(study, items=_NUM_ITEMS, seed=[*SCREENS].index(screen))
    file = export.files[0]
    width, height = SCREENS[screen]
    page.save_downloads(tmp_path)
    open_page(page, file, screen=screen)
    page.wait_for("Item 1 of 4", "0 of 4 answered", "How far does the response follow the rule?")
    page.press("2")  # an answer leads to the next item
    page.wait_for("Item 2 of 4", "1 of 4 answered", "Previous (p) goes back to it.")
    page.press("3", "n", "1")
    page.wait_for("Item 4 of 4", "3 of 4 answered", "Unanswered (u) shows one that is not.")
    page.press("p", "p", "2", "3")  # a changed answer stays at its item
    ring = "getComputedStyle(document.activeElement.closest('label')).outlineWidth"
    assert page.evaluate(ring) == "3px"
    page.press("n")
    page.wait_for("Item 3 of 4", "3 of 4 answered")
    assert page.evaluate("document.activeElement.id") == "position"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    box = "document.querySelector('form').getBoundingClientRect()"
    assert 0 < page.evaluate(f"{box}.top") < page.evaluate(f"{box}.bottom") <= height
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # A page that is opened again continues at the same item. The first one stays open: on a loaded
    # machine Chromium 156 now and then shows a page that replaces itself the storage of before.
    with page.new_tab() as second_tab:
        second_tab.save_downloads(tmp_path)
        open_page(second_tab, file, screen=screen)
        second_tab.wait_for("Item 3 of 4", "3 of 4 answered")
        second_tab.press("n", "u")
        second_tab.wait_for("Item 3 of 4")
        second_tab.press("3")
        second_tab.wait_for("Item 3 of 4", "All items are answered")
        answers = saved_file(second_tab, tmp_path)
        second_tab.wait_for(f"Saved {answers.name}.")
    for tab in (page, second_tab):
        assert tab.complaints == []
        assert [url for url in tab.requests if not url.startswith("blob:")] == [file.as_uri()]
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


def test_the_turn_that_a_response_answers_lies_above_the_questions(page, study):
    open_page(page, exported(study, items=1).files[0], screen="laptop")
    assert page.evaluate(_LAST_TURN_IS_SEEN)
    for turn in ('["assistant", "before ".repeat(2000)]', '["user", "now ".repeat(2000)]'):
        added = "unshift" if "before" in turn else "push"
        page.evaluate(f"items[0].cards[1].parts.{added}({turn}); showItem()")
        assert page.evaluate(_LAST_TURN_IS_SEEN)


def storage_name(data: dict[str, Any], name: str) -> str:
    """Return the key by which the browser stores an item's answers, or the position."""
    return f"encore-annotate:{data['sample']}:{data['annotator']}:{name}"


def test_progress_that_is_damaged_or_foreign_is_ignored(page, study):
    export = exported(study, items=3)
    data = page_data(export.files[0])
    first, second, third = (item["item_id"] for item in data["items"])
    # Of these five only the answer to the second item is one that the page offers.
    stored = {
        first: '{"label": "7"}',
        second: '{"label": "1"}',
        third: "{",
        "item-of-another-sample": '{"label": "1"}',
        "position": "99",
    }
    open_page(page, export.files[0], screen="laptop")
    for name, value in stored.items():
        key = json.dumps(storage_name(data, name))
        page.evaluate(f"localStorage.setItem({key}, {json.dumps(value)})")
    with page.new_tab() as second_tab:
        open_page(second_tab, export.files[0], screen="laptop")
        second_tab.wait_for("Item 1 of 3", "1 of 3 answered")


def test_two_tabs_keep_each_others_answers(page, study):
    export = exported(study, items=2, seed=7)
    open_page(page, export.files[0], screen="laptop")
    with page.new_tab() as second_tab:
        open_page(second_tab, export.files[0], screen="laptop")
        second_tab.press("n", "3")
        page.wait_for("Item 1 of 2", "1 of 2 answered")
        page.press("2")
        second_tab.wait_for("2 of 2 answered")
    data = page_data(export.files[0])
    for item, label in zip(data["items"], ("0.5", "1"), strict=True):
        key = json.dumps(storage_name(data, item["item_id"]))
        assert page.evaluate(f"localStorage.getItem({key})") == json.dumps(
            {"label": label}, separators=(",", ":")
        )


def test_doubts_comments_and_turns_fit_a_phone_and_are_imported(page, study, tmp_path):
    export = exported(study, items=_NUM_ITEMS, annotators=2)
    page.save_downloads(tmp_path)
    open_page(page, export.files[1], screen="phone")
    assert page.evaluate("document.getElementById('instructions').open")
    page.press("c", *"n3", "Escape", "4", "1")  # 4 is "cannot say"; n and 3 are a comment
    page.wait_for("Item 3 of 4", "2 of 4 answered")
    assert not page.evaluate("document.getElementById('instructions').open")
    assert page.evaluate("document.querySelector('form').offsetHeight") < 844 / 4
    assert page.evaluate("document.querySelectorAll('.turn.user').length") == 1
    answers = saved_file(page, tmp_path)
    import_answers(open_study(study), AnnotateImportConfig(study=study, files=(answers,)))
    rows = read_answers(open_study(study), export.sample).to_pylist()
    assert {(row["label"], row["comment"]) for row in rows} == {(None, "n3"), (0.0, None)}
