"""A judge whose replies a test defines, with the real interface and a real tokenizer."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from encore.core.chat_tokenizer import FROZEN_DATE, ChatTokenizer
from encore.judges.base import Decoding, JudgeIdentity, ProgressHook, Prompt, Reply, Usage
from tests.worlds.tokenizers import byte_level

SPECIAL_TOKENS = ["<pad>", "<bos>", "<eot>", "<user>", "<assistant>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "<eot>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@cache
def byte_tokenizer(chat_template: str = CHAT_TEMPLATE) -> Any:
    """Return a tokenizer with a token per byte, five special tokens and a chat template."""
    named = {"bos_token": "<bos>", "eos_token": "<eot>", "pad_token": "<pad>"}
    return byte_level(SPECIAL_TOKENS, template=chat_template, **named)


def hashed_score(prompt: str) -> str:
    """Return a score from 0.0 to 1.0 in tenths that only depends on the prompt."""
    return f"{hashlib.sha256(prompt.encode()).digest()[0] % 11 / 10:.1f}"


@dataclass
class ScriptedJudge:
    """Judge that replies with ``script(prompt text)`` and counts its prompts."""

    script: Callable[[str], str] = hashed_score
    name: str = "scripted"
    revision: str = "1"
    max_model_len: int = 100_000
    engine_args: dict[str, bool | int | float | str] = field(default_factory=dict)
    num_asked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def identity(self) -> JudgeIdentity:
        return JudgeIdentity(
            backend="scripted",
            name=self.name,
            revision=self.revision,
            dtype="none",
            chat_template_sha256=self.tokenizer.template_sha256,
            frozen_date=FROZEN_DATE,
            max_model_len=self.max_model_len,
            engine_args=self.engine_args,
        )

    @property
    def tokenizer(self) -> ChatTokenizer:
        return ChatTokenizer(byte_tokenizer())

    @property
    def is_on_cpu(self) -> bool:
        """False, so that two shards are rated at the same time."""
        return False

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
        sessions: Sequence[str] = (),
    ) -> list[Reply]:
        on_progress(0)
        replies = []
        for token_ids in prompts:
            prompt = byte_tokenizer().decode(token_ids, skip_special_tokens=True)
            reply = self.script(prompt)
            limit = decoding.max_reply_tokens
            text = reply[:limit]  # a token per byte; a complete reply also has an end token
            usage = Usage(prompt_tokens=len(token_ids), output_tokens=len(text))
            replies.append(Reply(text=text, is_complete=len(reply) < limit, usage=usage))
            with self._lock:  # two shards may call it at the same time
                self.num_asked += 1
            on_progress(len(replies))
        return replies

    def close(self) -> None:
        """Do nothing: there is no engine."""
