"""Rate a study: render prompts, ask the judge, parse replies, write shards of ratings.

The judge's prefill bounds the speed: a prompt has some hundreds of tokens, a reply four or five.
Therefore all prompts of a pair stand together (prefix caching computes their common part once), and
on a GPU one shard is rendered and tokenised, or parsed and written, while another generates.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from encore import runs
from encore.config import RatingConfig
from encore.data.pairs import data_digest_of, planned_pairs, read_pairs, records_of
from encore.data.records import RESPONSES, PreferencePair, Response, RuleSet
from encore.data.rules import load_rule_set
from encore.data.study import Study, as_study
from encore.errors import GenerationInterruptedError, InputError
from encore.files import check_writable
from encore.judges import open_judge
from encore.judges.base import Judge, ProgressHook, Reply
from encore.rating.prompts import prompt_digest, render_conversation, render_rating_prompt
from encore.rating.replies import PARSER_VERSION, ParsedReply, parse_reply
from encore.rating_runs import RatingManifest, list_runs
from encore.reporting import SILENT, Reporter
from encore.runs import Job, RunReport, Shard, ShardOutcome, Slice, Tell, run_key_of
from encore.schemas import RATINGS
from encore.versions import package_versions

#: Shards in work at once on a GPU. An engine on the CPU takes all cores and waits for its slowest
#: one, so there it is one shard at a time: two were a tenth slower on 2 cores.
NUM_WORKERS = 2
#: A Python list takes some 40 bytes a token, an array 4: prompts are tokenised a few at a time.
_PROMPTS_PER_CHUNK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingRun:
    """One opened run: its folder, its plan, its pairs in plan order and its judge."""

    run_dir: Path
    manifest: RatingManifest
    config: RatingConfig
    pairs: pa.Table
    rule_set: RuleSet
    judge: Judge
    cancelled: threading.Event = field(default_factory=threading.Event)

    def job(self, *, timeout_seconds: float | None = None, reporter: Reporter = SILENT) -> Job:
        """The work for `encore.runs`; ``timeout_seconds`` limits each shard's generation."""
        return Job(
            run_dir=self.run_dir,
            manifest=self.manifest,
            compute=partial(_rate, self, timeout_seconds),
            start=partial(_start_judge, self, reporter),
            cancelled=self.cancelled,
        )


def rate(
    study: Study | Path,
    config: RatingConfig,
    *,
    only: Sequence[int] | None = None,
    shard_timeout_seconds: float | None = None,
    reporter: Reporter = SILENT,
) -> RunReport:
    """Open the run of a study and a config, rate what is not done, release the judge.

    Args:
        study: The opened study, or its directory.
        config: Judge, rules and plan.
        only: Indices of the shards to look at; default all.
        shard_timeout_seconds: Limit of one shard's generation.
        reporter: Told about the judge's start, finished ratings and shards.

    Raises:
        EncoreError: As `open_run` and `rate_run`.
    """
    run = open_run(as_study(study), config)
    try:
        return rate_run(
            run, only=only, shard_timeout_seconds=shard_timeout_seconds, reporter=reporter
        )
    finally:
        run.judge.close()


