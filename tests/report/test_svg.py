"""Drawings on the page and in files: no style, no reference to elsewhere, colours by name."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes

from encore.report.canvas import DrawnChart, draw_chart
from encore.report.chart import Chart, DataTable, Panel
from encore.report.charts.axes import tip
from encore.report.palette import BLUE, INK, PALETTE
from encore.report.words import printable
from tests.report.studies import HOSTILE_TITLES

HOSTILE = " ".join(HOSTILE_TITLES)


def chart(*, title: str = "a title", tip_text: str = "a tip", num_panels: int = 1) -> Chart:
    def draw(axes: Axes) -> None:
        [dot] = axes.plot([0.5], [0.5], "o", color=BLUE)
        tip(dot, tip_text)
        axes.plot([0, 1], [0, 1], color=INK)
        axes.set_xlabel("share of $a$ and $b$")

    panel = Panel(title=title, subtitle="n 1", alt="A dot.", draw=draw)
    table = DataTable(columns=("a",), rows=(("1",),))
    return Chart(
        name="dots", title=title, caption="", panels=(panel,) * num_panels, table=table, columns=2
    )


@pytest.fixture(scope="module")
def drawn() -> DrawnChart:
    return draw_chart(chart(num_panels=3))


def test_a_page_s_drawing_has_no_style_no_colour_and_no_address(drawn: DrawnChart) -> None:
    for panel in drawn.panels:
        assert "style" not in panel
        assert "http" not in panel
        assert "#" not in re.sub(r'(url\(|href=")#dots-\d-', "", panel)  # colours begin with one
        assert 'class="f-blue s-blue"' in panel
        assert "s-ink" in panel


def test_drawings_of_one_page_share_no_id(drawn: DrawnChart) -> None:
    ids = [name for panel in drawn.panels for name in re.findall(r' id="([^"]+)"', panel)]
    assert ids
    assert len(ids) == len(set(ids))


def test_every_reference_has_its_target(drawn: DrawnChart) -> None:
    for panel in drawn.panels:
        ids = set(re.findall(r' id="([^"]+)"', panel))
        referenced = set(re.findall(r'(?:href="|url\()#([^")]+)', panel))
        assert referenced
        assert referenced == ids


def test_a_drawing_says_what_it_shows(drawn: DrawnChart) -> None:
    assert 'aria-label="A dot."' in drawn.panels[0]
    assert b'aria-label="a title. A dot. A dot. A dot."' in drawn.svg


def test_a_file_is_valid_svg_in_light_tones(drawn: DrawnChart) -> None:
    root = ElementTree.fromstring(drawn.svg)  # noqa: S314 - our own file
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    colours = set(re.findall(rb"#[0-9a-f]{6}\b", drawn.svg))
    assert colours <= {tone.light.encode() for tone in PALETTE.values()}
    addresses = set(re.findall(rb"https?://[^\"]+", drawn.svg))
    assert addresses == {b"http://www.w3.org/2000/svg", b"http://www.w3.org/1999/xlink"}


def test_pointing_at_a_mark_tells_its_figures(drawn: DrawnChart) -> None:
    assert "<title>a tip</title>" in drawn.panels[0]


def test_hostile_names_are_text_and_nothing_else() -> None:
    drawn = draw_chart(chart(title=printable(HOSTILE), tip_text=HOSTILE))
    for text in (drawn.panels[0], drawn.svg.decode()):
        assert "<script" not in text
        assert "<img" not in text
        ElementTree.fromstring(text)  # noqa: S314 - our own drawing; it is whole XML
        assert "\u202e" not in text


def test_dollar_signs_are_no_mathematics(drawn: DrawnChart) -> None:
    assert "share of $a$ and $b$" in drawn.panels[0]


def test_characters_without_a_glyph_are_named_and_kept() -> None:
    drawn = draw_chart(chart(title="规 x"))
    assert drawn.missing_glyphs == ("规",)
    assert "规 x" in drawn.svg.decode()


def test_the_same_chart_is_the_same_bytes() -> None:
    first, second = draw_chart(chart(num_panels=2)), draw_chart(chart(num_panels=2))
    assert (first.panels, first.svg, first.png) == (second.panels, second.svg, second.png)


def test_a_person_s_own_matplotlib_settings_change_nothing(drawn: DrawnChart) -> None:
    import matplotlib

    own = {"font.size": 30.0, "axes.facecolor": "#ff0000", "lines.linewidth": 9.0}
    with matplotlib.rc_context(own):
        assert draw_chart(chart(num_panels=3)).svg == drawn.svg
        assert matplotlib.rcParams["font.size"] == 30.0


def test_what_is_synthetic_says_so_in_its_file() -> None:
    assert b"SYNTHETIC" in draw_chart(chart(), mark="SYNTHETIC").svg
    assert b"SYNTHETIC" not in draw_chart(chart()).svg
