"""Load the hand-written sentences and word lists of one split of the synthetic world.

The three splits share neither templates nor word lists: ``train`` is all the judge ever sees,
``demo`` makes the shipped pairs, ``test`` is kept for the tests.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

Split = Literal["train", "demo", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Breach = Literal["severe", "moderate", "mild"]
Observance = Literal["partial", "strong"]
Stance = Literal["severe", "moderate", "mild", "partial", "strong"]
#: From the worst to the best a sentence can do for its rule.
STANCES: tuple[Stance, ...] = get_args(Stance)
BREACHES: tuple[Breach, ...] = get_args(Breach)
OBSERVANCES: tuple[Observance, ...] = get_args(Observance)

SLOT = re.compile(r"\{(\w+)\}")
_FOLDER = Path(__file__).parent / "world_text"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLexicon:
    """What one split can say about one rule.

    ``bad`` and ``good`` are verb phrases for the stance frames; ``says`` are whole sentences;
    ``words`` fill the slots of all of them.
    """

    rule_id: str
    words: Mapping[str, Sequence[str]]
    bad: Mapping[str, Sequence[str]]
    good: Sequence[str]
    says: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexicon:
    """One split of the world: rules, stance frames and small talk.

    ``exchanges`` are a user's line and the assistant's reply. ``stray_words``, empty but in
    training, now and then fill a slot in place of its own words, so that templates count too.
    """

    split: Split
    rules: Mapping[str, RuleLexicon]
    frames: Mapping[str, Mapping[str, Sequence[str]]]
    talk: Mapping[str, Sequence[str]]
    exchanges: Sequence[tuple[str, str]]
    stray_words: Sequence[str] = ()


@cache
def load_lexicon(split: Split) -> Lexicon:
    """Everything one split can say."""
    rules = [_rule_lexicon(path, split) for path in sorted((_FOLDER / "rules").glob("*.toml"))]
    talk = _read("small_talk.toml")[split]
    return Lexicon(
        split=split,
        rules={rule.rule_id: rule for rule in rules},
        frames=_read("frames.toml")[split],
        talk={kind: lines for kind, lines in talk.items() if kind != "exchanges"},
        exchanges=[(line, reply) for line, reply in talk["exchanges"]],
    )


def _rule_lexicon(path: Path, split: Split) -> RuleLexicon:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    part = data[split]
    return RuleLexicon(
        rule_id=data["rule_id"],
        words=part["words"],
        bad=part["bad"],
        good=part["good"]["acts"],
        says=part["says"],
    )


def _read(name: str) -> Any:
    return tomllib.loads((_FOLDER / name).read_text(encoding="utf-8"))


def lexicon_texts(lexicon: Lexicon) -> list[str]:
    """Every hand-written string of a split, slots removed."""
    parts: list[object] = [lexicon.talk, lexicon.exchanges]
    for rule in lexicon.rules.values():
        parts += [rule.words, rule.bad, rule.good, rule.says]
    return frame_texts(lexicon) + [_plain(text) for part in parts for text in _strings(part)]


def frame_texts(lexicon: Lexicon) -> list[str]:
    """The stance frames of a split."""
    return [_plain(text) for text in _strings(lexicon.frames)]


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """The lower-case words of some texts."""
    return frozenset(word for text in texts for word in re.findall("[a-z]+", text.lower()))


def _plain(text: str) -> str:
    return SLOT.sub(" ", text)


def _strings(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _strings(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _strings(value)
