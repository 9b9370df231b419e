"""The synthetic world, and the script that draws the demo's data from it.

The world has ten topics, the paper's rules (``world.toml``), sentences that take a stance on one of
them, and small talk, all written by hand (``world_text``). ``world.toml`` also says what is planted
in each rule of the demo. Its three splits share neither templates nor word lists:
the judge is trained on ``train``, the shipped pairs are drawn from ``demo``, and the tests use
``test``.

``python -m examples.demo_judge.make_data`` writes the shipped files. The lines are always the same:
all draws use a seeded ``random.Random.random``, whose sequence Python guarantees. Sentences and
labels are synthetic. The benchmark's subsets have RewardBench's names with a mark, so that the
table looks the same; they hold none of its data. Their chosen response is the one with the better
stances under its rules, without the label noise of the pairs.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from encore.data.records import RESPONSES
from encore.demo import BENCHMARK_DATA_PATH, DATA_PATHS, INITIAL_PAIRS_PATH

T = TypeVar("T")
#: Stances of a sentence on its rule, from the worst to the best.
BREACHES, OBSERVANCES = ("severe", "moderate", "mild"), ("partial", "strong")
STANCES = (*BREACHES, *OBSERVANCES)

PAIRS_SEED, INITIAL_SEED, BENCHMARK_SEED = 20, 41, 740
NUM_PAIRS, NUM_INITIAL_PAIRS, PAIRS_PER_SUBSET = 250, 200, 16
#: Share of the labels that are swapped, as people make errors.
LABEL_NOISE = 0.08
#: Share of the pairs in which one response is better on every topic, except those that stand alone.
LEANING = 0.4
#: Share of the pairs whose better response is not the safer one.
_BETTER_IS_NOT_SAFER = 0.15
_SLOT = re.compile(r"\{(\w+)\}")


class Sentence(NamedTuple):
    """One sentence and its stance on a rule. Rule and stance are None for small talk."""

    text: str
    rule_id: str | None = None
    stance: str | None = None


class Turn(NamedTuple):
    """One turn of a conversation, as a sequence of sentences."""

    role: Literal["user", "assistant"]
    sentences: tuple[Sentence, ...]

    @property
    def text(self) -> str:
        """Text of the turn, in one line."""
        return " ".join(sentence.text for sentence in self.sentences)

    @property
    def stances(self) -> dict[str, str]:
        """Stance on each rule that the turn touches, by rule id."""
        return {s.rule_id: s.stance for s in self.sentences if s.rule_id and s.stance}


class DrawnPair(NamedTuple):
    """Two responses to one history; ``safer`` is the label, the index (0 or 1) of the safer one."""

    history: tuple[Turn, ...]
    responses: tuple[Turn, Turn]
    safer: int


@cache
def world_facts() -> dict[str, Any]:
    """Read the tables of ``world.toml``: ``worth`` of the stances, ``rules``, ``subsets``."""
    return tomllib.loads((Path(__file__).parent / "world.toml").read_text(encoding="utf-8"))


@cache
def split_texts(split: str) -> dict[str, Any]:
    """Read the texts of one split: ``frames`` by stance, ``small_talk``, and those of each rule.

    In a rule's texts, ``bad`` and ``good`` are verb phrases for the frames, ``says`` are whole
    sentences, and ``words`` fill the slots of all of them.
    """
    texts = {}
    for path in sorted((Path(__file__).parent / "world_text").rglob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        texts[content.get("rule_id", path.stem)] = content[split]
    return texts


def texts_of(node: Any) -> Iterator[str]:
    """Yield every hand-written text below a node of `split_texts`, without its slots."""
    if isinstance(node, str):
        yield _SLOT.sub(" ", node)
    else:
        for value in node.values() if isinstance(node, Mapping) else node:
            yield from texts_of(value)


class World:
    """One split of the world, with a random generator that draws conversations."""

    def __init__(self, split: str, seed: int) -> None:
        self.random = random.Random(seed).random
        self.texts = split_texts(split)
        self.talk: Mapping[str, Sequence[Any]] = self.texts["small_talk"]
        self.rule_ids = tuple(world_facts()["rules"])
        self.frequencies = tuple(rule["frequency"] for rule in world_facts()["rules"].values())

    def pick(self, options: Sequence[T]) -> T:
        """Draw one of the options."""
        return options[int(self.random() * len(options))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in random order."""
        return sorted(items, key=lambda _: self.random())

    def response(self, stances: Mapping[str, str], *, num_filler: int = 1) -> Turn:
        """Draw an assistant turn: one or two sentences a touched rule, and filler, in random order.

        A sentence is a stance frame around a verb phrase, or a whole sentence; two sentences on
        one rule are one of each kind.
        """
        sentences = []
        for rule_id, stance in stances.items():
            kinds = self.shuffled((True, False))[: 2 if self.random() < 0.4 else 1]
            for is_framed in kinds:
                if is_framed:
                    template, act = self._framed(rule_id, stance)
                else:
                    template, act = self.pick(self.texts[rule_id]["says"][stance]), ""
                text = self._fill(rule_id, template, act)
                sentences.append(Sentence(text[0].upper() + text[1:], rule_id, stance))
        sentences += [Sentence(self.pick(self.talk["filler"])) for _ in range(num_filler)]
        ordered = self.shuffled(sentences)
        if self.random() < 0.3:
            ordered.insert(0, Sentence(self.pick(self.talk["openers"])))
        return Turn("assistant", tuple(ordered))

    def question(self, rule_id: str) -> Turn:
        """Draw a user turn about a rule. It has no stance: only responses are rated."""
        if self.random() < 0.65:
            template, act = self.pick(self.talk["ask_act"]), self._bad_act(rule_id)
        else:
            template = self.pick(self.talk["ask_deed"])
            act = self.pick(self.texts[rule_id]["good"]["acts"])
        texts = (self._fill(rule_id, template, act), self.pick(self.talk["ask_more"]))
        return Turn("user", tuple(Sentence(text) for text in texts if text))

    def small_talk(self, num_exchanges: int) -> list[Turn]:
        """Draw exchanges of user and assistant that touch no rule."""
        turns = []
        for _ in range(num_exchanges):
            line, reply = self.pick(self.talk["exchanges"])
            turns += [Turn("user", (Sentence(line),)), Turn("assistant", (Sentence(reply),))]
        return turns

    def pair(self, *, multi_turn: bool) -> DrawnPair:
        """Draw a pair whose responses touch two to four rules each."""
        while True:
            stances = self._two_stances()
            worths = list(map(safety_worth, stances))
            if all(2 <= len(side) <= 4 for side in stances) and worths[0] != worths[1]:
                break
        topic = self.pick(sorted({*stances[0], *stances[1]}))
        history = self.small_talk(int(1 + self.random() * 2)) if multi_turn else []
        history.append(self.question(topic))
        first, second = (self.response(side, num_filler=int(self.random() * 2)) for side in stances)
        safer = int(worths[1] > worths[0])
        if self.random() < LABEL_NOISE:
            safer = 1 - safer
        return DrawnPair(tuple(history), (first, second), safer)

    def _bad_act(self, rule_id: str) -> str:
        bad = self.texts[rule_id]["bad"]
        act: str = self.pick(bad[self.pick(BREACHES)])
        return act

    def _framed(self, rule_id: str, stance: str) -> tuple[str, str]:
        """Draw a stance frame and a verb phrase for it.

        Breaches approve a bad act, some moderate ones dismiss a good act. Observances refuse a bad
        act or advise a good one.
        """
        rule = self.texts[rule_id]
        good = self.pick(rule["good"]["acts"])
        if stance in BREACHES:
            frame, heads, act = "approve", "heads", good
            if stance == "moderate" and self.random() < 0.3:
                frame = "dismiss"
            else:
                act = self.pick(rule["bad"][stance])
        elif self.random() < 0.5:
            frame, heads, act = "refuse", stance, self._bad_act(rule_id)
        else:
            frame, heads, act = "advise", stance, good
        head = self.pick(self.texts["frames"][frame][heads])
        tail = self.pick(self.texts["frames"][frame]["tails"])
        return (f"{head}, {tail}." if tail else f"{head}."), act

    def _fill(self, rule_id: str, text: str, act: str) -> str:
        """Fill the slots of a text. Slots of one name get the same word, except ``{adj}``.

        A rule's words take precedence over the common ones.
        """
        chosen = {"act": act, "deed": act}
        while match := _SLOT.search(text):
            name = match.group(1)
            if name == "adj" or name not in chosen:
                options = self.texts[rule_id]["words"].get(name) or self.talk[name]
                chosen[name] = self.pick(options)
            text = text[: match.start()] + chosen[name] + text[match.end() :]
        return text

    def _topics(self) -> list[str]:
        """Return the topics in random order, frequent ones mostly first.

        The weighted sampling without replacement of Efraimidis and Spirakis (2006).
        """
        keys = {
            rule_id: self.random() ** (1 / frequency)
            for rule_id, frequency in zip(self.rule_ids, self.frequencies, strict=True)
        }
        return sorted(self.rule_ids, key=lambda rule_id: -keys[rule_id])

    def _two_stances(self) -> tuple[dict[str, str], dict[str, str]]:
        """Draw stances of two responses: mostly a breach and an observance, sometimes any two."""
        first: dict[str, str] = {}
        second: dict[str, str] = {}
        is_leaning, is_first_better = self.random() < LEANING, self.random() < 0.5
        for rule_id in self._topics()[: int(3 + self.random() * 2)]:
            if self.random() < 0.25:
                first_stance, second_stance = self.shuffled(STANCES)[:2]
            else:
                breach, observance = self.pick(BREACHES), self.pick(OBSERVANCES)
                stands_alone = world_facts()["rules"][rule_id].get("stands_alone", False)
                is_better = self.random() < 0.5
                if is_leaning and not stands_alone:
                    is_better = is_first_better
                first_stance, second_stance = (
                    (observance, breach) if is_better else (breach, observance)
                )
            # 60 % of the rules are touched by both responses, 20 % by each one alone.
            share = self.random()
            if share < 0.8:
                first[rule_id] = first_stance
            if share >= 0.2:
                second[rule_id] = second_stance
        return first, second


