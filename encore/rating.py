"""Rate a study: render prompts, ask the judge, parse replies, write one shard after another."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from encore import shards
from encore.config import RatingConfig
from encore.data.pairs import data_digest_of, read_pairs, records_of
from encore.data.records import RESPONSES, PreferencePair, Response, RuleSet
from encore.data.rules import load_rule_set
from encore.data.study import Study
from encore.errors import GenerationInterruptedError, InputError
from encore.judges import open_judge
from encore.judges.base import Judge, Reply
from encore.prompts import prompt_digest, render_conversation, render_rating_prompt
from encore.replies import PARSER_VERSION, ParsedReply, parse_reply
from encore.schemas import RATINGS
from encore.shards import RunManifest, Shard
from encore.versions import package_versions

#: A Python list takes some 40 bytes a token, an array 4: prompts are tokenised a few at a time.
_PROMPTS_PER_CHUNK = 500

#: Called with (shard index, replies finished, replies in the shard).
RatingProgress = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingRun:
    """One opened run: its folder, its plan, its pairs in plan order and its judge."""

    run_dir: Path
    manifest: RunManifest
    config: RatingConfig
    pairs: pa.Table
    rule_set: RuleSet
    judge: Judge
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def num_prompts_per_pair(self) -> int:
        """Ratings a pair needs: two responses under every rule."""
        return len(RESPONSES) * len(self.rule_set.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOutcome:
    """What came of one shard. ``busy``: another process is rating it."""

    index: int
    action: Literal["rated", "reused", "busy"]
    num_ratings: int = 0
    num_nulls: int = 0
    null_reasons: Mapping[str, int] = field(default_factory=dict)
    num_truncated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One prompt to be: a response of a pair under a rule."""

    pair: PreferencePair
    response: Response
    rule_id: str
    rating_rule: str
    conversation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """Token ids of a prompt, or None when it does not fit the judge's context."""

    token_ids: Sequence[int] | None
    num_truncated_tokens: int = 0


def open_run(study: Study, config: RatingConfig, *, judge: Judge | None = None) -> RatingRun:
    """The run that a study and a config define; nothing is written before its first shard.

    The run key is a hash of judge and revision, prompt, rules, decoding, data and plan: change
    any of them and a new run stands beside the old one.

    Raises:
        EncoreError: No pairs, a bad rule set, or a judge that cannot be loaded.
    """
    rule_set = load_rule_set(config.rules)
    all_pairs = read_pairs(study)
    pairs = _planned_pairs(all_pairs, limit=config.limit)
    judge = judge or open_judge(config.judge)
    _refuse_long_replies(config, judge)
    identity = _identity(
        config, judge, rule_set, data_sha256=data_digest_of(all_pairs), num_pairs=pairs.num_rows
    )
    manifest = RunManifest(
        run_key=shards.run_key_of(identity),
        identity=identity,
        rule_set=rule_set.name,
        rules=[dataclasses.asdict(rule) for rule in rule_set.rules],
        versions=package_versions(),
    )
    return RatingRun(
        run_dir=study.ratings_dir / manifest.run_key,
        manifest=manifest,
        config=config,
        pairs=pairs,
        rule_set=rule_set,
        judge=judge,
    )


def rate_shard(
    run: RatingRun,
    shard: Shard,
    *,
    timeout_seconds: float | None = None,
    on_progress: RatingProgress | None = None,
) -> ShardOutcome:
    """Rate one shard unless its file already validates or another process is at it.

    Args:
        run: The opened run.
        shard: One shard of its plan.
        timeout_seconds: Limit of the generation itself; waiting for the engine does not count.
        on_progress: Told about finished replies.

    Raises:
        GenerationInterruptedError: The time limit passed, or the run was cancelled.
    """
    if (reused := _reused(run, shard)) is not None:  # also where nothing may be written
        return reused
    shards.write_run(run.run_dir, run.manifest)
    with shards.shard_lock(run.run_dir, shard.index) as is_mine:
        if not is_mine:
            return ShardOutcome(index=shard.index, action="busy")
        if (reused := _reused(run, shard)) is not None:
            return reused
        shards.remove_stale_temporaries(run.run_dir, shard.index)
        try:
            table = _rated_table(run, shard, timeout_seconds, on_progress)
            footer = {"run_key": run.manifest.run_key, "versions": package_versions()}
            shards.write_shard(run.run_dir, shard, table, footer=footer)
        except Exception as error:
            if not run.cancelled.is_set():
                with contextlib.suppress(OSError):  # what failed matters more than its record
                    shards.record_failure(run.run_dir, shard, error)
            raise
        return _outcome(shard, table)


