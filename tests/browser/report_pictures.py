"""Take pictures of a report: ``python -m tests.browser.report_pictures STUDY docs``.

Writes the report of a study or ratings file to a temporary folder and saves how it looks on laptop
and phone, light and dark: the first screen (``report-laptop-light.png``) and, with ``--whole``, all
of the page.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from encore.report.write_report import report
from encore.warehouse import open_ratings
from tests.browser.watched_report import SCREENS, Theme, watched_page

THEMES: tuple[Theme, ...] = ("light", "dark")


def take_pictures(executable: str, page_file: Path, *, to: Path, is_whole: bool) -> None:
    """One picture for each screen and theme."""
    with watched_page(executable) as page:
        for screen, theme in itertools.product(SCREENS, THEMES):
            page.look_at(page_file, screen=screen, theme=theme)
            picture = to / f"report-{screen}-{theme}.png"
            if is_whole:
                page.whole_screenshot(picture)
            else:
                page.screenshot(picture)


def main(arguments: Sequence[str]) -> None:
    """Parse the command line and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ratings", type=Path, help="a study or a ratings file")
    parser.add_argument("to", type=Path, help="folder for the pictures")
    parser.add_argument("--run", help="which run, where there are several")
    parser.add_argument(
        "--whole", action="store_true", help="all of the page, not its first screen"
    )
    chosen = parser.parse_args(arguments)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        parser.error("needs Chromium (Debian: apt install chromium)")
    chosen.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        written = report(open_ratings(chosen.ratings, run=chosen.run), out=Path(name))
        take_pictures(chromium, written.page, to=chosen.to, is_whole=chosen.whole)


if __name__ == "__main__":
    main(sys.argv[1:])
