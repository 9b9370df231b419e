"""The elements of one JSON array, read without holding the whole array."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from io import BufferedIOBase
from typing import Any

from encore.errors import InputError

_CHUNK_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def iter_array(stream: BufferedIOBase, *, name: str) -> Iterator[Any]:
    """Each element in order.

    Raises:
        InputError: not valid JSON; after that nothing can be told apart, so the file is refused.
    """
    text = _Buffer(stream, name=name)
    assert text.next_character() == "["
    if text.peek_character() == "]":
        text.next_character()
    else:
        separator = ","
        while separator == ",":
            yield text.next_value()
            separator = text.next_character()
        if separator != "]":
            raise text.invalid(f"expected ',' or ']', found {separator or 'the end of the file'!r}")
    if text.peek_character():
        raise text.invalid("text after the array's closing bracket")


class _Buffer:
    """Decoded text that is read on demand and dropped once consumed."""

    def __init__(self, stream: BufferedIOBase, *, name: str) -> None:
        self._stream = stream
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._position = 0
        self._num_dropped = 0
        self._is_at_end = False

    def invalid(self, what: str) -> InputError:
        near = self._num_dropped + self._position
        return InputError(
            f"{self._name}: not valid JSON near character {near}: {what}; "
            "write one object per line (.jsonl), or one array of objects"
        )

    def peek_character(self) -> str:
        """The next character that is no white space, or nothing at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._position)
            assert space is not None
            self._position = space.end()
            if self._position < len(self._text) or self._is_at_end:
                return self._text[self._position : self._position + 1]
            self._read_more()

    def next_character(self) -> str:
        character = self.peek_character()
        self._position += len(character)
        return character

    def next_value(self) -> Any:
        self.peek_character()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._position)
            except RecursionError as error:
                raise self.invalid("nested too deeply") from error
            except ValueError as error:
                if self._is_at_end:
                    raise self.invalid(str(error)) from error
            else:
                # A number that ends where the buffer ends may go on in the file.
                if end < len(self._text) or self._is_at_end:
                    self._position = end
                    return value
            self._read_more()

    def _read_more(self) -> None:
        self._num_dropped += self._position
        self._text = self._text[self._position :]
        self._position = 0
        # As much again as is there, so that a long element is not scanned once per chunk.
        data = self._stream.read(max(_CHUNK_BYTES, len(self._text)))
        self._is_at_end = not data
        try:
            self._text += self._decoder.decode(data, final=self._is_at_end)
        except UnicodeDecodeError as error:
            raise self.invalid(f"not UTF-8: {error.reason}") from error
