"""Benchmark pairs whose answers can be told apart, and judges whose verdicts a test decides."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Literal

from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.definition import load_benchmark
from encore.data.records import Message, PreferencePair, pair_id_of
from tests.scripted_judge import ScriptedJudge

#: What a scripted judge thinks of one pair: the chosen answer is better, the rejected one is, or
#: nothing at all: it takes whichever stands at this place.
Opinion = Literal["right", "wrong", "A", "B"]


def make_pair(index: int, *, chosen: str = "", rejected: str = "") -> PreferencePair:
    """A pair that names its index in every text."""
    prompt = (Message(role="user", content=f"Question {index}?"),)
    chosen, rejected = f"Good {index}. {chosen}", f"Bad {index}. {rejected}"
    return PreferencePair(
        pair_id=pair_id_of(prompt, chosen=chosen, rejected=rejected),
        source="generic",
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
    )


def benchmark_of(pairs: Sequence[PreferencePair], *, subsets: int = 1) -> BenchmarkPairs:
    """These pairs as a benchmark, dealt over some subsets."""
    rows = range(len(pairs))
    return BenchmarkPairs(
        benchmark=load_benchmark("generic"),
        pairs=tuple(pairs),
        subset_P=tuple(f"subset-{row % subsets}" for row in rows),
        row_id_P=tuple(map(str, rows)),
        is_partial=False,
        digest=hashlib.sha256(repr([pair.pair_id for pair in pairs]).encode()).hexdigest(),
        notes=(),
    )


def make_benchmark(num_pairs: int, *, subsets: int = 1) -> BenchmarkPairs:
    """A benchmark of so many pairs."""
    return benchmark_of([make_pair(index) for index in range(num_pairs)], subsets=subsets)


def index_in(prompt: str) -> int:
    """Which pair a comparison or rating prompt is about."""
    found = re.search(r"Question (\d+)\?", prompt)
    assert found is not None
    return int(found[1])


def is_chosen_first(prompt: str) -> bool:
    """Whether assistant A gave the chosen answer."""
    index = index_in(prompt)
    return prompt.index(f"Good {index}.") < prompt.index(f"Bad {index}.")


def verdict_of(opinion: Opinion, prompt: str) -> str:
    """The verdict of a judge of this opinion, as the place of the better answer."""
    if opinion in ("A", "B"):
        return f"[[{opinion}]]"
    return "[[A]]" if (opinion == "right") == is_chosen_first(prompt) else "[[B]]"


def judge_of_opinions(opinions: Sequence[Opinion]) -> ScriptedJudge:
    """A judge with an opinion on each pair."""
    return ScriptedJudge(script=lambda prompt: verdict_of(opinions[index_in(prompt)], prompt))


def judge_saying(say: Callable[[str], str], **changes: object) -> ScriptedJudge:
    """A judge that replies to a prompt whatever a function says."""
    return ScriptedJudge(script=say, **changes)  # type: ignore[arg-type]
