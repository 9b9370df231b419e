"""How numbers and texts read in the report."""

from __future__ import annotations

from encore.report import words
from tests.report.studies import HOSTILE_TITLES


def test_what_is_not_there_is_a_dash() -> None:
    assert words.number(None) == "–"
    assert words.percent(None) == "–"
    assert words.points(None) == "–"
    assert words.interval(None, 1.0) == "–"
    assert words.percent_interval(0.5, None) == "–"


def test_numbers_have_a_minus_sign_and_never_a_negative_zero() -> None:
    assert words.number(-0.456, digits=2) == "−0.46"
    assert words.number(-0.001, digits=2) == "0.00"
    assert words.percent(0.1234) == "12.3 %"
    assert words.percent(1.0) == "100 %"
    assert words.percent(0.99999) == "100.0 %"
    assert words.percent_interval(0.5, 0.625) == "50.0 to 62.5 %"


def test_differences_show_their_sign() -> None:
    assert words.points(0.0125) == "+1.25"
    assert words.points(-0.0125) == "−1.25"
    assert words.points(0.0) == "0.00"
    assert words.points(0.00001) == "0.00"


def test_counts_are_readable() -> None:
    assert words.plural(1, "pair") == "1 pair"
    assert words.plural(28_000_000, "rating") == "28,000,000 ratings"
    assert [words.short_count(n) for n in (300, 3000, 1_400_000)] == ["300", "3k", "1.4M"]


def test_control_and_direction_characters_become_visible() -> None:
    assert words.printable("a\x00b\u202ec\nd") == r"a\x00b\u202ec\nd"
    assert words.printable("规则 🛡️ <b>") == "规则 🛡️ <b>"
    for title in HOSTILE_TITLES:
        shown = words.printable(title)
        assert "\x1b" not in shown
        assert "\u202e" not in shown


def test_a_long_text_is_cut_with_an_ellipsis() -> None:
    shown = words.wrapped("one two three four five six", width=10)
    assert shown.endswith("…")
    assert all(len(line) <= 10 for line in shown.splitlines())
