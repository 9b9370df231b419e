"""The content hash that names a preference pair."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from encore.data.records import Message

_NUM_HEX_DIGITS = 32
_LENGTH_BYTES = 8


def pair_id_of(prompt: Sequence[Message], *, chosen: str, rejected: str) -> str:
    """32 hex digits that depend on the texts and roles alone: not on source, order or machine.

    The hash is the first half of SHA-256 over the number of messages, then role and content of
    each message, then chosen, then rejected. The number and every text's length in bytes are
    written as 8 big-endian bytes before it, so no two pairs share an encoding. Texts are UTF-8
    exactly as given: nothing is stripped, folded or normalised here.
    """
    digest = hashlib.sha256(len(prompt).to_bytes(_LENGTH_BYTES, "big"))
    for text in _texts(prompt, chosen, rejected):
        encoded = text.encode("utf-8")
        digest.update(len(encoded).to_bytes(_LENGTH_BYTES, "big"))
        digest.update(encoded)
    return digest.hexdigest()[:_NUM_HEX_DIGITS]


def _texts(prompt: Sequence[Message], chosen: str, rejected: str) -> Iterator[str]:
    for message in prompt:
        yield message.role
        yield message.content
    yield chosen
    yield rejected
