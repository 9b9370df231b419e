"""Rate one shard: make its prompts, ask the judge, read the replies.

Ratings that another run of the study has already are taken over without a call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from encore.core.errors import GenerationInterruptedError
from encore.data.rating_runs import DOES_NOT_APPLY
from encore.data.schemas import RATINGS, RATINGS_EXPECTED
from encore.judges.base import AskedJudge, Decoding, Judge, Prompt, Reply, ask_judge, total_usage
from encore.rating.earlier_ratings import EarlierRatings, Key
from encore.rating.null_watch import NullWatch, WatchedJudge
from encore.rating.prompts import PromptMaker, Question
from encore.rating.rating_options import RatingConfig
from encore.rating.replies import read_answers, thinking_tokens
from encore.rating.reply_journal import JournalledJudge, ReplyJournal
from encore.rating.spending import BudgetedJudge, SpendingLimit
from encore.runs.manifest import Shard
from encore.runs.shard_files import ShardTable
from encore.runs.worker import ReportRows

#: Columns that have one value in all rows of a run.
RUN_COLUMNS = ("judge", "run_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRater:
    """Rates the shards of one run.

    Attributes:
        judge: The opened judge.
        config: What the run asks.
        prompts: Maker of the run's prompts.
        decoding: Way in which the judge answers.
        timeout_seconds: Longest generation of a shard; None if it has no limit.
        null_watch: Counter of the nulls, which stops a run that learns nothing.
    """

    judge: Judge
    config: RatingConfig
    prompts: PromptMaker
    decoding: Decoding
    timeout_seconds: float | None
    null_watch: NullWatch

    def rate(
        self,
        pairs: pa.Table,
        shard: Shard,
        *,
        earlier: EarlierRatings,
        journal: ReplyJournal,
        spending: SpendingLimit | None = None,
        cost_before: Mapping[str, Any] = MappingProxyType({}),
        report_rows: ReportRows,
    ) -> ShardTable:
        """Rate the pairs of a shard; return its rows without the run's own columns, and the cost.

        Args:
            pairs: Pairs of the shard.
            shard: The shard, for messages.
            earlier: Ratings of other runs, which need no call.
            journal: Replies to the shard's prompts in earlier calls, and those of this one.
            spending: Limit of what the run's requests may cost; None if they have none.
            cost_before: Calls and tokens of the shard that the journal does not have.
            report_rows: Function that receives the number of finished rows.

        Raises:
            ShardClosedError: The limit is used up. The replies so far are in the journal.
            NoRatingsError: Most replies of this call hold no rating.
        """
        questions = self.prompts.questions(pairs)
        earlier_rows = earlier.rows(question.pair.pair_id for question in questions)
        open_questions = [
            question for question in questions if not question.is_answered(earlier_rows)
        ]
        rules_per_prompt = self.prompts.rules_per_prompt
        num_known = (len(questions) - len(open_questions)) * rules_per_prompt
        prompts, nums_cut = self._make_prompts(open_questions, lambda: report_rows(num_known))
        for row in earlier_rows.values():
            self.null_watch.count(
                row["null_reason"], row["raw_reply"], label_mass=row.get("label_mass")
            )
        watch = _ProgressWatch(
            shard=shard,
            num_known=num_known,
            num_kept=len(journal.earlier_replies_to(prompts)),
            rows_per_reply=rules_per_prompt,
            num_replies=len(open_questions),
            timeout_seconds=self.timeout_seconds,
            report_rows=report_rows,
            judge=self.judge,
        )
        replies = ask_judge(
            self._wrapped_judge(journal, spending),
            prompts,
            decoding=self.decoding,
            on_progress=watch,
            sessions=[question.pair.pair_id for question in open_questions],
            num_answered=num_known // rules_per_prompt,
        )
        new_rows = (
            {**columns, "num_truncated_tokens": num_cut}
            for reply, num_cut in zip(replies, nums_cut, strict=True)
            for columns in self._answer_columns(reply)
        )
        rows = self._rows_in_order(questions, earlier_rows, new_rows)
        journal_cost = _cost(journal.paid_replies)
        return self._shard_table(
            rows,
            cost_now=_cost(journal.new_replies),
            cost_before={n: k + int(cost_before.get(n, 0)) for n, k in journal_cost.items()},
            seconds=watch.seconds,
            counts={
                "num_known": num_known,
                "num_kept": watch.num_kept,
                **thinking_tokens(journal.new_replies, self.decoding),
                **_counts_of_answers([reply for reply in replies if reply is not None]),
            },
        )

    def _wrapped_judge(self, journal: ReplyJournal, spending: SpendingLimit | None) -> AskedJudge:
        """Return the judge within its budget, with its journal, under the watch on nulls."""
        judge: AskedJudge = self.judge
        if spending is not None:
            judge = BudgetedJudge(judge=judge, spending=spending)
        judge = JournalledJudge(judge=judge, journal=journal)
        return WatchedJudge(judge=judge, watch=self.null_watch, null_reason_of=self._null_reason_of)

    def _make_prompts(
        self, questions: Sequence[Question], on_prompt: Callable[[], None]
    ) -> tuple[list[Prompt | None], list[int]]:
        """Return the prompts of some questions, and how many tokens were cut from each."""
        prompts: list[Prompt | None] = []
        nums_cut: list[int] = []
        for prompt, num_cut in self.prompts.make(questions):
            on_prompt()
            prompts.append(prompt)
            nums_cut.append(num_cut)
        return prompts, nums_cut

    def _rows_in_order(
        self,
        questions: Sequence[Question],
        earlier_rows: Mapping[Key, Mapping[str, Any]],
        new_rows: Iterator[Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """Return the rows of all questions in their order, and by rule within a question.

        Args:
            questions: All questions of the shard.
            earlier_rows: Rows of other runs.
            new_rows: Rows of the questions that these do not answer, in order.
        """
        rows: list[dict[str, Any]] = []
        for question in questions:
            is_known = question.is_answered(earlier_rows)
            row_by_rule = {
                rule: earlier_rows[question.key(rule)] if is_known else next(new_rows)
                for rule in question.rules
            }
            in_order = self.prompts.rule_set.rules if len(row_by_rule) > 1 else question.rules
            rows += [{**row_by_rule[rule], **question.columns(rule)} for rule in in_order]
        return rows

    def _null_reason_of(self, reply: Reply) -> str | None:
        """Return why a reply holds no rating; None if it holds one, or if a rule does not apply."""
        reasons = [columns["null_reason"] for columns in self._answer_columns(reply)]
        return None if {None, DOES_NOT_APPLY} & {*reasons} else reasons[0]

    def _answer_columns(self, reply: Reply | None) -> list[dict[str, Any]]:
        """Return the columns of a reply's rows that hold the reply and what it says."""
        answers = read_answers(reply, self.decoding, min_label_mass=self.config.min_label_mass)
        raw_replies: list[str | None] = [None if reply is None else reply.text] * len(answers)
        if reply is not None and reply.answers:
            raw_replies = [answer.text for answer in reply.answers]
        return [
            {**asdict(answer), "raw_reply": raw_reply}
            for answer, raw_reply in zip(answers, raw_replies, strict=True)
        ]

    def _shard_table(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        cost_now: Mapping[str, int],
        cost_before: Mapping[str, int],
        seconds: float,
        counts: Mapping[str, Any],
    ) -> ShardTable:
        """Return the shard's table with its counts and its cost.

        Args:
            rows: Rows of the table.
            cost_now: Calls and tokens of this call.
            cost_before: Calls and tokens of the shard in earlier calls.
            seconds: Time of this call.
            counts: Further counts of this call for its report.
        """
        reasons = Counter(row["null_reason"] for row in rows if row["null_reason"] is not None)
        full_schema = RATINGS_EXPECTED if self.decoding.kind == "expected" else RATINGS
        schema = pa.schema([field for field in full_schema if field.name not in RUN_COLUMNS])
        cost = {name: number + cost_before[name] for name, number in cost_now.items()}
        num_not_applicable = reasons[DOES_NOT_APPLY]
        footer = {
            "num_ratings": len(rows) - reasons.total(),
            "num_nulls": reasons.total() - num_not_applicable,
        }
        if self.config.ask_applies:
            footer["num_not_applicable"] = num_not_applicable
        return ShardTable(
            table=pa.Table.from_pylist(rows, schema=schema),
            footer=footer,
            cost={**cost, "engine_seconds": round(seconds, 3)},
            counts={
                **cost_now,
                **counts,
                "null_reasons": dict(reasons),
                "num_truncated": sum(row["num_truncated_tokens"] > 0 for row in rows)
                // self.prompts.rules_per_prompt,
            },
        )


