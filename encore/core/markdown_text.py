"""Put texts from outside into Markdown without any effect: no image, link, HTML or formatting.

A published card is shown by a website. A rule's text in it must not load an image from elsewhere,
link anywhere, or look like a part of the card.
"""

from __future__ import annotations

import re

from encore.core.terminal import visible

#: Characters that begin or end a code span, emphasis, a link, an image, a formula, a strike-through
#: or a cell of a table.
_ACTIVE = re.compile(r"[\\`*\[\]|~$]")
#: What websites make a link of without any mark, and some of them also where it is escaped: a
#: protocol, www. and the address of a person.
_UNMARKED_LINK = re.compile(r"://|www\.|[\w.+-]@[\w-]+\.", re.IGNORECASE)
_BACKTICKS = re.compile("`+")


def inert(text: object) -> str:
    """Return a text on one line that Markdown shows as it is, also in a cell of a table.

    A text with what a website would make a link of becomes a code span.
    """
    line = visible(" ".join(str(text).split()))
    if _UNMARKED_LINK.search(line):
        return code_span(line)
    line = _ACTIVE.sub(r"\\\g<0>", line)
    return line.replace("&", "&amp;").replace("<", "&lt;")


def code_span(text: object) -> str:
    """Return a text on one line as a code span, also in a cell of a table."""
    line = visible(" ".join(str(text).split())).replace("|", "\\|")
    longest = max(map(len, _BACKTICKS.findall(line)), default=0)
    if not longest:
        return f"`{line}`"
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}"
