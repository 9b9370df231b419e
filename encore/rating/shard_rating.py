"""Rate one shard: render its prompts, ask the judge what is not known, read the replies."""

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

#: What a turn adds to its text in a prompt, and the chat template to a prompt, at most.
_TURN_BYTES = 128
#: Columns that are the same in all rows of a run.
RUN_COLUMNS = ("judge", "run_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One rating to make."""

    pair: PreferencePair
    response: str
    rule: Rule
    conversation: str

    @property
    def key(self) -> Key:
        """What its rating is found by."""
        return self.pair.pair_id, self.response, self.rule.rule_id

    @property
    def columns(self) -> dict[str, str]:
        """What a row says of it."""
        names = ("pair_id", "response", "rule_id")
        return {"source": self.pair.source, **dict(zip(names, self.key, strict=True))}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRater:
    """What the shards of a run have in common.

    Attributes:
        judge: Answers.
        config: Says how long a shard may take, and what becomes of prompts that are too long.
        rule_set: Each response is rated under all of them.
        prompt: How a conversation and a rule become a prompt.
        decoding: How the judge answers.
        encoder: Makes token ids of prompts; None for a judge that reads texts.
        responses: Which of a pair's responses are rated.
    """

    judge: Judge
    config: RatingConfig
    rule_set: RuleSet
    prompt: RatingPrompt
    decoding: Decoding
    encoder: SegmentEncoder | None
    responses: tuple[Response, ...] = RESPONSES

    def questions(self, pairs: pa.Table) -> list[Question]:
        """All of some pairs, in the order to ask them.

        Those of a response stand together, the responses of a pair side by side: prompts that
        begin alike are then in the engine's cache.
        """
        return [
            Question(pair=pair, response=response, rule=rule, conversation=conversation)
            for pair in records_of(pairs)
            for response in self.responses
            for conversation in [render_conversation(pair.prompt, pair.response_text(response))]
            for rule in self.rule_set.rules
        ]

    def prompts(self, questions: Sequence[Question]) -> Iterator[tuple[Prompt | None, int]]:
        """What the judge reads for each, None where it is too long; tokens that were cut."""
        parts = (
            self.prompt.parts(one.conversation, rating_rule=one.rule.rating_rule)
            for one in questions
        )
        if self.encoder is None:
            yield from (("".join(both), 0) for both in parts)
            return
        limit = self.judge.identity.max_model_len - self.decoding.max_new_tokens
        for one, token_ids in zip(questions, self.encoder.encode_each(parts), strict=True):
            fitted: Sequence[int] | None = token_ids
            if len(token_ids) > limit:
                cuts = self.config.overlong == "truncate-left"
                fitted = self._truncated_left(one, token_ids, limit=limit) if cuts else None
            yield fitted, 0 if fitted is None else len(token_ids) - len(fitted)

    def num_too_long(self, pairs: pa.Table) -> int:
        """How many prompts of some pairs are too long for the judge; known before it is loaded.

        No token is less than a byte, so few prompts have to be tokenised.
        """
        if self.encoder is None:
            return 0
        limit = self.judge.identity.max_model_len - self.decoding.max_new_tokens
        around = max(
            len("".join(self.prompt.parts("", rating_rule=rule.rating_rule)).encode())
            for rule in self.rule_set.rules
        )
        num_turns = pc.list_value_length(pairs["prompt"]).to_numpy()
        most_bytes = num_bytes_of(pairs) + around + _TURN_BYTES * (num_turns + 2)
        some = self.questions(pairs.filter(pa.array(most_bytes > limit)))
        return sum(prompt is None or num_cut > 0 for prompt, num_cut in self.prompts(some))

    def rate(
        self, pairs: pa.Table, shard: Shard, *, earlier: EarlierRatings, report_rows: ReportRows
    ) -> ShardTable:
        """The rows of a shard but for the run's own columns, and what they took.

        Args:
            pairs: Those of the shard.
            shard: Which one, for messages.
            earlier: Ratings that need no call.
            report_rows: Told how many rows are finished.
        """
        questions = self.questions(pairs)
        known = earlier.rows(one.pair.pair_id for one in questions)
        answers = [known.get(one.key) for one in questions]
        asked = [one for one, answer in zip(questions, answers, strict=True) if answer is None]
        num_known = len(questions) - len(asked)
        prompts: list[tuple[Prompt | None, int]] = []
        for prompt in self.prompts(asked):
            report_rows(num_known)
            prompts.append(prompt)
        watch = _Watch(
            shard=shard,
            num_known=num_known,
            num_replies=len(asked),
            timeout_seconds=self.config.shard_timeout_seconds,
            report_rows=report_rows,
        )
        replies = ask_judge(
            self.judge,
            [prompt for prompt, _ in prompts],
            decoding=self.decoding,
            on_progress=watch,
            sessions=[one.pair.pair_id for one in asked],
        )
        seconds, min_mass = watch.seconds, self.config.min_label_mass
        new = iter(
            {
                **asdict(read_reply(reply, self.decoding, min_label_mass=min_mass)),
                "raw_reply": None if reply is None else reply.text,
                "num_truncated_tokens": num_cut,
            }
            for reply, (_, num_cut) in zip(replies, prompts, strict=True)
        )
        rows = [
            {**(answer or next(new)), **one.columns}
            for one, answer in zip(questions, answers, strict=True)
        ]
        given = [reply for reply in replies if reply is not None]
        return self._slice(rows, given, num_known=num_known, seconds=seconds)

    def _slice(
        self,
        rows: Sequence[Mapping[str, Any]],
        replies: Sequence[Reply],
        *,
        num_known: int,
        seconds: float,
    ) -> ShardTable:
        """Rows, and what the replies among them took of tokens and of the engine's time."""
        reasons = Counter(row["null_reason"] for row in rows if row["null_reason"] is not None)
        whole = RATINGS_EXPECTED if self.decoding.kind == "expected" else RATINGS
        schema = pa.schema([field for field in whole if field.name not in RUN_COLUMNS])
        usage = Usage(*map(sum, zip(NO_USAGE, *(one.usage for one in replies), strict=True)))
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
        """A prompt with its conversation's oldest text cut until it fits; None if nothing does."""
        tokenizer, num_cut, fitted = self.judge.tokenizer, 0, token_ids
        assert tokenizer is not None, "lengths are known"
        while len(fitted) > limit:
            num_cut += len(fitted) - limit
            rest = tokenizer.cut_left(question.conversation, num_tokens=num_cut)
            if not rest:
                return None
            whole = "".join(self.prompt.parts(rest, rating_rule=question.rule.rating_rule))
            [fitted] = tokenizer.encode_each([whole])
        return fitted


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Passes progress on and enforces the time limit; the clock starts at each report of 0 replies.

    A judge reports 0 when its engine is ready, so the wait for an engine does not count.
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
        """Since the engine was ready."""
        return time.monotonic() - self.began
