"""The report in a browser: quiet, self-sufficient, readable on every screen, by day and night."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from encore.report.write_report import report
from tests.browser.watched_report import SCREENS, Theme, WatchedPage, watched_page
from tests.report.studies import HOSTILE_TITLES, write_rated_study

pytestmark = pytest.mark.services
THEMES: tuple[Theme, ...] = ("light", "dark")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report on plain names and one on hostile ones."""
    folder = tmp_path_factory.mktemp("report")
    plain = write_rated_study(folder / "plain", sources=("synthetic-hh", "pku"))
    hostile = write_rated_study(folder / "hostile", titles=HOSTILE_TITLES)
    return {
        "plain": report(plain, out=folder / "plain-report").page,
        "hostile": report(hostile, out=folder / "hostile-report").page,
    }


@pytest.fixture(scope="module")
def page(chromium: str) -> Iterator[WatchedPage]:
    with watched_page(chromium) as watched:
        yield watched


def first_rule(page: WatchedPage) -> str:
    return str(page.evaluate("document.querySelector('[data-sortable] tbody th').innerText"))


@pytest.mark.parametrize(("screen", "theme"), [*itertools.product(SCREENS, THEMES)])
@pytest.mark.parametrize("kind", ["plain", "hostile"])
def test_a_report_is_quiet_and_fits_its_screen(
    page: WatchedPage,
    written: dict[str, Path],
    tmp_path: Path,
    kind: str,
    screen: str,
    theme: Theme,
) -> None:
    page.complaints.clear()
    page.requests.clear()
    page.look_at(written[kind], screen=screen, theme=theme)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    page.settle()
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == [written[kind].as_uri()]
    width, _ = SCREENS[screen]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = false")
    picture = tmp_path / f"{kind}-{screen}-{theme}.png"
    page.whole_screenshot(picture)
    assert picture.stat().st_size > 50_000


def test_drawings_stay_in_their_card_and_are_readable_on_a_phone(
    page: WatchedPage, written: dict[str, Path]
) -> None:
    for screen in SCREENS:
        page.look_at(written["plain"], screen=screen, theme="light")
        outside = page.evaluate(
            """[...document.querySelectorAll('.panel:not(.broad) img.light')].filter(image => {
                const card = image.closest('figure').getBoundingClientRect();
                const box = image.getBoundingClientRect();
                return box.left < card.left - 1 || box.right > card.right + 1;
            }).map(image => image.alt)"""
        )
        assert outside == []
        # The smallest text of a drawing is 9 points, 12 CSS pixels at its natural width.
        smallest = page.evaluate(
            """Math.min(...[...document.querySelectorAll('img.light')].map(image =>
                12 * image.getBoundingClientRect().width / image.getAttribute('width')))"""
        )
        assert smallest >= 10


def test_a_table_that_is_cut_says_so(page: WatchedPage, written: dict[str, Path]) -> None:
    page.look_at(written["plain"], screen="phone", theme="light")
    hints = page.evaluate(
        """[...document.querySelectorAll('.scroll')].filter(box => box.clientWidth).map(box =>
            [box.scrollWidth > box.clientWidth + 8, !box.previousElementSibling.hidden])"""
    )
    assert hints
    assert all(is_cut == is_said for is_cut, is_said in hints)
    assert any(is_cut for is_cut, _ in hints)


def test_the_theme_follows_the_system_and_the_toggle(
    page: WatchedPage, written: dict[str, Path]
) -> None:
    look = (
        "[getComputedStyle(document.body.parentElement).backgroundColor, "
        "[...document.querySelectorAll('#ties img')].find(one => one.clientWidth).className]"
    )
    seen = {}
    for theme in THEMES:
        page.look_at(written["plain"], screen="laptop", theme=theme)
        seen[theme] = page.evaluate(look)
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]
    page.evaluate("document.querySelector('[data-theme-toggle]').click()")
    assert page.evaluate(look) == seen["light"]
    page.evaluate("document.querySelector('[data-theme-toggle]').click()")
    assert page.evaluate(look) == seen["dark"]
    pressed = "document.querySelector('[data-theme-toggle]').getAttribute('aria-pressed')"
    assert page.evaluate(pressed) == "true"


def test_a_heading_sorts_by_click_and_by_key(page: WatchedPage, written: dict[str, Path]) -> None:
    page.look_at(written["plain"], screen="laptop", theme="light")
    heading = "document.querySelectorAll('[data-sortable] thead th')[1]"
    assert first_rule(page).startswith("Calm")
    page.evaluate(f"{heading}.querySelector('button').click()")
    assert page.evaluate(f"{heading}.getAttribute('aria-sort')") == "ascending"
    page.evaluate(f"{heading}.querySelector('button').focus()")
    page.press("Enter")
    assert page.evaluate(f"{heading}.getAttribute('aria-sort')") == "descending"
    assert first_rule(page).startswith("Open")
    sorted_by = page.evaluate(
        "document.querySelectorAll('[aria-sort]:not([aria-sort=none])').length"
    )
    assert sorted_by == 1


def test_numbers_sort_as_numbers(page: WatchedPage, written: dict[str, Path]) -> None:
    page.look_at(written["plain"], screen="laptop", theme="light")
    page.evaluate("document.querySelectorAll('[data-sortable] thead button')[2].click()")
    values = page.evaluate(
        "[...document.querySelectorAll('[data-sortable] tbody tr')]"
        ".map(row => Number(row.cells[2].dataset.value))"
    )
    assert values == sorted(values)


def test_what_is_synthetic_is_seen_at_once(page: WatchedPage, written: dict[str, Path]) -> None:
    for screen, (_, height) in SCREENS.items():
        page.look_at(written["plain"], screen=screen, theme="light")
        bottom = page.evaluate("document.querySelector('.banner').getBoundingClientRect().bottom")
        assert 0 < bottom < height