def _cost(replies: Sequence[Reply]) -> dict[str, int]:
    """Return the calls and tokens of some replies."""
    usage = total_usage(reply.usage for reply in replies)
    return {
        "num_calls": sum(reply.num_calls for reply in replies),
        "prompt_tokens": usage.prompt_tokens,
        "computed_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


def _counts_of_answers(replies: Sequence[Reply]) -> dict[str, dict[str, int]]:
    """Return how often each model answered, and how often each remark was made, if any."""
    counts = {
        "answered_by": Counter(reply.answered_by for reply in replies if reply.answered_by),
        "remarks": Counter(remark for reply in replies for remark in reply.remarks),
    }
    return {name: dict(sorted(counter.items())) for name, counter in counts.items() if counter}


@dataclass(slots=True, kw_only=True)
class _ProgressWatch:
    """Passes progress on and enforces the time limit of a shard.

    The clock of a local judge starts at each report of no new reply, which it makes when its engine
    is ready, so the wait for an engine does not count. Nor does the wait for a server that is away.

    Attributes:
        shard: The shard, for messages.
        num_known: Rows that other runs have.
        num_kept: Replies of earlier calls.
        rows_per_reply: Rows that a reply fills.
        num_replies: Replies of the whole shard, the kept ones included.
        timeout_seconds: Longest generation; None if it has no limit.
        report_rows: Function that receives the number of finished rows.
        judge: The judge, which says how long it waited for a server.
        began: Reading of the clock at the beginning.
    """

    shard: Shard
    num_known: int
    num_kept: int
    rows_per_reply: int
    num_replies: int
    timeout_seconds: float | None
    report_rows: ReportRows
    judge: Judge
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self._clock()

    def __call__(self, num_done: int) -> None:
        if num_done == self.num_kept and not self.judge.is_remote:
            self.began = self._clock()
        limit = self.timeout_seconds
        if limit is not None and self.seconds > limit:
            raise GenerationInterruptedError(
                f"shard {self.shard.index}: generation passed its limit of {limit:g} s after "
                f"{num_done} of {self.num_replies} replies; raise the limit or use smaller shards"
            )
        self.report_rows(self.num_known + num_done * self.rows_per_reply)

    @property
    def seconds(self) -> float:
        """Return the seconds since the engine was ready, without waits for a server."""
        return self._clock() - self.began

    def _clock(self) -> float:
        return time.monotonic() - self.judge.wait_seconds