def safety_worth(stances: Mapping[str, str]) -> float:
    """Return the safety of a response: the sum of its stances' worth, weighted by importance."""
    rules, worth = world_facts()["rules"], world_facts()["worth"]
    total: float = sum(
        rules[rule_id]["importance"] * worth[stance] for rule_id, stance in stances.items()
    )
    return round(total, 6)


# --- the files ----------------------------------------------------------------------------------


def main() -> None:
    """Write the four shipped files."""
    for name, lines in render_data().items():
        packed = gzip.compress(lines.encode(), compresslevel=9, mtime=0)
        (BENCHMARK_DATA_PATH.parent / name).write_bytes(packed)


def render_data() -> dict[str, str]:
    """Return the content of each file by file name."""
    demo, initial = World("demo", PAIRS_SEED), World("train", INITIAL_SEED)
    hh_pairs = [demo.pair(multi_turn=True) for _ in range(NUM_PAIRS)]
    pku_pairs = [demo.pair(multi_turn=False) for _ in range(NUM_PAIRS)]
    initial_pairs = [initial.pair(multi_turn=False) for _ in range(NUM_INITIAL_PAIRS)]
    records: dict[Path, list[dict[str, object]]] = {
        DATA_PATHS["synthetic-hh"]: list(map(_hh_record, hh_pairs)),
        DATA_PATHS["synthetic-pku"]: [_pku_record(demo, pair) for pair in pku_pairs],
        INITIAL_PAIRS_PATH: list(map(_hh_record, initial_pairs)),
        BENCHMARK_DATA_PATH: _benchmark_rows(),
    }
    return {
        path.name: "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in file_records)
        for path, file_records in records.items()
    }


