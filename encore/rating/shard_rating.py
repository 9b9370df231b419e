"""Rate one shard: render its prompts, ask the judge, read the replies.

Ratings that another run of the study has already are taken over without a call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from encore.core.errors import GenerationInterruptedError
from encore.data.pairs import num_bytes_of, records_of
from encore.data.records import RESPONSES, PreferencePair, Response, Rule, RuleSet
from encore.data.schemas import RATINGS, RATINGS_EXPECTED
from encore.judges.base import NO_USAGE, Decoding, Judge, Prompt, Reply, Usage, ask_judge
from encore.judges.segments import SegmentEncoder
from encore.rating.earlier_ratings import EarlierRatings, Key
from encore.rating.prompts import RatingPrompt, render_conversation
from encore.rating.rating_config import RatingConfig
from encore.rating.replies import read_reply
from encore.runs.run_files import Shard, ShardTable
from encore.runs.shard_runner import ReportRows

#: Largest number of bytes that a prompt has around the text of a turn, and around the whole.
_TURN_BYTES = 128
#: Columns that have one value in all rows of a run.
RUN_COLUMNS = ("judge", "run_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One response of a pair to be rated under one rule."""

    pair: PreferencePair
    response: str
    rule: Rule
    conversation: str

    @property
    def key(self) -> Key:
        """Return pair id, response and rule id, which identify the rating."""
        return self.pair.pair_id, self.response, self.rule.rule_id

    @property
    def columns(self) -> dict[str, str]:
        """Return the columns of the rating's row that identify it."""
        names = ("pair_id", "response", "rule_id")
        return {"source": self.pair.source, **dict(zip(names, self.key, strict=True))}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRater:
    """Rates the shards of one run.

    Attributes:
        judge: The opened judge.
        config: Options of the run, such as a shard's time limit and the treatment of long prompts.
        rule_set: Rules under which each response is rated.
        prompt: Layout of the prompt: how a conversation and a rule are put together.
        decoding: Way in which the judge answers.
        encoder: Encoder of prompts to token ids; None for a judge that reads texts.
        responses: Responses of each pair that are rated.
    """

    judge: Judge
    config: RatingConfig
    rule_set: RuleSet
    prompt: RatingPrompt
    decoding: Decoding
    encoder: SegmentEncoder | None
    responses: tuple[Response, ...] = RESPONSES

    @property
    def num_prompts_per_pair(self) -> int:
        """Return the number of prompts about one pair: its responses under all rules."""
        return len(self.responses) * len(self.rule_set.rules)

    def questions(self, pairs: pa.Table) -> list[Question]:
        """Return all questions about some pairs, in the order in which they are asked.

        The questions about a response follow each other, and so do the responses of a pair: the
        engine then finds the common beginning of their prompts in its cache.
        """
        return [
            Question(pair=pair, response=response, rule=rule, conversation=conversation)
            for pair in records_of(pairs)
            for response in self.responses
            for conversation in [render_conversation(pair.prompt, pair.response_text(response))]
            for rule in self.rule_set.rules
        ]

    def prompts(self, questions: Sequence[Question]) -> Iterator[tuple[Prompt | None, int]]:
        """Yield each question's prompt, None if it is too long, and the number of tokens cut."""
        parts = (
            self.prompt.parts(question.conversation, rating_rule=question.rule.rating_rule)
            for question in questions
        )
        if self.encoder is None:
            yield from (("".join(prompt_parts), 0) for prompt_parts in parts)
            return
        limit = self.judge.identity.max_model_len - self.decoding.max_new_tokens
        for question, token_ids in zip(questions, self.encoder.encode_each(parts), strict=True):
            fitted: Sequence[int] | None = token_ids
            if len(token_ids) > limit:
                fitted = None
                if self.config.overlong == "truncate-left":
                    fitted = self._truncated_left(question, token_ids, limit=limit)
            yield fitted, 0 if fitted is None else len(token_ids) - len(fitted)

    def num_too_long(self, pairs: pa.Table) -> int:
        """Count the prompts of some pairs that are too long; the judge need not be loaded.

        A token has at least one byte, so only prompts with many bytes have to be tokenised.
        """
        if self.encoder is None:
            return 0
        limit = self.judge.identity.max_model_len - self.decoding.max_new_tokens
        max_bytes_around = max(
            len("".join(self.prompt.parts("", rating_rule=rule.rating_rule)).encode())
            for rule in self.rule_set.rules
        )
        num_turns = pc.list_value_length(pairs["prompt"]).to_numpy()
        max_bytes_P = num_bytes_of(pairs) + max_bytes_around + _TURN_BYTES * (num_turns + 2)
        questions = self.questions(pairs.filter(pa.array(max_bytes_P > limit)))
        return sum(prompt is None or num_cut > 0 for prompt, num_cut in self.prompts(questions))

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
        questions = self.questions(pairs)
        earlier_rows = earlier.rows(question.pair.pair_id for question in questions)
        open_questions = [question for question in questions if question.key not in earlier_rows]
        num_known = len(questions) - len(open_questions)
        prompts: list[tuple[Prompt | None, int]] = []
        for prompt in self.prompts(open_questions):
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

    def _truncated_left(
        self, question: Question, token_ids: Sequence[int], *, limit: int
    ) -> Sequence[int] | None:
        """Cut a conversation's oldest text until its prompt fits; None if no text would be left."""
        tokenizer, num_cut, fitted = self.judge.tokenizer, 0, token_ids
        assert tokenizer is not None, "prompts have lengths only with a tokenizer"
        while len(fitted) > limit:
            num_cut += len(fitted) - limit
            conversation = tokenizer.cut_left(question.conversation, num_tokens=num_cut)
            if not conversation:
                return None
            prompt = "".join(self.prompt.parts(conversation, rating_rule=question.rule.rating_rule))
            [fitted] = tokenizer.encode_each([prompt])
        return fitted


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
