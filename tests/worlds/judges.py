"""A judge whose replies a test defines, with the real interface and a real tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from encore.core.chat_tokenizer import FROZEN_DATE, ChatTokenizer
from encore.judges.base import (
    Decoding,
    JudgeIdentity,
    ProgressHook,
    Prompt,
    Reply,
    ReplyHook,
    Usage,
    ignore_reply,
    label_reply,
)
from encore.judges.judge_options import JudgeConfig
from encore.judges.server_options import ServerOptions
from tests.worlds.tokenizers import byte_level

SPECIAL_TOKENS = ["<pad>", "<bos>", "<eot>", "<user>", "<assistant>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "<eot>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@cache
def byte_tokenizer(chat_template: str = CHAT_TEMPLATE) -> Any:
    """Return a tokenizer with a token per byte, five special tokens and a chat template."""
    tokens_by_role = {"bos_token": "<bos>", "eos_token": "<eot>", "pad_token": "<pad>"}
    return byte_level(SPECIAL_TOKENS, template=chat_template, **tokens_by_role)


def judge_and_server(options: Mapping[str, object]) -> tuple[JudgeConfig, ServerOptions]:
    """Return a judge and its server of the options that a judge.toml has."""
    names = ServerOptions.model_fields.keys() & options.keys()
    judge = {name: value for name, value in options.items() if name not in names}
    server = {name: options[name] for name in names}
    return JudgeConfig.model_validate(judge), ServerOptions.model_validate(server)


def hashed_score(prompt: str) -> str:
    """Return a score from 0.0 to 1.0 in tenths that only depends on the prompt."""
    return f"{hashlib.sha256(prompt.encode()).digest()[0] % 11 / 10:.1f}"


@dataclass
class ScriptedJudge:
    """Judge whose replies a function decides; it keeps its prompts.

    Attributes:
        script: Function that returns the reply to the text of a prompt.
        name: Name of the judge in its identity.
        revision: Revision of the judge in its identity.
        max_model_len: Context length in tokens, which are bytes.
        engine_args: Engine arguments in its identity.
        reads_texts: True for a judge without a tokenizer here, as on a server.
        is_on_cpu: False rates two shards at the same time, as on a GPU.
        is_remote: True for a judge on another machine.
        wait_seconds: Time that it has waited for a server.
        label_logprobs: Log-probabilities of the labels in every reply of decoding ``expected``.
        asked: Texts of all prompts so far.
    """

    script: Callable[[str], str] = hashed_score
    name: str = "scripted"
    revision: str = "1"
    max_model_len: int = 100_000
    engine_args: dict[str, bool | int | float | str] = field(default_factory=dict)
    reads_texts: bool = False
    is_on_cpu: bool = False
    is_remote: bool = False
    num_engines: int = 1
    wait_seconds: float = 0.0
    label_logprobs: tuple[float, ...] = ()
    asked: list[str] = field(default_factory=list)

    @property
    def identity(self) -> JudgeIdentity:
        return JudgeIdentity(
            backend="scripted",
            name=self.name,
            revision=self.revision,
            dtype="none",
            chat_template_sha256=ChatTokenizer(byte_tokenizer()).template_sha256,
            frozen_date=FROZEN_DATE,
            max_model_len=self.max_model_len,
            engine_args=self.engine_args,
        )

    @property
    def tokenizer(self) -> ChatTokenizer | None:
        return None if self.reads_texts else ChatTokenizer(byte_tokenizer())

    @property
    def num_asked(self) -> int:
        """Return the number of prompts so far."""
        return len(self.asked)

    def start(self) -> None:
        """Do nothing: there is no model."""

    def check(self, decoding: Decoding) -> None:
        """Accept every decoding: the script returns text."""

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        decoding: Decoding,
        on_progress: ProgressHook,
        on_reply: ReplyHook = ignore_reply,
        sessions: Sequence[str] = (),
        num_answered: int | None = None,
    ) -> list[Reply]:
        on_progress(0)
        replies = []
        for prompt in prompts:
            text = (
                prompt
                if isinstance(prompt, str)
                else byte_tokenizer().decode(prompt, skip_special_tokens=True)
            )
            replies.append(self._reply(self.script(text), len(prompt), decoding))
            self.asked.append(text)
            on_reply(len(replies) - 1, replies[-1])
            on_progress(len(replies))
        return replies

    def close(self) -> None:
        """Do nothing: there is no engine."""

    def _reply(self, text: str, num_tokens: int, decoding: Decoding) -> Reply:
        if decoding.kind == "expected" and self.label_logprobs:
            usage = Usage(prompt_tokens=num_tokens, output_tokens=1)
            return label_reply(decoding, self.label_logprobs, usage)
        # A token per byte; a complete reply also has an end token.
        limit = decoding.max_reply_tokens
        usage = Usage(prompt_tokens=num_tokens, output_tokens=len(text[:limit]))
        return Reply(text=text[:limit], is_complete=len(text) < limit, usage=usage)
