"""One JSON array, read in pieces, gives what reading it whole gives."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.data.sources import json_array
from encore.data.sources.json_array import iter_array
from encore.errors import InputError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def read(text: bytes) -> list[Any]:
    return list(iter_array(io.BytesIO(text), name="x.json"))


@given(st.lists(json_values, max_size=6), st.sampled_from([None, 1]), st.integers(1, 9))
def test_pieces_of_any_size_give_the_whole(
    elements: list[Any], indent: int | None, chunk_bytes: int
) -> None:
    text = json.dumps(elements, ensure_ascii=False, indent=indent)
    # Surrogates cannot be written as UTF-8; hypothesis' text has none.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "_CHUNK_BYTES", chunk_bytes)
        assert read(text.encode()) == elements


@pytest.mark.parametrize(
    "text",
    [
        b"[",
        b"[1",
        b"[1,",
        b"[1, ]",
        b"[1 2]",
        b"[1] 2",
        b'["a',
        b'[{"a": 1}',
        b'["\xff"]',
        b"[nope]",
        b"[" + b"[" * 100_000,
    ],
)
def test_what_is_no_array_is_refused_with_the_place(text: bytes) -> None:
    with pytest.raises(InputError, match=r"x\.json: not valid JSON near character \d+"):
        read(text)


def test_the_place_is_counted_from_the_start_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "_CHUNK_BYTES", 4)
    # The bad word starts after "[", 300 times "10," and nothing else: character 1 + 900.
    with pytest.raises(InputError, match="near character 901"):
        read(b"[" + b"10," * 300 + b"oops]")
