"""Ask a judge about one shard of pairs: prompts, replies, rows of a table."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from encore.benchmarks.judging.folder import ORDERS, VERDICTS, JudgingManifest
from encore.benchmarks.judging.prompts import Criterion, Protocol, render_comparison
from encore.benchmarks.judging.verdicts import parse_verdict
from encore.benchmarks.old_shards import Shard
from encore.data.records import PreferencePair
from encore.judges.base import Judge, Reply

if TYPE_CHECKING:
    from encore.benchmarks.pairs import BenchmarkPairs

#: A Python list takes some 40 bytes a token, an array 4: prompts are tokenised a few at a time.
_PROMPTS_PER_CHUNK = 500

#: Told how many replies of a shard are finished.
OnReplies = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingRun:
    """One opened judging: its folder, its plan, its pairs in plan order and its judge."""

    folder: Path
    manifest: JudgingManifest
    pairs: BenchmarkPairs
    criteria: tuple[Criterion, ...]
    protocol: Protocol
    judge: Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One prompt to be."""

    row: int
    is_chosen_first: bool
    criterion: Criterion


def judged_table(run: JudgingRun, shard: Shard, on_replies: OnReplies) -> pa.Table:
    """The rows of one shard (`encore.benchmarks.judging.folder.VERDICTS`), asked for now.

    Prompts stand in the order that prefix caching likes: all of a pair and order together.
    """
    items = [
        _Item(row=row, is_chosen_first=order == ORDERS[0], criterion=criterion)
        for row in range(shard.start, shard.stop)
        for order in ORDERS
        for criterion in run.criteria
    ]
    prompts = _prompts(run, items)
    asked = [index for index, token_ids in enumerate(prompts) if token_ids is not None]
    replies: list[Reply] = []
    if asked:  # else all prompts of the shard are too long
        replies = run.judge.reply(
            [prompts[index] or () for index in asked],
            max_reply_tokens=run.protocol.max_reply_tokens,
            on_progress=on_replies,
        )
    reply_of = dict(zip(asked, replies, strict=True))
    return _table(run, items, [reply_of.get(index) for index in range(len(items))])


def _prompts(run: JudgingRun, items: Sequence[_Item]) -> list[Sequence[int] | None]:
    """Token ids of each prompt, None where it does not fit: an answer is never cut."""
    limit = run.judge.identity.max_model_len - run.protocol.max_reply_tokens
    prompts: list[Sequence[int] | None] = []
    for start in range(0, len(items), _PROMPTS_PER_CHUNK):
        texts = [
            render_comparison(
                run.pairs.pairs[item.row],
                is_chosen_first=item.is_chosen_first,
                criterion=item.criterion,
                protocol=run.protocol,
            )
            for item in items[start : start + _PROMPTS_PER_CHUNK]
        ]
        prompts += [
            array("I", token_ids) if len(token_ids) <= limit else None
            for token_ids in run.judge.tokenizer.encode(texts)
        ]
    return prompts


def _table(run: JudgingRun, items: Sequence[_Item], replies: Sequence[Reply | None]) -> pa.Table:
    parsed = [parse_verdict(reply) for reply in replies]
    pairs: list[PreferencePair] = [run.pairs.pairs[item.row] for item in items]
    columns = {
        "row_id": [run.pairs.row_id_P[item.row] for item in items],
        "subset": [run.pairs.subset_P[item.row] for item in items],
        "pair_id": [pair.pair_id for pair in pairs],
        "order": [ORDERS[0] if item.is_chosen_first else ORDERS[1] for item in items],
        "criterion": [item.criterion.criterion_id for item in items],
        "verdict": [verdict.place for verdict in parsed],
        "preferred": [
            _preferred(verdict.place, is_chosen_first=item.is_chosen_first)
            for item, verdict in zip(items, parsed, strict=True)
        ],
        "null_reason": [verdict.null_reason for verdict in parsed],
        "raw_reply": [reply.text if reply is not None else None for reply in replies],
        "judge": [run.manifest.judge] * len(items),
        "run_key": [run.manifest.key] * len(items),
    }
    return pa.table(columns, schema=VERDICTS)


def _preferred(place: str | None, *, is_chosen_first: bool) -> str | None:
    if place is None:
        return None
    return "chosen" if (place == "A") == is_chosen_first else "rejected"
