"""Rate a study: render prompts, ask the judge, parse replies, write shards of ratings.

The judge's prefill bounds the speed: a prompt has some hundreds of tokens, a reply four or five.
Therefore all prompts of a pair stand together (prefix caching computes their common part once), and
on a GPU one shard is rendered and tokenised, or parsed and written, while another generates.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from encore.config import RateConfig, RatingConfig
from encore.data.pairs import data_digest_of, planned_pairs, read_pairs, records_of
from encore.data.records import RESPONSES, Rule, RuleSet
from encore.data.rules import load_rule_set
from encore.data.study import Study, as_study
from encore.engines.local import Work, work_locally
from encore.errors import GenerationInterruptedError, InputError
from encore.files import check_writable
from encore.judges import open_judge
from encore.judges.base import Judge, ProgressHook, Reply, ask, num_devices
from encore.rating.prompts import prompt_digest, render_conversation, render_rating_prompt
from encore.rating.replies import PARSER_VERSION, NullReason, parse_reply
from encore.rating_runs import RatingManifest, list_runs
from encore.reporting import SILENT, Reporter
from encore.runs import Shard, Slice, run_key_of
from encore.schemas import RATINGS
from encore.shard_runner import Job, RunReport, Tell
from encore.versions import package_versions

#: Shards in work at once on a GPU. An engine on the CPU takes all cores and waits for its slowest
#: one, so there it is one shard at a time: two were a tenth slower on 2 cores.
NUM_WORKERS = 2
#: How a plan's pairs are sorted (`encore.data.pairs.planned_pairs`): part of a run's identity.
PLAN_ORDER = "pair_id"


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

    def job(self, *, retries: int = 0, reporter: Reporter = SILENT) -> Job:
        """Work for `encore.shard_runner`; a `RateConfig` says which shards, and for how long each.

        The report's totals are ``num_ratings`` and ``num_nulls``; of the shards rated now there are
        ``num_truncated`` and the tally ``null_reasons``.
        """
        given = self.config if isinstance(self.config, RateConfig) else None
        return Job(
            run_dir=self.run_dir,
            manifest=self.manifest,
            compute=partial(_rate, self),
            start=partial(_start_judge, self, reporter),
            only=(given.shard or None) if given else None,
            part=given.part if given else None,
            retries=retries,
            cancelled=self.cancelled,
        )


def rate(
    study: Study | Path,
    config: RatingConfig,
    *,
    retries: int = 0,
    reporter: Reporter = SILENT,
    work: Work | None = None,
) -> RunReport:
    """Open the run of a study and a config, rate what is not done, release the judge.

    Args:
        study: The opened study, or its directory.
        config: Judge, rules and plan; a `RateConfig` also says which shards and for how long.
        retries: Further attempts for a shard whose error may pass.
        reporter: Told about the judge's start, finished ratings and shards.
        work: What does the run's job; default: `local_work` of the config.

    Raises:
        EncoreError: As `open_run` and `encore.shard_runner.work_through`.
    """
    opened = as_study(study)
    run = open_run(opened, config)
    work = work or local_work(opened, config, retries=retries, reporter=reporter)
    try:
        return work(run.job(retries=retries, reporter=reporter))
    finally:
        run.judge.close()


def local_work(
    study: Study, config: RatingConfig, *, retries: int = 0, reporter: Reporter = SILENT
) -> Work:
    """Rate in this process, or with as many local engines as the config says."""
    whole = RateConfig.model_validate({"study": study.path, **dict(config)})
    devices = num_devices(config.judge)
    return work_locally(whole, gpus_per_engine=devices, retries=retries, reporter=reporter)


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


def _identity(
    config: RatingConfig, judge: Judge, rule_set: RuleSet, *, data_sha256: str, num_pairs: int
) -> dict[str, Any]:
    return {
        "format": 1,
        "judge": dataclasses.asdict(judge.identity),
        "prompt_sha256": prompt_digest(),
        "rules_sha256": rule_set.digest,
        "decoding": {
            "temperature": 0.0,
            "max_reply_tokens": config.max_reply_tokens,
            "parser": PARSER_VERSION,
        },
        "data_sha256": data_sha256,
        "plan": {
            "order": PLAN_ORDER,
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


def _rate(run: RatingRun, shard: Shard, tell: Tell) -> Slice:
    asked = [
        (pair, response, rule, conversation)
        for pair in records_of(run.pairs.slice(shard.start, shard.num_pairs))
        for response in RESPONSES
        for conversation in [render_conversation(pair.prompt, pair.response_text(response))]
        for rule in run.rule_set.rules
    ]
    limit = run.judge.identity.max_model_len - run.config.max_reply_tokens
    texts = (render_rating_prompt(text, rating_rule=rule.rating_rule) for *_, rule, text in asked)
    encoded = run.judge.tokenizer.encode_each(texts)
    prompts: list[Sequence[int] | None] = []
    num_truncated: list[int] = []
    for (*_, rule, conversation), token_ids in zip(asked, encoded, strict=True):
        tell(0)
        fits = len(token_ids) <= limit
        fitted: Sequence[int] | None = token_ids if fits else None
        if not fits and run.config.overlong == "truncate-left":
            fitted = _truncated_left(conversation, rule, token_ids, run.judge, limit=limit)
        prompts.append(fitted)
        num_truncated.append(0 if fitted is None else len(token_ids) - len(fitted))
    replies = ask(
        run.judge,
        prompts,
        max_reply_tokens=run.config.max_reply_tokens,
        on_progress=_watched(
            shard, len(prompts) - prompts.count(None), run.config.shard_timeout_seconds, tell
        ),
    )
    ratings, null_reasons = zip(*map(_parse, replies), strict=True)
    reasons = Counter(reason for reason in null_reasons if reason is not None)
    columns = {
        "pair_id": [pair.pair_id for pair, *_ in asked],
        "source": [pair.source for pair, *_ in asked],
        "response": [response for _, response, *_ in asked],
        "rule_id": [rule.rule_id for *_, rule, _ in asked],
        "rating": ratings,
        "null_reason": null_reasons,
        "num_truncated_tokens": num_truncated,
        "raw_reply": [None if reply is None else reply.text for reply in replies],
        "judge": [run.manifest.judge] * len(asked),
        "run_key": [run.manifest.run_key] * len(asked),
    }
    return Slice(
        table=pa.table(columns, schema=RATINGS),
        footer={"num_ratings": len(asked) - reasons.total(), "num_nulls": reasons.total()},
        counts={
            "null_reasons": dict(reasons),
            "num_truncated": sum(num > 0 for num in num_truncated),
        },
    )


def _truncated_left(
    conversation: str, rule: Rule, token_ids: Sequence[int], judge: Judge, *, limit: int
) -> Sequence[int] | None:
    """A prompt with its conversation's oldest text cut until it fits; None if nothing does."""
    num_cut, fitted = 0, token_ids
    while len(fitted) > limit:
        num_cut += len(fitted) - limit
        rest = judge.tokenizer.cut_left(conversation, num_tokens=num_cut)
        if not rest:
            return None
        [fitted] = judge.tokenizer.encode_each(
            [render_rating_prompt(rest, rating_rule=rule.rating_rule)]
        )
    return fitted


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


def _parse(reply: Reply | None) -> tuple[float | None, NullReason | None]:
    if reply is None:
        return None, "prompt_too_long"
    return parse_reply(reply.text) if reply.is_complete else (None, "reply_cut_off")