def open_run(study: Study, config: RatingConfig, *, judge: Judge | None = None) -> RatingRun:
    """The run that a study and a config define; nothing is written before its first shard.

    The run key is a hash of judge and revision, prompt, rules, decoding, data and plan: change
    any of them and a new run stands beside the old one.

    Raises:
        EncoreError: No pairs, a bad rule set, a judge that cannot be loaded, a read-only study
            without any run.
    """
    rule_set = load_rule_set(config.rules)
    all_pairs = read_pairs(study)
    pairs = planned_pairs(all_pairs, limit=config.limit)
    if not list_runs(study.ratings_dir):
        check_writable(study.path)
    judge = judge or open_judge(config.judge)
    context = judge.identity.max_model_len
    if config.max_reply_tokens >= context:
        raise InputError(
            f"max_reply_tokens {config.max_reply_tokens}: the judge's context of {context} tokens "
            "leaves no room for a prompt; give fewer reply tokens or a larger context"
        )
    identity = _identity(
        config, judge, rule_set, data_sha256=data_digest_of(all_pairs), num_pairs=pairs.num_rows
    )
    manifest = RatingManifest(
        run_key=run_key_of(identity),
        identity=identity,
        rule_set=rule_set.name,
        rules=tuple(dataclasses.asdict(rule) for rule in rule_set.rules),
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


def rate_run(
    run: RatingRun,
    *,
    only: Sequence[int] | None = None,
    shard_timeout_seconds: float | None = None,
    reporter: Reporter = SILENT,
    on_outcome: Callable[[ShardOutcome], None] | None = None,
) -> RunReport:
    """Rate the shards of a run that are not done (see `encore.runs.work_through`).

    The report's totals are ``num_ratings`` and ``num_nulls``; of the shards rated now there are
    ``num_truncated`` and the tally ``null_reasons``.
    """
    job = run.job(timeout_seconds=shard_timeout_seconds, reporter=reporter)
    return runs.work_through(job, only=only, reporter=reporter, on_outcome=on_outcome)


def rate_shard(
    run: RatingRun, shard: Shard, *, timeout_seconds: float | None = None
) -> ShardOutcome:
    """Rate one shard unless it is done or another process rates it (`encore.runs.work_on`).

    Raises:
        GenerationInterruptedError: The time limit passed, or the run was cancelled.
    """
    return runs.work_on(run.job(timeout_seconds=timeout_seconds), shard)


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


def _start_judge(run: RatingRun, reporter: Reporter) -> int:
    check_writable(run.run_dir)
    reporter.started("starting the judge's engine")
    run.judge.start()
    return 1 if run.judge.is_on_cpu else NUM_WORKERS


# --- one shard ----------------------------------------------------------------------------------


_TOO_LONG = ParsedReply(rating=None, null_reason="prompt_too_long")


@dataclass(slots=True, kw_only=True)
class _Item:
    """One prompt: a response of a pair under a rule, and what came of it."""

    pair: PreferencePair
    response: Response
    rule_id: str
    rating_rule: str
    conversation: str
    #: None where the prompt does not fit the judge's context.
    token_ids: Sequence[int] | None = None
    num_truncated_tokens: int = 0
    raw_reply: str | None = None
    parsed: ParsedReply = _TOO_LONG


def _rate(run: RatingRun, timeout_seconds: float | None, shard: Shard, tell: Tell) -> Slice:
    items = [
        _Item(
            pair=pair,
            response=response,
            rule_id=rule.rule_id,
            rating_rule=rule.rating_rule,
            conversation=conversation,
        )
        for pair in records_of(run.pairs.slice(shard.start, shard.num_pairs))
        for response in RESPONSES
        for conversation in [render_conversation(pair.prompt, pair.response_text(response))]
        for rule in run.rule_set.rules
    ]
    for start in range(0, len(items), _PROMPTS_PER_CHUNK):
        _tokenise(items[start : start + _PROMPTS_PER_CHUNK], run)
        tell(0)
    asked = [item for item in items if item.token_ids is not None]
    replies = run.judge.reply(
        [item.token_ids or () for item in asked],
        max_reply_tokens=run.config.max_reply_tokens,
        on_progress=_watched(shard, len(asked), timeout_seconds, tell),
    )
    for item, reply in zip(asked, replies, strict=True):
        item.raw_reply = reply.text
        item.parsed = _parse(reply)
    reasons = Counter(item.parsed.null_reason for item in items if item.parsed.null_reason)
    num_nulls = reasons.total()
    num_truncated = sum(item.num_truncated_tokens > 0 for item in items)
    return Slice(
        table=_table(run.manifest, items),
        footer={"num_ratings": len(items) - num_nulls, "num_nulls": num_nulls},
        counts={"null_reasons": dict(reasons), "num_truncated": num_truncated},
    )


def _tokenise(items: Sequence[_Item], run: RatingRun) -> None:
    """Give each item its prompt's token ids, or cut or set aside a prompt that is too long."""
    limit = run.judge.identity.max_model_len - run.config.max_reply_tokens
    texts = [render_rating_prompt(one.conversation, rating_rule=one.rating_rule) for one in items]
    for item, token_ids in zip(items, run.judge.tokenizer.encode(texts), strict=True):
        if len(token_ids) <= limit:
            item.token_ids = array("I", token_ids)
        elif run.config.overlong == "truncate-left":
            _truncate_left(item, token_ids, run.judge, limit=limit)


def _truncate_left(item: _Item, token_ids: Sequence[int], judge: Judge, *, limit: int) -> None:
    """Cut the conversation's oldest text until the prompt fits."""
    num_cut = 0
    fitted = token_ids
    while len(fitted) > limit:
        num_cut += len(fitted) - limit
        conversation = judge.tokenizer.cut_left(item.conversation, num_tokens=num_cut)
        if not conversation:
            return
        text = render_rating_prompt(conversation, rating_rule=item.rating_rule)
        [fitted] = judge.tokenizer.encode([text])
    item.token_ids = array("I", fitted)
    item.num_truncated_tokens = len(token_ids) - len(fitted)


def _watched(
    shard: Shard, num_replies: int, timeout_seconds: float | None, tell: Tell
) -> ProgressHook:
    """Pass progress on and enforce the time limit; the clock starts at each report of 0 replies.

    A judge reports 0 when its engine is ready, so the wait for an engine does not count.
    """
    deadline = float("inf")

    def hook(num_done: int) -> None:
        nonlocal deadline
        now = time.monotonic()
        if num_done == 0 and timeout_seconds is not None:
            deadline = now + timeout_seconds
        if now > deadline:
            raise GenerationInterruptedError(
                f"shard {shard.index}: generation passed its limit of {timeout_seconds:g} s after "
                f"{num_done} of {num_replies} replies; raise the limit or use smaller shards"
            )
        tell(num_done)

    return hook


def _parse(reply: Reply) -> ParsedReply:
    if not reply.is_complete:
        return ParsedReply(rating=None, null_reason="reply_cut_off")
    return parse_reply(reply.text)


def _table(manifest: RatingManifest, items: Sequence[_Item]) -> pa.Table:
    columns = {
        "pair_id": [item.pair.pair_id for item in items],
        "source": [item.pair.source for item in items],
        "response": [item.response for item in items],
        "rule_id": [item.rule_id for item in items],
        "rating": [item.parsed.rating for item in items],
        "null_reason": [item.parsed.null_reason for item in items],
        "num_truncated_tokens": [item.num_truncated_tokens for item in items],
        "raw_reply": [item.raw_reply for item in items],
        "judge": [manifest.judge] * len(items),
        "run_key": [manifest.run_key] * len(items),
    }
    return pa.table(columns, schema=RATINGS)
