"""Real conversations: both responses of pairs of hh-rlhf, and made-up ones where it is missing."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from encore.data.records import Message
from encore.data.sources.hh import parse
from encore.data.sources.raw_records import MalformedRecordError

Conversation = tuple[Sequence[Message], str]


def made_up(count: int) -> list[Conversation]:
    """Short dialogues of one or three turns, all different."""
    found: list[Conversation] = []
    for number in range(count):
        turns = [Message(role="user", content=f"Question {number}, please? é ≥ {number}")]
        if number % 2:
            turns += [
                Message(role="assistant", content="Which one?"),
                Message(role="user", content="The first. " * (number % 7)),
            ]
        found.append((turns, f"Answer {number}: " + "no, sorry. " * (number % 11)))
    return found


def real(path: Path, count: int) -> list[Conversation]:
    """The first so many of a file of hh-rlhf (.jsonl.gz), chosen and rejected."""
    found: list[Conversation] = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(MalformedRecordError):
                pair = parse(json.loads(line), source="hh")
                found += [(pair.prompt, pair.chosen), (pair.prompt, pair.rejected)]
            if len(found) >= count:
                break
    return found[:count]
