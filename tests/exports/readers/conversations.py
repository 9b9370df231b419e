"""Pairs of conversations for every reader; a third of them are hard to render."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from encore.data.records import RESPONSES, Message, PreferencePair
from encore.data.sources.hh import parse
from encore.data.sources.raw_records import MalformedRecordError
from encore.demo import DATA_PATHS

#: Prompt turns (user first), chosen, rejected. No text spells a special token: readers would take
#: it for that token.
_AWKWARD: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("Hi.",), "", "."),
    ((" \n two spaces before \n",), "\n\n  and here  \n", "and here"),
    (("Crème brûlée, naïve, Łódź: what else?",), "日本語 and 한국어.", "Ὀδυσσεύς 🙂🙃 👩‍👩‍👧"),
    (("{{ messages[0] }} {% if x %}",), "{%- raw -%} {{ 7 * 7 }}", "\\n is not \n, 100 % sure"),
    (("a\tb\r\nc\u2028d\u00a0e",), "&lt;b&gt; <b>bold</b> </s", "[INST] no [/INST] <|odd|>"),
    (("Count.", "One.", "Go on.", "Two.", "And?"), "Three.", "Stop it."),
    (("Why?", "", "Say more."), "Because " + "of the rain and " * 150, "word " * 250),
)
_NUM_PAIRS = 24


def reader_pairs() -> list[PreferencePair]:
    """Return the awkward pairs, then synthetic pairs of several turns."""
    awkward = [
        PreferencePair(
            pair_id=f"{number:032x}",
            source="awkward",
            prompt=tuple(
                Message(role="assistant" if index % 2 else "user", content=text)
                for index, text in enumerate(turns)
            ),
            chosen=chosen,
            rejected=rejected,
        )
        for number, (turns, chosen, rejected) in enumerate(_AWKWARD)
    ]
    demo = read_hh(DATA_PATHS["synthetic-hh"])
    return [*awkward, *alternating(demo, count=_NUM_PAIRS - len(awkward))]


def read_hh(path: Path) -> Iterator[PreferencePair]:
    """Yield the pairs of a raw hh-rlhf file, without those that `encore ingest` sets aside."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(MalformedRecordError):
                yield parse(json.loads(line), source="hh")


def alternating(pairs: Iterator[PreferencePair], *, count: int) -> list[PreferencePair]:
    """Return the first pairs whose turns alternate: `rewardbench` reads roles from their order."""

    def fits(pair: PreferencePair) -> bool:
        roles = [message.role for message in pair.prompt]
        return roles == [("user", "assistant")[index % 2] for index in range(len(roles))]

    return list(islice(filter(fits, pairs), count))


def messages_of(pair: PreferencePair) -> list[list[dict[str, str]]]:
    """Return both conversations of a pair as chat messages, chosen first."""
    prompt = [{"role": turn.role, "content": turn.content} for turn in pair.prompt]
    return [
        [*prompt, {"role": "assistant", "content": pair.response_text(response)}]
        for response in RESPONSES
    ]