def _reused(run: RatingRun, shard: Shard) -> ShardOutcome | None:
    state = shards.inspect_shard(run.run_dir, run.manifest, shard)
    if state.state != "done":
        return None
    return ShardOutcome(
        index=shard.index,
        action="reused",
        num_ratings=state.num_ratings,
        num_nulls=state.num_nulls,
    )


def _planned_pairs(pairs: pa.Table, *, limit: int | None) -> pa.Table:
    """Pairs in the plan's order: by content hash, so that any prefix is a fair sample."""
    if pairs.num_rows == 0:
        raise InputError("the study has no pairs; run `encore ingest` first")
    order = pc.sort_indices(pairs, sort_keys=[("pair_id", "ascending"), ("source", "ascending")])
    return pairs.take(order[:limit] if limit is not None else order)


def _refuse_long_replies(config: RatingConfig, judge: Judge) -> None:
    context = judge.identity.max_model_len
    if config.max_reply_tokens >= context:
        raise InputError(
            f"max_reply_tokens {config.max_reply_tokens}: the judge's context of {context} tokens "
            "leaves no room for a prompt; give fewer reply tokens or a larger context"
        )


def _identity(
    config: RatingConfig, judge: Judge, rule_set: RuleSet, *, data_sha256: str, num_pairs: int
) -> dict[str, Any]:
    judge_identity = dataclasses.asdict(judge.identity)
    judge_identity["engine_args"] = dict(judge.identity.engine_args)
    return {
        "format": 1,
        "judge": judge_identity,
        "prompt_sha256": prompt_digest(),
        "rules_sha256": rule_set.digest,
        "decoding": {
            "temperature": 0.0,
            "max_reply_tokens": config.max_reply_tokens,
            "parser": PARSER_VERSION,
        },
        "data_sha256": data_sha256,
        "plan": {
            "order": "pair_id",
            "shard_size": config.shard_size,
            "num_pairs": num_pairs,
            "overlong": config.overlong,
        },
    }


# --- one shard ----------------------------------------------------------------------------------


def _rated_table(
    run: RatingRun,
    shard: Shard,
    timeout_seconds: float | None,
    on_progress: RatingProgress | None,
) -> pa.Table:
    pairs = records_of(run.pairs.slice(shard.start, shard.num_pairs))
    items = _items(pairs, run.rule_set)
    prepared = _prepare(items, run)
    asked = [index for index, prompt in enumerate(prepared) if prompt.token_ids is not None]
    replies = run.judge.reply(
        [prepared[index].token_ids or () for index in asked],
        max_reply_tokens=run.config.max_reply_tokens,
        on_progress=_hook(run, shard, len(asked), timeout_seconds, on_progress),
    )
    reply_of = dict(zip(asked, replies, strict=True))
    parsed = [_parse(reply_of.get(index)) for index in range(len(items))]
    return _table(run.manifest, items, prepared, reply_of, parsed)


def _items(pairs: Sequence[PreferencePair], rule_set: RuleSet) -> list[_Item]:
    """Prompts in the order that prefix caching likes: all of a pair together."""
    return [
        _Item(
            pair=pair,
            response=response,
            rule_id=rule.rule_id,
            rating_rule=rule.rating_rule,
            conversation=conversation,
        )
        for pair in pairs
        for response in RESPONSES
        for conversation in [render_conversation(pair.prompt, pair.response_text(response))]
        for rule in rule_set.rules
    ]


