"""The judge interface: token prompts in, replies out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from encore.config import JudgeConfig
from encore.errors import JudgeUnavailableError
from encore.judges.chat import ChatTokenizer

#: Called with the number of replies finished so far: with 0 before an engine is started and when
#: the generation begins, then at least once per engine step that finishes one. It may raise to
#: interrupt.
ProgressHook = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A judge's raw reply. ``is_complete`` is False when the token limit cut it off."""

    text: str
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeIdentity:
    """Everything about a judge that can change a reply; part of the run key.

    ``name`` is the hub id or the folder's name, never a path; ``revision`` the hub commit or a
    digest of the folder's files.
    """

    backend: str
    name: str
    revision: str
    dtype: str
    chat_template_sha256: str
    frozen_date: str
    max_model_len: int
    engine_args: Mapping[str, bool | int | float | str]


class Judge(Protocol):
    """Prompts in, replies out. Loading the model waits until the first `reply`."""

    @property
    def identity(self) -> JudgeIdentity:
        """What goes into the run key; needs the tokenizer and config, not the weights."""
        ...

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Turns rating prompts into the token ids this judge reads."""
        ...

    @property
    def is_on_cpu(self) -> bool:
        """Whether generation takes the processor's cores; known once the model is loaded."""
        ...

    def start(self) -> None:
        """Load the model now rather than with the first reply.

        In the main thread this can be interrupted; a large model takes minutes.

        Raises:
            JudgeUnavailableError: The model or its engine cannot be loaded.
        """
        ...

    def reply(
        self, prompts: Sequence[Sequence[int]], *, max_reply_tokens: int, on_progress: ProgressHook
    ) -> list[Reply]:
        """Greedy replies in the order of the prompts (token ids). Safe to call from any thread.

        An exception in mid-generation, also one raised by ``on_progress``, discards the engine;
        the next call starts a fresh one.
        """
        ...

    def close(self) -> None:
        """Release the engine's memory and processes."""
        ...


def num_devices(config: JudgeConfig) -> int:
    """How many devices an engine of the judge takes: tensor times pipeline parallel size.

    Raises:
        JudgeUnavailableError: One of them is no number of devices.
    """
    product = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        value = config.engine_args.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise JudgeUnavailableError(
                f"engine argument {name}: {value!r}, expected a whole number of devices"
            )
        product *= value
    return product


def ask(
    judge: Judge,
    prompts: Sequence[Sequence[int] | None],
    *,
    max_reply_tokens: int,
    on_progress: ProgressHook,
) -> list[Reply | None]:
    """A judge's reply to each prompt; None stands for a prompt that is not asked, and its reply."""
    asked = [token_ids for token_ids in prompts if token_ids is not None]
    if asked:
        replies = judge.reply(asked, max_reply_tokens=max_reply_tokens, on_progress=on_progress)
        assert len(replies) == len(asked), "a reply for each prompt"
    reply_of = iter(replies if asked else ())
    return [None if token_ids is None else next(reply_of) for token_ids in prompts]
