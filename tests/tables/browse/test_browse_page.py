"""The page of `encore browse` in a browser: by keys alone, quiet, and texts stay texts."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.browser.chromium import Page, browser_page
from tests.report.test_report_page import SCREENS, THEMES
from tests.tables.browse.studies import HOSTILE, browsing

pytestmark = pytest.mark.services
_FOCUSED = "document.activeElement.dataset.position"


@pytest.fixture(scope="module")
def page(chromium: str) -> Iterator[Page]:
    with browser_page(chromium) as opened:
        yield opened


@pytest.fixture(scope="module")
def attacked(browsed: httpx.Client) -> str:
    """The address of a pair with an attack among its replies."""
    wanted = {"null": "not_a_single_number"}
    row, *_ = browsed.get("/api/pairs", params=wanted).json()["rows"]
    return str(browsed.base_url.copy_with(params={**wanted, "pair": row["position"]}))


def test_the_page_fits_its_screen_and_asks_this_server_alone(page, browsed, attacked):
    kind = browsed.base_url.copy_with(params={"rule": "kind-b-words-b", "disagreement": "judges"})
    looks = {str(browsed.base_url): "mean ratings", str(kind): "under “Kind <b>", attacked: "Harsh"}
    for width, height in SCREENS.values():
        for theme in THEMES:
            for url, words in looks.items():
                page.complaints.clear()
                page.requests.clear()
                page.open(url, width=width, height=height, theme=theme)
                page.wait_for(words)
                page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.complaints == []
                assert {httpx.URL(one).netloc for one in page.requests} == {browsed.base_url.netloc}


def test_a_reply_with_a_script_stays_text(page, attacked):
    page.open(attacked)
    page.wait_for("Ratings")
    assert page.evaluate("document.title") == "study · ENCORE browse"
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    said = HOSTILE
    for unseen in "\x1b\x07\u202e\u200b":
        said = said.replace(unseen, f"U+{ord(unseen):04X}")
    replies = "[...document.querySelectorAll('code')].map(code => code.innerText)"
    assert said in page.evaluate(replies)
    # Even code of our own that took a text for markup would be stopped.
    attempt = "try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; }"
    assert page.evaluate(f"(() => {{ {attempt} }})()") == "TypeError"


def test_every_step_can_be_made_with_keys(page, browsed):
    page.open(str(browsed.base_url))
    page.wait_for("60 pairs", "Page 1 of 2")
    page.press("j", "ArrowDown", "j", "k")
    assert page.evaluate(_FOCUSED) == "1"
    outline = "getComputedStyle(document.activeElement).outlineWidth"
    assert page.evaluate(outline) == "3px"
    for keys, words in (
        (["Enter"], "2 of 60 pairs"),
        (["j"], "3 of 60 pairs"),
        (["Escape"], "Page 1 of 2"),
        (["n"], "Page 2 of 2"),
        (["Enter"], "51 of 60 pairs"),
        (["k"], "50 of 60 pairs"),  # onto the page before
        (["?"], "this list"),
        (["Escape", "/"], "Page 1 of 2"),
        ([*"answer 7", "Enter"], "2 pairs."),
        (["Escape", "j", "Enter"], "1 of 2 pairs"),
        (["Escape"], "Page 1 of 1"),
    ):
        page.press(*keys)
        page.wait_for(words)
        assert page.evaluate("document.querySelector('dialog').open") is (keys == ["?"])
        assert words[:4] != "Page" or "/" in keys or page.evaluate(_FOCUSED) is not None
    page.evaluate("history.back()")
    page.wait_for("1 of 2 pairs")


def test_a_wrong_address_and_a_server_that_ended_are_said(page, browsed, hostile_study):
    page.open(str(browsed.base_url.copy_with(params={"rule": "unknown"})))
    page.wait_for("rule 'unknown': expected one of calm")
    with browsing(hostile_study) as other:
        page.open(str(other.base_url))
        page.wait_for("Page 1 of 2")
    page.press("n")
    page.wait_for("is `encore browse` still running?")
