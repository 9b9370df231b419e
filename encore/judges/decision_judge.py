"""The judge on servers with an interface for decision models: all questions in one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.judges.base import UNREADABLE_ANSWER, Decoding, Prompt, Reply, total_usage
from encore.judges.decision_protocol import (
    PATHS,
    decision_prompt,
    decision_requests,
    joined_reply,
    read_decision,
)
from encore.judges.http_judge import MAX_ANSWERS, HttpJudge, Request
from encore.judges.http_protocol import PromptFailedError
from encore.judges.judge_options import DecisionApi
from encore.judges.token_usage import request_size

_PROBE = decision_prompt("Human: Hello.", ["The human says hello."])


class DecisionJudge(HttpJudge):
    """Judge (`encore.judges.base.Judge`) whose prompts are questions (`decision_prompt`)."""

    @property
    def api(self) -> DecisionApi:
        """Return the interface of the servers."""
        assert self.config.api is not None, "`open_judge` opens this judge for a config with one"
        return self.config.api

    def check(self, decoding: Decoding) -> None:
        """Send a test question, so that a wrong model, key or interface is refused at once."""
        self.start()
        try:
            [reply] = self.reply([_PROBE], decoding=decoding, on_progress=lambda _: None)
        except EncoreError as error:
            raise JudgeUnavailableError(
                f"{error}; --api {self.api} is for decision models, whose server answers at "
                f"{PATHS[self.api]}"
            ) from None
        [answer] = reply.answers
        if answer.null_reason == UNREADABLE_ANSWER:
            raise self._model.refusal(f"does not answer a {decoding.questions}: {answer.text}")

    def reply(
        self, prompts: Sequence[Prompt], *, decoding: Decoding, **options: Any
    ) -> list[Reply]:
        """Return the replies in prompt order (`HttpJudge.reply`).

        Raises:
            JudgeUnavailableError: The prompts are texts.
        """
        if decoding.questions is None:
            raise self._model.refusal(
                "is asked for a text, and it is a decision model (--api), which rates responses "
                "and does nothing else; give another --judge"
            )
        return super().reply(prompts, decoding=decoding, **options)

    def _probe_prompt(self) -> Prompt:
        """Return the prompt of a test question."""
        return _PROBE

    async def _reply_to_batch(
        self, request: Request, *, max_answers: int = MAX_ANSWERS
    ) -> list[Reply]:
        """Send the questions of one prompt, in as many requests as they take."""
        [prompt], decoding = request.prompts, request.decoding
        replies: list[Reply] = []
        for keys, fields in decision_requests(self.config.model, prompt, decoding, self.api):
            body = self.config.request_body(fields)
            read = partial(read_decision, keys=keys, decoding=decoding, api=self.api)
            size = request_size([prompt], body, self._learned_tokens)
            size = replace(  # the model may read the prompt again for each question
                size,
                num_bytes=len(keys) * size.num_bytes,
                max_prompt_tokens=len(keys) * size.max_prompt_tokens,
            )
            try:
                replies += await self._ask(
                    request, PATHS[self.api], body, read, size, max_answers=max_answers
                )
            except PromptFailedError as error:
                usage = total_usage(reply.usage for reply in replies)
                error.add_cost(usage, sum(reply.num_calls for reply in replies))
                raise
        return [joined_reply(replies)]
