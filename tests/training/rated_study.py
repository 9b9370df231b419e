"""A small study with ratings that follow from the texts, and the tokenizer of the demo."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from encore.data.pairs import iter_pairs
from encore.data.records import PreferencePair
from encore.data.study import open_study
from encore.demo import JUDGE_PATH
from encore.model.backbone_config import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.loading import load_tokenizer
from tests.worlds.ratings import ratings_table
from tests.worlds.studies import study_of

RULES = ("be-kind", "be-brief", "be-true")

Rate = Callable[[PreferencePair, str, str], float | None]


@functools.cache
def demo_tokenizer(max_length: int = 1024) -> ConversationTokenizer:
    return load_tokenizer(BackboneConfig(model=str(JUDGE_PATH), max_length=max_length))


def make_study(folder: Path, *, num_pairs: int = 12, label: str = "mine", step: int = 1) -> Path:
    """Make a study in which three pairs each share a first turn; ``step`` -1 reverses the pairs."""
    rows = [
        {
            "prompt": [
                {"role": "user", "content": f"Question {index // 3}?"},
                {"role": "assistant", "content": "Tell me more."},
                {"role": "user", "content": f"More {index}."},
            ],
            "chosen": f"Answer {index}.",
            "rejected": f"No {index}, never.",
        }
        for index in range(num_pairs)
    ]
    return study_of(rows[::step], folder / f"study{step}", label=label)


def pairs_of(study: Path) -> list[PreferencePair]:
    return list(iter_pairs(open_study(study)))


def text_rating(pair: PreferencePair, response: str, rule_id: str) -> float | None:
    """Return one of eleven ratings that follow from the rule and the text of the response."""
    text = f"{rule_id}\n{pair.chosen if response == 'chosen' else pair.rejected}"
    return hashlib.sha256(text.encode()).digest()[0] % 11 / 10


def write_ratings(
    path: Path,
    pairs: Sequence[PreferencePair],
    *,
    rate: Rate = text_rating,
    rules: Sequence[str] = RULES,
) -> Path:
    rows = [
        (pair.pair_id, pair.source, response, rule_id, rate(pair, response, rule_id))
        for pair in pairs
        for response in ("chosen", "rejected")
        for rule_id in rules
    ]
    pq.write_table(ratings_table(rows), path)
    return path
