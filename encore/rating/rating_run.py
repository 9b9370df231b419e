"""Open the run that a study and a rating config define (key, plan, judge), and rate its shards.

The judge's prefill bounds the speed: a prompt has some hundreds of tokens, a reply four or five.
Therefore all prompts of a pair stand together (prefix caching computes their common part once), and
on a GPU one shard is rendered and tokenised, or parsed and written, while another generates.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from encore.core.errors import InputError
from encore.core.files import check_writable
from encore.core.number_text import counted
from encore.core.reporting import SILENT, Reporter
from encore.core.shown_record import ShownRecord
from encore.core.versions import package_versions
from encore.data.pairs import data_digest_of, planned_pairs, read_pairs
from encore.data.rating_runs import (
    RETRIED_REASONS,
    RatingManifest,
    list_runs,
    null_reasons_of_shard,
)
from encore.data.records import RESPONSES, Response, RuleSet
from encore.data.rule_sets import load_rule_set
from encore.data.schemas import RATINGS
from encore.data.study import Study, as_study
from encore.judges import open_engines, open_judge
from encore.judges.base import Decoding, Judge
from encore.judges.judge_options import MAX_QUESTIONS, JudgeConfig
from encore.judges.segments import SegmentEncoder
from encore.rating.decision_prompts import DecisionPrompt
from encore.rating.earlier_ratings import EarlierRatings, earlier_ratings
from encore.rating.null_watch import NullWatch
from encore.rating.prompts import PromptMaker, RatingPrompt
from encore.rating.rating_cost import Comparison, compare_with_plan
from encore.rating.rating_identity import rating_identity
from encore.rating.rating_options import EngineOptions, RatingConfig, RatingRunOptions
from encore.rating.reply_journal import ReplyJournal
from encore.rating.shard_rating import ShardRater
from encore.rating.spending import SpendingLimit, spending_limit
from encore.runs.identity import run_key_of
from encore.runs.manifest import Shard
from encore.runs.shard_files import ShardTable, inspect_shards, journal_path, state_of_shard
from encore.runs.shard_listing import ShardListing
from encore.runs.stop_rule import NEVER_STOP
from encore.runs.worker import Job, ReportRows, RunReport, work_through

#: Shards in work at once on a GPU. An engine on the CPU takes all cores and waits for its slowest
#: one, so there it is one shard at a time: two were a tenth slower on 2 cores.
NUM_WORKERS = 2
#: Largest number of tokens of a further score in a reply, with its key.
_SCORE_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class RatingRun:
    """One opened run: its folder, its plan, its pairs in plan order and its judge."""

    run_dir: Path
    manifest: RatingManifest
    config: RatingConfig
    how: RatingRunOptions
    pairs: pa.Table
    rater: ShardRater
    cancelled: threading.Event = field(default_factory=threading.Event)

    def job(self, *, reporter: Reporter = SILENT) -> Job:
        """Return the run as a job for `encore.runs.worker`.

        The report's totals are ``num_ratings`` and ``num_nulls``, and ``num_not_applicable`` if the
        judge may say that a rule does not apply. For the shards rated by this call it also has
        ``num_truncated`` and the counts ``null_reasons``.

        Args:
            reporter: Receiver of messages.
        """
        stop_rule, spending = NEVER_STOP, None
        if self.how.limits:
            from encore.rating.stop_rules import stop_rule_of  # brings the warehouse

            if self.judge.is_remote:
                spending = spending_limit(
                    self.how,
                    self.rater.decoding,
                    num_questions=self.rater.prompts.rules_per_prompt
                    if self.config.judge.api
                    else 1,
                    has_tokenizer=self.judge.tokenizer is not None,
                )
            stop_rule = stop_rule_of(
                self.how,
                self.run_dir,
                self.manifest,
                num_devices=self.config.judge.num_devices,
                reporter=reporter,
                spending=spending,
            )
        return Job(
            run_dir=self.run_dir,
            manifest=self.manifest,
            compute=partial(self._compute, spending),
            start=partial(self._start, reporter),
            shard_indices=self._shard_indices,
            slice=self.how.parsed_slice,
            replaces_done=self.how.retry_failed_prompts,
            stop_rule=stop_rule,
            cancelled=self.cancelled,
        )

    def title(self, shards: Sequence[Shard]) -> str:
        """Return a line on the run: judge, rules, plan, and the number of ratings in shards."""
        manifest = self.manifest
        num_ratings = sum(shard.num_pairs for shard in shards) * manifest.rows_per_pair
        return (
            f"run {manifest.run_key[:8]}: {manifest.judge_title}, "
            f"{counted(len(manifest.rules), 'rule')}, {counted(manifest.num_pairs, 'pair')} in "
            f"{counted(len(manifest.shards), 'shard')}, {counted(num_ratings, 'rating')}"
        )

    @property
    def judge(self) -> Judge:
        """Return the judge of the run."""
        return self.rater.judge

    @cached_property
    def earlier(self) -> EarlierRatings:
        """Return ratings of the study's other runs that this run can take over without a call."""
        return earlier_ratings(self.run_dir.parent, self.manifest)

    @property
    def _shard_indices(self) -> Sequence[int] | None:
        """Return the shards of this call; None for all. A retry takes those with failed prompts."""
        chosen = self.how.shard or None
        if not self.how.retry_failed_prompts:
            return chosen
        shards = [shard for shard in self.manifest.shards if not chosen or shard.index in chosen]
        states = inspect_shards(self.run_dir, self.manifest, shards)
        return [
            state.index for state in states if RETRIED_REASONS & null_reasons_of_shard(state).keys()
        ]

    @cached_property
    def _listing(self) -> ShardListing:
        return ShardListing(self.run_dir)

    def _start(self, reporter: Reporter) -> int:
        check_writable(self.run_dir)
        if num_too_long := self.rater.prompts.num_too_long(self.pairs):
            treatment = {"set-aside": "their ratings will be null", "truncate-left": "they are cut"}
            reporter.message(
                f"{num_too_long:,} prompts are too long for the judge's context of "
                f"{self.judge.identity.max_model_len} tokens: {treatment[self.config.overlong]} "
                "(--overlong)"
            )
        reporter.started("opening the judge")
        self.judge.start()
        if self.judge.is_remote:
            self.judge.check(self.rater.decoding)
        return 1 if self.judge.is_on_cpu else NUM_WORKERS * self.judge.num_engines

    def _compute(
        self, spending: SpendingLimit | None, shard: Shard, report_rows: ReportRows
    ) -> ShardTable:
        pairs = self.pairs.slice(shard.start, shard.num_pairs)
        path = journal_path(self.run_dir, shard.index)
        journal = ReplyJournal.read(path, run_key=self.manifest.run_key)
        earlier: EarlierRatings | None = None
        cost_before: Mapping[str, Any] = {}
        if self.how.retry_failed_prompts:
            state = state_of_shard(self.run_dir, self.manifest, shard, self._listing)
            assert state.path is not None, "a retry takes shards that are done"
            rules_by_path = {state.path: frozenset(self.manifest.rule_ids)}
            earlier = EarlierRatings(dict.fromkeys(pairs["pair_id"].to_pylist(), rules_by_path))
            cost_before = state.footer
        rated = self.rater.rate(
            pairs,
            shard,
            earlier=earlier or self.earlier,
            journal=journal,
            cost_before=cost_before,
            spending=spending,
            report_rows=report_rows,
        )
        table = rated.table
        for name, value in (("judge", self.manifest.judge), ("run_key", self.manifest.run_key)):
            column = pa.repeat(pa.scalar(value, pa.string()), table.num_rows)
            table = table.append_column(RATINGS.field(name), column)
        cost = dict(rated.cost)
        if self.judge.num_engines > 1:  # so many shards share an engine at the same time
            cost["engine_seconds"] = round(cost["engine_seconds"] / NUM_WORKERS, 3)
        return replace(rated, table=table, cost=cost)


