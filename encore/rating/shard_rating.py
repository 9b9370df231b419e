"""Rate one shard: make its prompts, ask the judge, read the replies.

Ratings that another run of the study has already are taken over without a call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from encore.core.errors import GenerationInterruptedError
from encore.data.schemas import RATINGS, RATINGS_EXPECTED
from encore.judges.base import NO_USAGE, Decoding, Judge, Prompt, Reply, Usage, ask_judge
from encore.rating.earlier_ratings import EarlierRatings
from encore.rating.prompts import PromptMaker
from encore.rating.rating_options import RatingConfig
from encore.rating.replies import read_reply
from encore.runs.run_files import Shard, ShardTable
from encore.runs.shard_runner import ReportRows

#: Columns that have one value in all rows of a run.
RUN_COLUMNS = ("judge", "run_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRater:
    """Rates the shards of one run.

    Attributes:
        judge: The opened judge.
        config: Options of the run, such as a shard's time limit.
        prompts: Maker of the run's prompts.
        decoding: Way in which the judge answers.
    """

    judge: Judge
    config: RatingConfig
    prompts: PromptMaker
    decoding: Decoding

    def rate(
        self, pairs: pa.Table, shard: Shard, *, earlier: EarlierRatings, report_rows: ReportRows
    ) -> ShardTable:
        """Rate the pairs of a shard; return its rows without the run's own columns, and the cost.

        Args:
            pairs: Pairs of the shard.
            shard: The shard, for messages.
            earlier: Ratings of other runs, which need no call.
            report_rows: Function that receives the number of finished rows.
        """
        questions = self.prompts.questions(pairs)
        earlier_rows = earlier.rows(question.pair.pair_id for question in questions)
        open_questions = [question for question in questions if question.key not in earlier_rows]
        num_known = len(questions) - len(open_questions)
        prompts: list[tuple[Prompt | None, int]] = []
        for prompt in self.prompts.make(open_questions):
            report_rows(num_known)
            prompts.append(prompt)
        watch = _ProgressWatch(
            shard=shard,
            num_known=num_known,
            num_replies=len(open_questions),
            timeout_seconds=self.config.shard_timeout_seconds,
            report_rows=report_rows,
        )
        replies = ask_judge(
            self.judge,
            [prompt for prompt, _ in prompts],
            decoding=self.decoding,
            on_progress=watch,
            sessions=[question.pair.pair_id for question in open_questions],
        )
        seconds, min_mass = watch.seconds, self.config.min_label_mass
        new_rows = iter(
            {
                **asdict(read_reply(reply, self.decoding, min_label_mass=min_mass)),
                "raw_reply": None if reply is None else reply.text,
                "num_truncated_tokens": num_cut,
            }
            for reply, (_, num_cut) in zip(replies, prompts, strict=True)
        )
        rows = [
            {**(earlier_rows.get(question.key) or next(new_rows)), **question.columns}
            for question in questions
        ]
        received = [reply for reply in replies if reply is not None]
        return self._shard_table(rows, received, num_known=num_known, seconds=seconds)

    def _shard_table(
        self,
        rows: Sequence[Mapping[str, Any]],
        replies: Sequence[Reply],
        *,
        num_known: int,
        seconds: float,
    ) -> ShardTable:
        """Return the shard's table with its counts, and the tokens and seconds of the replies."""
        reasons = Counter(row["null_reason"] for row in rows if row["null_reason"] is not None)
        full_schema = RATINGS_EXPECTED if self.decoding.kind == "expected" else RATINGS
        schema = pa.schema([field for field in full_schema if field.name not in RUN_COLUMNS])
        usage = Usage(*map(sum, zip(NO_USAGE, *(reply.usage for reply in replies), strict=True)))
        return ShardTable(
            table=pa.Table.from_pylist(rows, schema=schema),
            footer={"num_ratings": len(rows) - reasons.total(), "num_nulls": reasons.total()},
            cost={
                "num_calls": len(replies),
                "prompt_tokens": usage.prompt_tokens,
                "computed_tokens": usage.prompt_tokens - usage.cached_tokens,
                "output_tokens": usage.output_tokens,
                "engine_seconds": round(seconds, 3),
            },
            counts={
                "null_reasons": dict(reasons),
                "num_truncated": sum(row["num_truncated_tokens"] > 0 for row in rows),
                "num_known": num_known,
            },
        )


@dataclass(slots=True, kw_only=True)
class _ProgressWatch:
    """Passes progress on and enforces the time limit of a shard.

    The clock starts at each report of 0 replies. A judge reports 0 when its engine is ready, so the
    wait for an engine does not count.
    """

    shard: Shard
    num_known: int
    num_replies: int
    timeout_seconds: float | None
    report_rows: ReportRows
    began: float = field(default_factory=time.monotonic)

    def __call__(self, num_done: int) -> None:
        if num_done == 0:
            self.began = time.monotonic()
        limit = self.timeout_seconds
        if limit is not None and self.seconds > limit:
            raise GenerationInterruptedError(
                f"shard {self.shard.index}: generation passed its limit of {limit:g} s after "
                f"{num_done} of {self.num_replies} replies; raise the limit or use smaller shards"
            )
        self.report_rows(self.num_known + num_done)

    @property
    def seconds(self) -> float:
        """Return the seconds since the engine was ready."""
        return time.monotonic() - self.began
