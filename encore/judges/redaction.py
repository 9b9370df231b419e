"""Remove keys from the texts of a server, before any text is cut, stored, logged or shown."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus

#: Shorter keys are placeholders such as EMPTY, which may occur in normal texts. Parts of a key that
#: are as long as this are removed too, because a server may cut its own text.
_MIN_LENGTH = 8
#: Characters of a key that stand before and after the marks of a masked key, at least.
_MIN_VISIBLE = 4
#: Marks in place of the middle of a key: sk-ab***yz, sk-ab...yz, sk-ab[...]yz, sk-ab<hidden>yz.
_MASK = re.compile(r" ?(?:[*•●·.…_#-]{2,}|[*•●…]|[xX]{3,}|\[[\w. ]+\]|<[\w ]+>)+ ?")
_REPLACEMENT = "[key]"


class Redactor:
    """Replaces keys by ``[key]``: whole, in parts, masked, and in the usual encodings.

    >>> Redactor(["sk-abcdef-0123456789"]).text("no such key: sk-abc***789, Bearer sk-abcdef-01234")
    'no such key: [key], Bearer [key]'
    """

    def __init__(self, keys: Iterable[str]) -> None:
        """Take the keys; those of fewer than eight characters are placeholders."""
        self._keys = [key.lower() for key in keys if len(key) >= _MIN_LENGTH]
        self._forms = {form.lower() for key in keys for form in _encoded_forms(key)}
        parts = {
            form[start : start + _MIN_LENGTH]
            for form in self._forms
            for start in range(len(form) - _MIN_LENGTH + 1)
        }
        pattern = "|".join(map(re.escape, sorted(parts)))
        self._part = re.compile(pattern, re.IGNORECASE | re.ASCII) if parts else None

    def text(self, text: str) -> str:
        """Return a text without the keys."""
        if self._part is None:
            return text
        for key in self._keys:
            text = _without_masked(text, key)
        kept, position = list[str](), 0
        while match := self._part.search(text, position):
            kept += [text[position : match.start()], _REPLACEMENT]
            position = match.end()
            while position < len(text) and self._is_part(text[match.start() : position + 1]):
                position += 1
        return "".join([*kept, text[position:]])

    def value(self, value: Any) -> Any:
        """Return a JSON value without the keys in its texts and in the names of its fields."""
        if self._part is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self.value(item) for name, item in value.items()}
        return value

    def _is_part(self, text: str) -> bool:
        return any(text.lower() in form for form in self._forms)


def _without_masked(text: str, key: str) -> str:
    """Return a text without the visible ends of a masked key, which is in small letters."""
    kept, position, lengths = list[str](), 0, range(len(key), 0, -1)
    for match in _MASK.finditer(text):
        start, end = match.span()
        before = text[max(position, start - len(key)) : start].lower()
        after = text[end : end + len(key)].lower()
        num_before = next((n for n in lengths if before.endswith(key[:n])), 0)
        num_after = next((n for n in lengths if after.startswith(key[-n:])), 0)
        if num_before + num_after >= _MIN_VISIBLE:
            kept += [text[position : start - num_before], _REPLACEMENT]
            position = end + num_after
    return "".join([*kept, text[position:]])


def _encoded_forms(key: str) -> Iterable[str]:
    """Yield a key as it is, and as URLs, JSON, HTML, hex digits and base64 have it."""
    forms = [key, quote(key, safe=""), quote_plus(key), json.dumps(key)[1:-1], html.escape(key)]
    forms += [key.replace("/", "\\/"), key.encode().hex()]
    for num_before in range(3):  # base64 depends on the number of bytes before the key
        data = b" " * num_before + key.encode()
        first, last = -(-num_before * 8 // 6), len(data) * 8 // 6
        encoded = base64.b64encode(data).decode()[first:last]
        forms += [encoded, encoded.translate(str.maketrans("+/", "-_"))]
    yield from (form for form in forms if len(key) >= _MIN_LENGTH)
