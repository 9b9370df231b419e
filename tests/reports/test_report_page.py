"""The report in a browser: no errors, no requests, readable on every screen in both themes."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.reports.write_report import report
from tests.browser.chromium import Page
from tests.reports.studies import HOSTILE_TITLES, write_rated_study

pytestmark = pytest.mark.services
#: Width and height of each screen.
SCREENS = {"laptop": (1280, 800), "phone": (390, 844)}
THEMES = ("light", "dark")
_SORTABLE = "document.querySelector('[data-sortable]')"
_CUT_VERDICTS = """[...document.querySelectorAll('.answer :is(tbody th, strong)')]
    .map(cell => cell.getBoundingClientRect())
    .filter(box => box.left < 0 || box.right > innerWidth).length"""
_MOST_PICTURES = """Math.max(...[...document.querySelectorAll('section')].map(section =>
    [...section.querySelectorAll('img')].filter(image => image.checkVisibility()).length))"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    study = write_rated_study(folder / "study", sources=("synthetic-hh", "pku"))
    return report(study, out=folder / "report").page


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    study = write_rated_study(folder / "study", titles=HOSTILE_TITLES)
    return report(study, out=folder / "report").page


def open_report(page: Page, file: Path, *, screen: str, theme: str) -> None:
    width, height = SCREENS[screen]
    page.open(file.as_uri(), width=width, height=height, theme=theme)
    page.wait_for("Where these figures come from")


def test_a_report_has_no_errors_or_requests_and_fits_its_screen(page, plain, hostile):
    for file, screen, theme in [
        *((plain, screen, theme) for screen in SCREENS for theme in THEMES),
        *((hostile, screen, "light") for screen in SCREENS),
    ]:
        page.complaints.clear()
        page.requests.clear()
        open_report(page, file, screen=screen, theme=theme)
        width, height = SCREENS[screen]
        assert page.evaluate(_CUT_VERDICTS) == 0
        assert 1 <= page.evaluate(_MOST_PICTURES) <= 3
        page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith("data:")] == [file.as_uri()]
        if file == plain:  # the mark of synthetic data is seen at once
            banner = "document.querySelector('.banner').getBoundingClientRect().bottom"
            assert 0 < page.evaluate(banner) < height


def test_drawings_stay_in_their_card_and_are_readable_on_a_phone(page, plain):
    for screen in SCREENS:
        open_report(page, plain, screen=screen, theme="light")
        outside = page.evaluate(
            """[...document.querySelectorAll('.panel:not(.broad) img')].filter(image => {
                const card = image.closest('figure').getBoundingClientRect();
                const box = image.getBoundingClientRect();
                return box.left < card.left - 1 || box.right > card.right + 1;
            }).map(image => image.alt)"""
        )
        assert outside == []
        # The smallest text of a drawing is 9 points, 12 CSS pixels at its natural width.
        smallest = page.evaluate(
            """Math.min(...[...document.querySelectorAll('img')].map(image =>
                12 * image.getBoundingClientRect().width / image.getAttribute('width')))"""
        )
        assert smallest >= 10
    hints = page.evaluate(
        """[...document.querySelectorAll('.scroll')].filter(box => box.clientWidth).map(box =>
            [box.scrollWidth > box.clientWidth + 8, !box.previousElementSibling.hidden])"""
    )
    assert all(is_cut == is_said for is_cut, is_said in hints)
    assert any(is_cut for is_cut, _ in hints)


def test_the_theme_follows_the_system_and_the_toggle(page, plain):
    look = (
        "['html', '#ties img'].map(name => getComputedStyle(document.querySelector(name)))"
        ".map((style, index) => index ? style.filter : style.backgroundColor)"
    )
    toggle = "document.querySelector('[data-theme-toggle]')"
    seen = {}
    for theme in THEMES:
        open_report(page, plain, screen="laptop", theme=theme)
        seen[theme] = page.evaluate(look)
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]
    for theme, is_pressed in (("light", "false"), ("dark", "true")):
        page.evaluate(f"{toggle}.click()")
        assert page.evaluate(look) == seen[theme]
        assert page.evaluate(f"{toggle}.getAttribute('aria-pressed')") == is_pressed


def test_a_heading_sorts_by_click_and_by_key(page, plain):
    def column(index: int) -> list[str]:
        cells = f"[...{_SORTABLE}.querySelectorAll('tbody tr')].map(row => row.cells[{index}])"
        return list(page.evaluate(f"{cells}.map(cell => cell.dataset.value)"))

    open_report(page, plain, screen="laptop", theme="light")
    heading = f"{_SORTABLE}.querySelectorAll('thead th')[1]"
    page.evaluate(f"{heading}.querySelector('button').click()")
    assert page.evaluate(f"{heading}.getAttribute('aria-sort')") == "ascending"
    page.evaluate(f"{heading}.querySelector('button').focus()")
    page.press("Enter")
    assert page.evaluate(f"{heading}.getAttribute('aria-sort')") == "descending"
    assert column(1)[0] == "open"
    sorted_headings = f"{_SORTABLE}.querySelectorAll('[aria-sort]:not([aria-sort=none])')"
    assert page.evaluate(f"{sorted_headings}.length") == 1
    assert sorted(column(1)) == ["calm", "fair", "kind", "mild", "neat", "open"]
    page.evaluate(f"{_SORTABLE}.querySelectorAll('thead button')[5].click()")
    entropies = [float(value) for value in column(5)]
    assert entropies == sorted(entropies)
