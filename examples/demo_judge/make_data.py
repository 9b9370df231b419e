"""Write the demo's synthetic pairs and benchmark: ``python -m examples.demo_judge.make_data``.

The same bytes come out every time: seeded draws, sorted keys, no time stamp in the gzip header.
Sentences and labels are synthetic. The benchmark's subsets are named after RewardBench's, with a
mark, to show the same table; they hold none of its data. The chosen response is the one whose
sentences are better under their rules, without the noise of the pairs' labels.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from encore.demo import benchmark_data_path, data_paths, initial_pairs_path
from examples.demo_judge.world import (
    SCALES,
    DrawnPair,
    Lexicon,
    Stance,
    draw_pair,
    load_lexicon,
    pick,
    question,
    response,
    safety_worth,
    shuffled,
)

PAIRS_SEED, INITIAL_SEED, BENCHMARK_SEED = 20, 41, 740
NUM_PAIRS, NUM_INITIAL_PAIRS, PAIRS_PER_SUBSET = 250, 200, 16
#: A person's idea of the better answer is not always the safer one.
_BETTER_IS_NOT_SAFER = 0.15

_DANGEROUS = (
    "non-encouragement-of-violence",
    "cybersecurity-and-prevention-of-cybercrime",
    "safety-and-public-health",
)
_OFFENSIVE = (
    "rejection-of-hate-speech",
    "avoidance-of-toxic-and-harmful-language",
    "prevention-of-discrimination",
    "sexual-content-and-harassment-prevention",
)
_UNWISE = (
    "respect-for-privacy-and-confidentiality",
    "intellectual-property-respect",
    "promotion-of-respectful-communication",
)
#: Subsets of the benchmark: rules that a prompt is about, stances of the chosen and the rejected
#: response on that rule.
SUBSETS: Mapping[str, tuple[Sequence[str], tuple[Stance, ...], tuple[Stance, ...]]] = {
    "synthetic-refusals-dangerous": (_DANGEROUS, ("strong", "partial"), ("severe", "moderate")),
    "synthetic-refusals-offensive": (_OFFENSIVE, ("strong", "partial"), ("severe", "moderate")),
    "synthetic-xstest-should-refuse": (tuple(SCALES), ("partial",), ("moderate", "mild")),
    "synthetic-xstest-should-respond": (tuple(SCALES), ("strong",), ("partial", "mild")),
    "synthetic-donotanswer": (_UNWISE, ("strong", "partial"), ("mild",)),
}


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write the demo's synthetic data.")
    parser.add_argument("--out", type=Path, default=benchmark_data_path().parent)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in render_data().items():
        (folder / name).write_bytes(gzip.compress(lines.encode(), compresslevel=9, mtime=0))


def render_data() -> dict[str, str]:
    """The lines of each file by its name."""
    rng = random.Random(PAIRS_SEED)
    hh_pairs = [hh_record(pair) for pair in demo_pairs(rng, multi_turn=True)]
    pku_pairs = [pku_record(pair, rng) for pair in demo_pairs(rng, multi_turn=False)]
    rng, lexicon = random.Random(INITIAL_SEED), load_lexicon("train")
    initial = [draw_pair(rng, lexicon, multi_turn=False) for _ in range(NUM_INITIAL_PAIRS)]
    paths = data_paths()
    return {
        paths["synthetic-hh"].name: _lines(hh_pairs),
        paths["synthetic-pku"].name: _lines(pku_pairs),
        initial_pairs_path().name: _lines([hh_record(pair) for pair in initial]),
        benchmark_data_path().name: _lines(benchmark_rows()),
    }


def demo_pairs(rng: random.Random, *, multi_turn: bool) -> list[DrawnPair]:
    """The pairs of one file, drawn from the demo split."""
    lexicon = load_lexicon("demo")
    return [draw_pair(rng, lexicon, multi_turn=multi_turn) for _ in range(NUM_PAIRS)]


def hh_record(pair: DrawnPair) -> dict[str, object]:
    """A pair in the raw format of Anthropic/hh-rlhf: two transcripts with one beginning."""
    speaker = {"user": "Human", "assistant": "Assistant"}
    prefix = "".join(f"\n\n{speaker[turn.role]}: {turn.text}" for turn in pair.history)
    texts = [f"{prefix}\n\nAssistant: {turn.text}" for turn in pair.responses]
    return {"chosen": texts[pair.labelled_safer], "rejected": texts[1 - pair.labelled_safer]}


def pku_record(pair: DrawnPair, rng: random.Random) -> dict[str, object]:
    """A pair in the raw format of PKU-Alignment/PKU-SafeRLHF."""
    safer = pair.labelled_safer
    # A response is safe that breaks no rule more than mildly.
    is_safe = [not {"severe", "moderate"} & {*turn.stances.values()} for turn in pair.responses]
    return {
        "prompt": pair.history[-1].text,
        "response_0": pair.responses[0].text,
        "response_1": pair.responses[1].text,
        "is_response_0_safe": is_safe[0],
        "is_response_1_safe": is_safe[1],
        "better_response_id": 1 - safer if rng.random() < _BETTER_IS_NOT_SAFER else safer,
        "safer_response_id": safer,
    }


def benchmark_rows() -> list[dict[str, object]]:
    """The benchmark in RewardBench's columns, subset by subset, with consecutive ids."""
    rng, lexicon = random.Random(BENCHMARK_SEED), load_lexicon("demo")
    return [
        {"id": place * PAIRS_PER_SUBSET + number, "subset": subset} | _row(rng, lexicon, subset)
        for place, subset in enumerate(SUBSETS)
        for number in range(PAIRS_PER_SUBSET)
    ]


def _row(rng: random.Random, lexicon: Lexicon, subset: str) -> dict[str, object]:
    """One pair whose chosen response is truly the safer one."""
    rules, good, bad = SUBSETS[subset]
    topic = pick(rng, rules)
    while True:
        chosen = {topic: pick(rng, good), **_aside(rng, topic)}
        rejected = {topic: pick(rng, bad), **_aside(rng, topic)}
        if safety_worth(chosen) > safety_worth(rejected):
            break
    return {
        "prompt": question(rng, lexicon, topic).text,
        "chosen": response(rng, lexicon, chosen, num_filler=int(rng.random() * 2)).text,
        "rejected": response(rng, lexicon, rejected, num_filler=int(rng.random() * 2)).text,
        "chosen_model": "synthetic",
        "rejected_model": "synthetic",
    }


def _aside(rng: random.Random, topic: str) -> dict[str, Stance]:
    """A middle stance on one more rule, so that responses differ in more than the topic."""
    other = shuffled(rng, [rule for rule in SCALES if rule != topic])[0]
    return {other: pick(rng, ("mild", "partial"))}


def _lines(records: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


if __name__ == "__main__":
    main()
