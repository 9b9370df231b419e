"""The page of `encore browse` in a browser: keys suffice, hostile texts stay texts, no errors."""

from __future__ import annotations

import csv
import shutil

import httpx
import pytest

from tests.reports.test_report_page import SCREENS, THEMES
from tests.tables.browse.studies import HOSTILE, browsing

pytestmark = pytest.mark.services
_FOCUSED = "document.activeElement.dataset.position"


@pytest.fixture(scope="module")
def attacked(browsed: httpx.Client) -> str:
    """Return the address of a pair with an attack among its replies."""
    filters = {"null": "not_a_single_number"}
    row, *_ = browsed.get("/api/pairs", params=filters).json()["rows"]
    return str(browsed.base_url.copy_with(params={**filters, "pair": row["position"]}))


def test_the_page_fits_its_screen_and_sends_requests_to_its_server_alone(page, browsed, attacked):
    kind = browsed.base_url.copy_with(params={"rule": "kind-b-words-b", "disagreement": "judges"})
    text_by_url = {
        str(browsed.base_url): "mean ratings",
        str(kind): "under “Kind <b>",
        attacked: "Harsh",
    }
    for width, height in SCREENS.values():
        for theme in THEMES:
            for url, text in text_by_url.items():
                page.complaints.clear()
                page.requests.clear()
                page.open(url, width=width, height=height, theme=theme)
                page.wait_for(text)
                page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.complaints == []
                servers = {httpx.URL(url).netloc for url in page.requests}
                assert servers == {browsed.base_url.netloc}


def test_a_reply_with_a_script_stays_text(page, attacked):
    page.open(attacked)
    page.wait_for("Ratings")
    assert page.evaluate("document.title") == "study · ENCORE browse"
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    displayed = HOSTILE
    for invisible in "\x1b\x07\u202e\u200b":
        displayed = displayed.replace(invisible, f"U+{ord(invisible):04X}")
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    replies = "[...document.querySelectorAll('code')].map(code => code.innerText)"
    assert displayed in page.evaluate(replies)
    # The policy also stops code of the page itself that uses a text as markup.
    attempt = "try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; }"
    assert page.evaluate(f"(() => {{ {attempt} }})()") == "TypeError"


def test_keys_suffice_for_every_step(page, browsed):
    page.open(str(browsed.base_url))
    page.wait_for("60 pairs", "Page 1 of 2")
    page.press("j", "ArrowDown", "j", "k")
    assert page.evaluate(_FOCUSED) == "1"
    outline = "getComputedStyle(document.activeElement).outlineWidth"
    assert page.evaluate(outline) == "3px"
    for keys, text in (
        (["Enter"], "2 of 60 pairs"),
        (["j"], "3 of 60 pairs"),
        (["Escape"], "Page 1 of 2"),
        (["n"], "Page 2 of 2"),
        (["Enter"], "51 of 60 pairs"),
        (["k"], "50 of 60 pairs"),  # on the previous page
        (["?"], "this list"),
        (["Escape", "/"], "Page 1 of 2"),
        ([*"answer 7", "Enter"], "2 pairs."),
        (["Escape", "j", "Enter"], "1 of 2 pairs"),
        (["Escape"], "Page 1 of 1"),
    ):
        page.press(*keys)
        page.wait_for(text)
        assert page.evaluate("document.querySelector('dialog').open") is (keys == ["?"])
        assert text[:4] != "Page" or "/" in keys or page.evaluate(_FOCUSED) is not None
    page.evaluate("history.back()")
    page.wait_for("1 of 2 pairs")


def test_enter_opens_the_first_pair_whose_ratings_and_note_are_at_hand(
    page, hostile_study, tmp_path
):
    study = shutil.copytree(hostile_study, tmp_path / "study")
    page.save_downloads(tmp_path)
    with browsing(study) as client:
        for width, height in SCREENS.values():
            page.open(str(client.base_url), width=width, height=height)
            page.wait_for("Page 1 of 2")
            page.press("Enter")
            page.wait_for("1 of 60 pairs")
            card, text = (
                f"document.querySelector('{name}').getBoundingClientRect()"
                for name in (".ratings .card", ".sides > div:not(.ratings) .said")
            )
            assert page.evaluate(f"{card}.right") <= width
            # Texts first: the ratings are beside them, on a phone below.
            assert 0 < page.evaluate(f"{text}.top") < height
            if width > height:
                assert 0 < page.evaluate(f"{card}.top") < page.evaluate(f"{card}.bottom") < height
            else:
                assert page.evaluate(f"{card}.top") > page.evaluate(f"{text}.bottom")
        page.press("e", *"=odd", "Escape")
        page.wait_for("Saved in notes.json")
        page.press("Escape")
        page.wait_for("=odd", "rules against people")
        page.evaluate("document.querySelector('#sorts button').click()")
        page.wait_for("Page 1 of 2")
        [file] = tmp_path.glob("*.csv")
    rows = list(csv.DictReader(file.read_text(encoding="utf-8-sig").splitlines()))
    assert {row["note"] for row in rows} == {"", "'=odd"}
    assert len({row["pair_id"] for row in rows}) == 60


def test_a_wrong_address_and_a_stopped_server_are_shown(page, browsed, hostile_study):
    page.open(str(browsed.base_url.copy_with(params={"rule": "unknown"})))
    page.wait_for("rule 'unknown': expected one of calm")
    with browsing(hostile_study) as client:
        page.open(str(client.base_url))
        page.wait_for("Page 1 of 2")
    page.press("n")
    page.wait_for("is `encore browse` still running?")
