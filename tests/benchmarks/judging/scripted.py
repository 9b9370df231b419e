"""Benchmark pairs with numbered texts, and judges whose verdicts a test decides."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from encore.benchmarks.benchmark_options import JudgeBenchmarkConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.judging.judged_pairs import Verdicts, judge_pairs
from encore.data.records import Message, PreferencePair, pair_id_of
from encore.judges.judge_options import JudgeConfig
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import write_rules

#: Opinion of a scripted judge on a pair: the chosen answer is better, the rejected one is, or it
#: names this position whatever the answers are.
Opinion = Literal["right", "wrong", "A", "B"]


def make_pair(index: int, *, chosen: str = "", rejected: str = "") -> PreferencePair:
    """Return a pair with its index in every text."""
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
    """Return a benchmark of these pairs, dealt over the subsets in turn."""
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
    """Return a benchmark of `make_pair`'s pairs."""
    return benchmark_of([make_pair(index) for index in range(num_pairs)], subsets=subsets)


def index_in(prompt: str) -> int:
    """Return the index of the pair in a comparison or rating prompt."""
    match = re.search(r"Question (\d+)\?", prompt)
    assert match is not None
    return int(match[1])


def is_chosen_first(prompt: str) -> bool:
    """Return True if assistant A gave the chosen answer."""
    index = index_in(prompt)
    return prompt.index(f"Good {index}.") < prompt.index(f"Bad {index}.")


def verdict_of(opinion: Opinion, prompt: str) -> str:
    """Return the reply of a judge with this opinion."""
    if opinion in ("A", "B"):
        return f"[[{opinion}]]"
    return "[[A]]" if (opinion == "right") == is_chosen_first(prompt) else "[[B]]"


#: Five pairs, opinions on them, and the verdicts in both orders that follow.
PAIRS = make_benchmark(5, subsets=2)
OPINIONS: tuple[Opinion, ...] = ("right", "wrong", "A", "B", "right")
VERDICTS = [[1, 1], [0, 0], [1, 0], [0, 1], [1, 1]]


def judge_of_opinions(opinions: Sequence[Opinion] = OPINIONS) -> ScriptedJudge:
    """Return a judge with an opinion on each pair."""
    return ScriptedJudge(script=lambda prompt: verdict_of(opinions[index_in(prompt)], prompt))


def opposed_judge() -> ScriptedJudge:
    """Return a judge whose verdicts show that it was asked: it prefers every rejected answer."""
    return judge_of_opinions(["wrong"] * 5)


def judged(
    out: Path, judge: ScriptedJudge, pairs: BenchmarkPairs = PAIRS, **options: Any
) -> Verdicts:
    """Judge pairs, two in a shard; options are fields of the config."""
    settings = {"judge": JudgeConfig(model="scripted"), "out": out, "shard_size": 2, **options}
    return judge_pairs(pairs, JudgeBenchmarkConfig(**settings), judge=judge)


def rating_options(out: Path) -> JudgeBenchmarkConfig:
    """Return the config of a judging by rating under two rules, two pairs in a shard."""
    out.mkdir(exist_ok=True)
    rules = write_rules(out / "two.toml", ["Kind", "Long"])
    judge = JudgeConfig(model="scripted")
    return JudgeBenchmarkConfig(judge=judge, out=out, rules=str(rules), shard_size=2)
