"""Groups of pairs that begin alike, and where a draw by content hash puts them."""

from __future__ import annotations

import hashlib

from encore.data.records import PreferencePair


def group_of(pair: PreferencePair) -> int:
    """A content hash of the prompt's first human turn, as a signed 64-bit number.

    Conversations that begin alike continue alike: pairs of one group are never parted between
    training and evaluation.
    """
    first = next((turn.content for turn in pair.prompt if turn.role == "user"), "")
    digest = hashlib.sha256(first.strip().encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def place_of(group: int, *, seed: int) -> float:
    """Where a group falls in [0, 1), evenly spread: it depends on its text and the seed alone."""
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2.0**48  # 48 bits: exact in a float, never 1