@dataclass(frozen=True, kw_only=True, repr=False)
class RatingResult(ShownRecord):
    """Result of a call that rated a study.

    Attributes:
        run: The run. Its judge is closed.
        report: Shards that are done or failed, with their counts.
    """

    run: RatingRun
    report: RunReport

    @property
    def run_dir(self) -> Path:
        """Return the folder of the run."""
        return self.run.run_dir

    @property
    def manifest(self) -> RatingManifest:
        """Return the identity and plan of the run."""
        return self.run.manifest

    @cached_property
    def plan(self) -> Comparison:
        """Return planned and actual cost of the shards that the call rated; empty without any.

        It is computed when it is first read, because it tokenises the prompts of many pairs.
        """
        computed = {
            outcome.index
            for outcome in self.report.outcomes
            if outcome.action == self.report.kind.DONE
        }
        pairs = [
            self.run.pairs.slice(shard.start, shard.num_pairs)
            for shard in self.manifest.shards
            if shard.index in computed
        ]
        if not pairs:
            return {}
        return compare_with_plan(self.run.rater, pa.concat_tables(pairs), self.report)


def rate(
    study: Study | str | Path,
    config: RatingConfig,
    how: RatingRunOptions = RatingRunOptions(),
    *,
    reporter: Reporter = SILENT,
) -> RatingResult:
    """Have the judge rate the shards of a study that are not done, then close the judge.

    Args:
        study: The opened study, or its directory.
        config: Judge, rules and plan.
        how: Engines, shards of this call, limits at which it ends.
        reporter: Receiver of progress events.

    Raises:
        EncoreError: The study has no pairs, the rule set is not valid, the judge cannot be loaded,
            or every shard would fail for the same reason, such as a full disk.
        KeyboardInterrupt: The user stopped the run. Finished shards are kept.
    """
    run = open_run(as_study(study), config, how)
    return rate_run(run, reporter=reporter)