def _prepare(items: Sequence[_Item], run: RatingRun) -> list[_Prepared]:
    limit = run.judge.identity.max_model_len - run.config.max_reply_tokens
    prepared: list[_Prepared] = []
    for start in range(0, len(items), _PROMPTS_PER_CHUNK):
        chunk = items[start : start + _PROMPTS_PER_CHUNK]
        texts = [
            render_rating_prompt(item.conversation, rating_rule=item.rating_rule) for item in chunk
        ]
        prepared += [
            _Prepared(token_ids=array("I", token_ids))
            if len(token_ids) <= limit
            else _fit(item, token_ids, run.judge, limit=limit, overlong=run.config.overlong)
            for item, token_ids in zip(chunk, run.judge.tokenizer.encode(texts), strict=True)
        ]
        if run.cancelled.is_set():
            raise GenerationInterruptedError("the run was cancelled")
    return prepared


def _fit(
    item: _Item, token_ids: Sequence[int], judge: Judge, *, limit: int, overlong: str
) -> _Prepared:
    """An over-long prompt: set aside, or its conversation cut from the left until it fits."""
    if overlong == "set-aside":
        return _Prepared(token_ids=None)
    num_cut = 0
    fitted = token_ids
    while len(fitted) > limit:
        num_cut += len(fitted) - limit
        conversation = judge.tokenizer.cut_left(item.conversation, num_tokens=num_cut)
        if not conversation:
            return _Prepared(token_ids=None)
        text = render_rating_prompt(conversation, rating_rule=item.rating_rule)
        [fitted] = judge.tokenizer.encode([text])
    return _Prepared(
        token_ids=array("I", fitted), num_truncated_tokens=len(token_ids) - len(fitted)
    )


def _parse(reply: Reply | None) -> ParsedReply:
    if reply is None:
        return ParsedReply(rating=None, null_reason="prompt_too_long")
    if not reply.is_complete:
        return ParsedReply(rating=None, null_reason="reply_cut_off")
    return parse_reply(reply.text)


def _table(
    manifest: RunManifest,
    items: Sequence[_Item],
    prepared: Sequence[_Prepared],
    reply_of: Mapping[int, Reply],
    parsed: Sequence[ParsedReply],
) -> pa.Table:
    columns = {
        "pair_id": [item.pair.pair_id for item in items],
        "source": [item.pair.source for item in items],
        "response": [item.response for item in items],
        "rule_id": [item.rule_id for item in items],
        "rating": [reply.rating for reply in parsed],
        "null_reason": [reply.null_reason for reply in parsed],
        "num_truncated_tokens": [prompt.num_truncated_tokens for prompt in prepared],
        "raw_reply": [
            reply_of[index].text if index in reply_of else None for index in range(len(items))
        ],
        "judge": [manifest.judge] * len(items),
        "run_key": [manifest.run_key] * len(items),
    }
    return pa.table(columns, schema=RATINGS)


def _hook(
    run: RatingRun,
    shard: Shard,
    num_replies: int,
    timeout_seconds: float | None,
    on_progress: RatingProgress | None,
) -> Callable[[int], None]:
    """Reports progress and interrupts; its clock starts with each report of 0 replies."""
    deadline: float | None = None

    def hook(num_done: int) -> None:
        nonlocal deadline
        now = time.monotonic()
        if num_done == 0 and timeout_seconds is not None:
            deadline = now + timeout_seconds
        if run.cancelled.is_set():
            raise GenerationInterruptedError(f"shard {shard.index}: the run was cancelled")
        if deadline is not None and now > deadline:
            raise GenerationInterruptedError(
                f"shard {shard.index}: generation passed its limit of {timeout_seconds:g} s after "
                f"{num_done} of {num_replies} replies; raise the limit or use smaller shards"
            )
        if on_progress is not None:
            on_progress(shard.index, num_done, num_replies)

    return hook


def _outcome(shard: Shard, table: pa.Table) -> ShardOutcome:
    reasons = Counter(reason for reason in table["null_reason"].to_pylist() if reason is not None)
    return ShardOutcome(
        index=shard.index,
        action="rated",
        num_ratings=table.num_rows - table["rating"].null_count,
        num_nulls=table["rating"].null_count,
        null_reasons=dict(reasons),
        num_truncated=int(pc.sum(pc.greater(table["num_truncated_tokens"], 0)).as_py() or 0),
    )
