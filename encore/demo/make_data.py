"""Write the shipped synthetic pairs: ``python -m encore.demo.make_data [--out FOLDER]``.

The same bytes come out every time: seeded draws, sorted keys, no time stamp in the gzip header.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from encore.demo.pairs import DrawnPair, draw_pair, is_safe
from encore.demo.world.lexicon import load_lexicon

SEED = 20
NUM_PAIRS = 250
DATA_FOLDER = Path(__file__).parent / "data"
#: A person's idea of the better answer is not always the safer one.
_BETTER_IS_NOT_SAFER = 0.15


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Write the synthetic preference pairs.")
    parser.add_argument("--out", type=Path, default=DATA_FOLDER)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in render_data().items():
        (folder / name).write_bytes(content)


def render_data() -> dict[str, bytes]:
    """The files' bytes by name."""
    rng = random.Random(SEED)
    hh_pairs = [hh_record(pair) for pair in demo_pairs(rng, multi_turn=True)]
    pku_pairs = [pku_record(pair, rng) for pair in demo_pairs(rng, multi_turn=False)]
    return {
        "hh-like.jsonl.gz": _compressed(hh_pairs),
        "pku-like.jsonl.gz": _compressed(pku_pairs),
    }


def demo_pairs(rng: random.Random, *, multi_turn: bool) -> list[DrawnPair]:
    """The pairs of one file, drawn from the demo split."""
    lexicon = load_lexicon("demo")
    return [draw_pair(rng, lexicon, multi_turn=multi_turn) for _ in range(NUM_PAIRS)]


def hh_record(pair: DrawnPair) -> dict[str, object]:
    """A pair in the raw format of Anthropic/hh-rlhf: two transcripts with one beginning."""
    speaker = {"user": "Human", "assistant": "Assistant"}
    prefix = "".join(f"\n\n{speaker[turn.role]}: {turn.text}" for turn in pair.history)
    texts = [f"{prefix}\n\nAssistant: {turn.text}" for turn in (pair.first, pair.second)]
    if pair.labelled_safer == "second":
        texts.reverse()
    return {"chosen": texts[0], "rejected": texts[1]}


def pku_record(pair: DrawnPair, rng: random.Random) -> dict[str, object]:
    """A pair in the raw format of PKU-Alignment/PKU-SafeRLHF."""
    safer = 0 if pair.labelled_safer == "first" else 1
    return {
        "prompt": pair.history[-1].text,
        "response_0": pair.first.text,
        "response_1": pair.second.text,
        "is_response_0_safe": is_safe(pair.first.stances),
        "is_response_1_safe": is_safe(pair.second.stances),
        "better_response_id": 1 - safer if rng.random() < _BETTER_IS_NOT_SAFER else safer,
        "safer_response_id": safer,
    }


def _compressed(records: Sequence[Mapping[str, object]]) -> bytes:
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    return gzip.compress(lines.encode("utf-8"), compresslevel=9, mtime=0)


if __name__ == "__main__":
    main()