def rate_run(run: RatingRun, *, reporter: Reporter, keeps_judge: bool = False) -> RatingResult:
    """Rate the shards of an opened run that are not done, and release the judge.

    Args:
        run: The opened run with its judge.
        reporter: Receiver of progress events.
        keeps_judge: True if another run needs the judge next: it is released only after an error.
    """
    with ExitStack() as stack:
        stack.enter_context(closing(run.judge))
        job = run.job(reporter=reporter)
        reporter.message(run.title(job.shards))
        result = RatingResult(run=run, report=work_through(job, reporter=reporter))
        if keeps_judge and not result.report.failures:
            stack.pop_all()
        return result


def open_run(
    study: Study,
    config: RatingConfig,
    how: RatingRunOptions = RatingRunOptions(),
    *,
    judge: Judge | None = None,
) -> RatingRun:
    """Open the run that a study and a config define. Nothing is written before its first shard.

    Without a judge it is opened here, with as many engines as ``how`` says.

    The run key is a hash of judge and revision, prompt, rules, decoding, data and plan. If one of
    them changes, a new run is made beside the old one.

    Raises:
        EncoreError: The study has no pairs, the rule set is not valid, the judge cannot be loaded,
            or the study is read-only and has no run.
    """
    rule_set = load_rule_set(config.rules)
    all_pairs = read_pairs(study)
    pairs = planned_pairs(all_pairs, limit=config.limit)
    data_sha256 = data_digest_of(all_pairs)
    if not list_runs(study.ratings_dir):
        check_writable(study.path)
    return run_over(
        pairs,
        config,
        how,
        rule_set=rule_set,
        data_sha256=data_sha256,
        folder=study.ratings_dir,
        judge=judge or open_rating_judge(config.judge, how),
    )


def open_rating_judge(judge: JudgeConfig, how: EngineOptions) -> Judge:
    """Open a judge with as many engines as a run wants.

    Raises:
        EncoreError: The judge cannot be loaded, or starts no engines and several are wanted.
    """
    how.check_backend(judge.backend)
    if how.engines == 1:
        return open_judge(judge, how)
    return open_engines(judge, how, how.engines)


