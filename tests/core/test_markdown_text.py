"""A text from outside has no effect in Markdown: a reader of Markdown shows it as it is."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from encore.core.markdown_text import code_span, inert
from encore.core.terminal import visible

#: GitHub's dialect but for links without marks.
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
#: Where websites make a link without marks, but not in code.
UNMARKED_LINKS = re.compile(r"://|www\.|@evil", re.IGNORECASE)
HOSTILE = (
    "![x](https://evil.example/p.png)",
    "[click](https://evil.example)",
    "[click](//evil.example) ![p](/p.png) [click]( <javascript:alert(1)> )",
    "[click][1] [1]: https://evil.example",
    "see https://evil.example, www.evil.example, HTTP://evil.example or me@evil.example",
    "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "**bold** `code` ~~gone~~ | another | cell |",
    "a\\`b\\[c\\] &lt;b&gt; &#91;x&#93;(https://evil.example)",
    "line\n\n# heading\n- item\n> quote",
    "\x1b[31mred\u202ereversed",
    "`` ` ``` a` ``",
)


def shown(markdown: str) -> str:
    """Return the text that a reader sees in a cell; it has no element but one whole code span."""
    table = MARKDOWN.render(f"| a | b |\n|---|---|\n| x {markdown} y | c |\n")
    assert table.count("<td>") == 2
    cell = table.split("<td>")[1].split("</td>")[0]
    assert cell.startswith("x ")
    assert cell.endswith(" y")
    body = cell.removeprefix("x ").removesuffix(" y")
    if body.startswith("<code>"):
        body = body.removeprefix("<code>").removesuffix("</code>")
    else:
        assert not UNMARKED_LINKS.search(body)
    assert "<" not in body, body
    return html.unescape(body)


def plain(text: str) -> str:
    return visible(" ".join(text.split()))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_as_it_is(text):
    assert shown(inert(text)) == plain(text)


@given(st.text(st.sampled_from("a w.:/@[]()!<>&;#`*~|$\\\n\x1b"), max_size=30))
def test_any_text_is_shown_as_it_is(text):
    assert shown(inert(text)) == plain(text)


@given(st.text(st.sampled_from("ab .[]()!<>&`*|\\"), min_size=1, max_size=20))
def test_a_code_span_ends_where_it_should(text):
    if not text.strip():
        return
    assert shown(code_span(text)).strip() == plain(text)


def test_a_plain_id_stays_a_plain_code_span():
    assert code_span("be-kind") == "`be-kind`"
    assert inert("Is it kind, and true: 5 of 9?") == "Is it kind, and true: 5 of 9?"