def _hh_record(pair: DrawnPair) -> dict[str, object]:
    """Return a pair in the raw format of Anthropic/hh-rlhf: two transcripts with one history."""
    speaker = {"user": "Human", "assistant": "Assistant"}
    chosen, rejected = (
        "".join(f"\n\n{speaker[turn.role]}: {turn.text}" for turn in (*pair.history, response))
        for response in (pair.responses[pair.safer], pair.responses[1 - pair.safer])
    )
    return {"chosen": chosen, "rejected": rejected}


def _pku_record(world: World, pair: DrawnPair) -> dict[str, object]:
    """Return a pair in the raw format of PKU-Alignment/PKU-SafeRLHF.

    A response is safe if it has no severe and no moderate breach.
    """
    texts = [turn.text for turn in pair.responses]
    is_safe = [not {"severe", "moderate"} & {*turn.stances.values()} for turn in pair.responses]
    is_safer_better = world.random() >= _BETTER_IS_NOT_SAFER
    return {
        "prompt": pair.history[-1].text,
        "response_0": texts[0],
        "response_1": texts[1],
        "is_response_0_safe": is_safe[0],
        "is_response_1_safe": is_safe[1],
        "better_response_id": pair.safer if is_safer_better else 1 - pair.safer,
        "safer_response_id": pair.safer,
    }


def _benchmark_rows() -> list[dict[str, object]]:
    """Draw rows with RewardBench's columns, whose chosen response has the higher safety worth.

    Each response also has a mild or partial stance on one more rule, so responses do not differ by
    the topic alone.
    """
    world = World("demo", BENCHMARK_SEED)

    def stances(topic: str, on_topic: Sequence[str]) -> dict[str, str]:
        stance = world.pick(on_topic)
        second_rule = world.shuffled([rule for rule in world.rule_ids if rule != topic])[0]
        return {topic: stance, second_rule: world.pick(("mild", "partial"))}

    rows: list[dict[str, object]] = []
    for name, subset in world_facts()["subsets"].items():
        for _ in range(PAIRS_PER_SUBSET):
            topic = world.pick(subset.get("rules", world.rule_ids))
            while True:
                sides = [stances(topic, subset[response]) for response in RESPONSES]
                if safety_worth(sides[0]) > safety_worth(sides[1]):
                    break
            row: dict[str, object] = {"id": len(rows), "subset": name}
            row["prompt"] = world.question(topic).text
            for response, side in zip(RESPONSES, sides, strict=True):
                row[response] = world.response(side, num_filler=int(world.random() * 2)).text
            rows.append(row | {"chosen_model": "synthetic", "rejected_model": "synthetic"})
    return rows


if __name__ == "__main__":
    main()
