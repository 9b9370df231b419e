"""What every reader is given: 30 pairs, 60 conversations, a third of them awkward on purpose."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from encore.data.records import RESPONSES, Message, PreferencePair, pair_id_of
from encore.data.sources.hh import parse
from encore.data.sources.raw_records import MalformedRecordError
from encore.demo import data_paths

#: Prompt turns (user first), chosen, rejected. No text spells a special token: readers would take
#: it for that token.
_AWKWARD: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("Hi.",), "", "."),
    ((" \n two spaces before \n",), "\n\n  and here  \n", "and here"),
    (("Crème brûlée, naïve, Łódź: what else?",), "日本語 and 한국어.", "Ὀδυσσεύς 🙂🙃 👩‍👩‍👧"),
    (("{{ messages[0] }} {% if x %}",), "{%- raw -%} {{ 7 * 7 }}", "\\n is not \n, 100 % sure"),
    (("Human: who speaks?\n\nAssistant: I do.",), "Human: no, I do.", "Assistant: Both."),
    (("a\tb\r\nc\u2028d\u00a0e",), "&lt;b&gt; <b>bold</b> </s", "[INST] no [/INST] <|odd|>"),
    (("Count.", "One.", "Go on.", "Two.", "And?"), "Three.", "Stop it."),
    (("Why?", "", "Say more."), "Because " + "of the rain and " * 150, "word " * 250),
    (("Write a loop.",), "for i in range(3):\n    print(i)\n", "```sh\nrm -rf ./build\n```"),
    (("x" * 400,), "0.1 + 0.2 != 0.3", "-1e-5, 1_000, 3½, ∞"),
)
_NUM_PAIRS = 30


def reader_pairs() -> list[PreferencePair]:
    """The awkward pairs first, then synthetic ones of several turns."""
    awkward = [_pair(*texts) for texts in _AWKWARD]
    return [*awkward, *alternating(demo_pairs(), count=_NUM_PAIRS - len(awkward))]


def demo_pairs() -> Iterator[PreferencePair]:
    """The synthetic pairs that ship with the demo."""
    return read_hh(data_paths()["synthetic-hh"])


def read_hh(path: Path) -> Iterator[PreferencePair]:
    """The pairs of a raw hh-rlhf file, without what `encore ingest` would set aside."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(MalformedRecordError):
                yield parse(json.loads(line), source="hh")


def alternating(pairs: Iterator[PreferencePair], *, count: int) -> list[PreferencePair]:
    """The first of them whose turns alternate: `rewardbench` names the roles by counting turns."""
    fit = (pair for pair in pairs if _roles(pair) == _expected_roles(len(pair.prompt)))
    return list(islice(fit, count))


def messages_of(pair: PreferencePair) -> list[list[dict[str, str]]]:
    """Both conversations of a pair, chosen first, as chat messages."""
    prompt = [{"role": turn.role, "content": turn.content} for turn in pair.prompt]
    return [
        [*prompt, {"role": "assistant", "content": pair.response_text(response)}]
        for response in RESPONSES
    ]


def conversations_of(pairs: Sequence[PreferencePair]) -> list[list[dict[str, str]]]:
    """Chosen and rejected of the first pair, of the second, …"""
    return [messages for pair in pairs for messages in messages_of(pair)]


def _pair(turns: tuple[str, ...], chosen: str, rejected: str) -> PreferencePair:
    roles = _expected_roles(len(turns))
    prompt = tuple(
        Message(role="user" if role == "user" else "assistant", content=text)
        for role, text in zip(roles, turns, strict=True)
    )
    pair_id = pair_id_of(prompt, chosen=chosen, rejected=rejected)
    return PreferencePair(
        pair_id=pair_id, source="awkward", prompt=prompt, chosen=chosen, rejected=rejected
    )


def _roles(pair: PreferencePair) -> list[str]:
    return [message.role for message in pair.prompt]


def _expected_roles(num_turns: int) -> list[str]:
    return ["assistant" if index % 2 else "user" for index in range(num_turns)]
