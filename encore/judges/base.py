"""The judge interface: prompts in, replies out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from encore.core.chat_tokenizer import ChatTokenizer
from encore.core.errors import JudgeUnavailableError
from encore.judges.judge_config import Decode, JudgeConfig

#: Called with the number of replies finished so far: with 0 before an engine is started and when
#: the generation begins, then at least once per engine step that finishes one. It may raise to
#: interrupt.
ProgressHook = Callable[[int], None]

#: The token ids of the whole text that a judge reads; the user message alone where the judge has no
#: tokenizer here.
Prompt = Sequence[int] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How an answer is made of a judge's distribution of tokens.

    Attributes:
        kind: ``text``: greedy. ``choice``: greedy among ``labels``. ``expected``: one token, with
            the log-probability of each label.
        max_reply_tokens: Of a reply that is text.
        labels: Of choice and expected, the lowest first.
    """

    kind: Decode = "text"
    max_reply_tokens: int
    labels: tuple[str, ...] = ()

    @property
    def max_new_tokens(self) -> int:
        """Tokens of the context that the reply may take."""
        return 1 if self.kind == "expected" else self.max_reply_tokens


class Usage(NamedTuple):
    """Tokens of one reply; of the prompt's, ``cached`` ones were not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A judge's raw reply.

    Attributes:
        text: What it said; of `expected`, its most likely label.
        is_complete: False when the token limit cut it off.
        null_reason: Why the judge gave no answer, if it did not.
        label_logprobs: Of `expected`: natural logarithms of the labels' probabilities.
        usage: Its tokens; the same reply may take more or fewer.
    """

    text: str
    is_complete: bool
    null_reason: str | None = None
    label_logprobs: tuple[float, ...] | None = None
    usage: Usage = field(default=NO_USAGE, compare=False)


def label_reply(decoding: Decoding, logprobs: Sequence[float], usage: Usage) -> Reply:
    """The reply of `expected`: its most likely label, the lower one of two equal ones."""
    best = max(range(len(logprobs)), key=logprobs.__getitem__)
    return Reply(
        text=decoding.labels[best], is_complete=True, label_logprobs=tuple(logprobs), usage=usage
    )


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

    @property
    def tokenizer(self) -> ChatTokenizer | None:
        """Turns prompts into the token ids this judge reads; None: it reads the texts."""

    @property
    def is_on_cpu(self) -> bool:
        """Whether generation takes the processor's cores; known once the model is loaded."""

    def check(self, decoding: Decoding) -> None:
        """Refuse a way of answering that this judge cannot do; nothing is loaded.

        Raises:
            JudgeUnavailableError: What it cannot do, and what it can.
        """

    def start(self) -> None:
        """Load the model now rather than with the first reply.

        In the main thread this can be interrupted; a large model takes minutes.

        Raises:
            JudgeUnavailableError: The model or its engine cannot be loaded.
        """

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        decoding: Decoding,
        on_progress: ProgressHook,
        sessions: Sequence[str] = (),
    ) -> list[Reply]:
        """Replies in the order of the prompts. Safe to call from any thread.

        ``sessions`` names for each prompt what it shares its beginning with, so that a router can
        send those to one server.

        An exception in mid-generation, also one raised by ``on_progress``, discards the engine;
        the next call starts a fresh one.
        """

    def close(self) -> None:
        """Release the engine's memory and processes."""


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


def encode_prompts(
    judge: Judge, texts: Iterable[str], *, decoding: Decoding
) -> Iterator[Prompt | None]:
    """What a judge reads for each text; None where that is longer than its context has room for.

    A judge without tokenizer here says so itself, in its reply.
    """
    if judge.tokenizer is None:
        yield from texts
        return
    limit = judge.identity.max_model_len - decoding.max_new_tokens
    for token_ids in judge.tokenizer.encode_each(texts):
        yield token_ids if len(token_ids) <= limit else None


def ask_judge(
    judge: Judge,
    prompts: Sequence[Prompt | None],
    *,
    decoding: Decoding,
    on_progress: ProgressHook,
    sessions: Sequence[str] = (),
) -> list[Reply | None]:
    """A judge's reply to each prompt; None stands for a prompt that is not asked, and its reply."""
    asked = [(place, prompt) for place, prompt in enumerate(prompts) if prompt is not None]
    found: list[Reply | None] = [None] * len(prompts)
    if asked:
        replies = judge.reply(
            [prompt for _, prompt in asked],
            decoding=decoding,
            on_progress=on_progress,
            sessions=[sessions[place] for place, _ in asked] if sessions else (),
        )
        for (place, _), reply in zip(asked, replies, strict=True):
            found[place] = reply
    return found