def run_over(
    pairs: pa.Table,
    config: RatingConfig,
    how: RatingRunOptions,
    *,
    rule_set: RuleSet,
    data_sha256: str,
    folder: Path,
    judge: Judge,
    responses: tuple[Response, ...] = RESPONSES,
    kind: type[RatingManifest] = RatingManifest,
) -> RatingRun:
    """Return the run over some pairs in a folder of runs. Nothing is written.

    Args:
        pairs: Pairs in the plan's order (`planned_pairs`).
        config: What is asked; its rules and judge are replaced by those given here.
        how: How the run is worked through.
        rule_set: Rules under which the responses are rated.
        data_sha256: Digest of the data that the pairs are taken from.
        folder: Folder in which the run gets a folder of its own.
        judge: The opened judge.
        responses: Responses of each pair that are rated.
        kind: Class of the run's manifest.

    Raises:
        EncoreError: The judge's context has no room for a prompt, or the judge cannot answer in
            the config's way.
    """
    rater = rater_of(config, judge, how, rule_set=rule_set, responses=responses)
    if not judge.is_remote:  # a server is asked when there is something to rate
        judge.check(rater.decoding)
    identity = rating_identity(
        rater, data_sha256=data_sha256, num_pairs=pairs.num_rows, folder=folder, kind=kind
    )
    manifest = kind(
        run_key=run_key_of(identity),
        identity=identity,
        rule_set=rule_set.name,
        rules=tuple(rule.texts for rule in rule_set.rules),
        versions=package_versions(),
    )
    return RatingRun(
        run_dir=folder / manifest.run_key,
        manifest=manifest,
        config=config,
        how=how,
        pairs=pairs,
        rater=rater,
    )


def rater_of(
    config: RatingConfig,
    judge: Judge,
    how: RatingRunOptions = RatingRunOptions(),
    *,
    rule_set: RuleSet,
    responses: tuple[Response, ...] = RESPONSES,
) -> ShardRater:
    """Return a config's rater, with its prompts and its way of answering. Nothing is asked.

    Raises:
        EncoreError: The judge's context has no room for a prompt.
    """
    context = judge.identity.max_model_len
    num_scores = len(rule_set.rules) if config.layout == "all-rules" else None
    decoding = Decoding(
        kind=config.decode,
        max_reply_tokens=config.max_reply_tokens + _SCORE_TOKENS * ((num_scores or 1) - 1),
        labels=config.answer_labels,
        thinking_marks=config.thinking_marks,
        num_scores=num_scores,
        questions=config.question_kind,
        think_tokens=config.think_tokens,
        not_applicable=config.not_applicable,
    )
    num_tokens = max(decoding.max_reply_tokens, decoding.max_new_tokens)
    if judge.tokenizer is not None and num_tokens >= context:
        thinking = "" if config.think_tokens is None else f", think_tokens {config.think_tokens}"
        raise InputError(
            f"max_reply_tokens {decoding.max_reply_tokens}{thinking}: the judge's context of "
            f"{context} tokens leaves no room for a prompt; give fewer of them or a larger context"
        )
    prompts = PromptMaker(
        template=_template_of(config),
        rule_set=rule_set,
        responses=responses,
        encoder=None if judge.tokenizer is None else SegmentEncoder(judge.tokenizer),
        max_tokens=context - decoding.max_new_tokens,
        is_truncated=config.overlong == "truncate-left",
        rules_per_request=MAX_QUESTIONS[config.judge.api] if config.judge.api else sys.maxsize,
    )
    return ShardRater(
        judge=judge,
        config=config,
        prompts=prompts,
        decoding=decoding,
        timeout_seconds=how.shard_timeout_seconds,
        null_watch=NullWatch(is_on=not (how.allow_nulls or how.retry_failed_prompts)),
    )


def _template_of(config: RatingConfig) -> RatingPrompt:
    """Return the layout of a run's prompts: of questions for a decision model, or of texts."""
    form = RatingPrompt if config.question_kind is None else DecisionPrompt
    return form(
        layout=config.layout,
        labels=config.labels_in_prompt,
        order_seed=config.order_seed,
        not_applicable=config.not_applicable,
    )
