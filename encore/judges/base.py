"""The interface of judges: prompts in, replies out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from encore.core.chat_tokenizer import ChatTokenizer
from encore.judges.judge_options import Decode

#: Receives the number of finished replies: 0 before an engine starts and when the generation
#: begins, then at least once per engine step that finishes a reply. It may raise to interrupt.
ProgressHook = Callable[[int], None]

#: Token ids of the whole text that a judge reads, or the user message as text if the judge has no
#: tokenizer on this machine.
Prompt = Sequence[int] | str


#: Tokens to keep free for the mark that closes a judge's thinking, and the blank line after it.
_MARK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Way in which a judge answers.

    Attributes:
        kind: ``text`` is greedy text, ``choice`` is greedy among ``labels``, ``expected`` is one
            token with the log-probability of each label.
        max_reply_tokens: Largest number of tokens in a reply of kind text or choice.
        labels: Possible answers for choice and expected, the lowest first.
        thinking_marks: Marks around the judge's thinking, which is no part of its answer; None
            if a reply is the answer.
        num_scores: Number of scores in a reply that is a JSON object with the keys 1, 2 and so on;
            None for a reply that is one answer.
        questions: Kind of the questions to a decision model: a predicate is true (the second label)
            or false, a score has a level for each label. None for a prompt that is a text.
        not_applicable: Answer for a rule that does not apply; for choice and expected it is the
            last of ``labels``, and no part of the scale. None if there is none.
        think_tokens: Largest number of tokens of the thinking before the answer, which are two
            steps (`encore.judges.thinking`); None for one step.
        stop: Text at whose end the reply ends, which then has its token ids; empty for none.
    """

    kind: Decode = "text"
    max_reply_tokens: int
    labels: tuple[str, ...] = ()
    thinking_marks: tuple[str, str] | None = None
    num_scores: int | None = None
    questions: Literal["predicate", "score"] | None = None
    not_applicable: str | None = None
    think_tokens: int | None = None
    stop: str = ""

    @property
    def scale(self) -> tuple[str, ...]:
        """Return the labels that stand for ratings, the lowest first."""
        return tuple(label for label in self.labels if label != self.not_applicable)

    @property
    def max_answer_tokens(self) -> int:
        """Largest number of tokens of the answer alone, in the step that asks for it."""
        return 1 if self.kind == "expected" else self.max_reply_tokens

    @property
    def max_thinking_tokens(self) -> int:
        """Largest number of tokens of the thinking, with its closing mark."""
        return 0 if self.think_tokens is None else self.think_tokens + _MARK_TOKENS

    @property
    def max_new_tokens(self) -> int:
        """Number of tokens of the context to keep free for the thinking and the answer."""
        return self.max_thinking_tokens + self.max_answer_tokens

    def most_likely(self, logprobs: Sequence[float]) -> int:
        """Return the position of the most likely label.

        Of equal ones it is the lower; a predicate is true from 0.5 on.
        """
        step = -1 if self.questions == "predicate" else 1
        return max(range(len(logprobs))[::step], key=logprobs.__getitem__)  # the first of equals

    @property
    def score_keys(self) -> tuple[str, ...]:
        """Return the keys of a reply that is an object of scores."""
        return tuple(str(number + 1) for number in range(self.num_scores or 0))

    @property
    def scores_pattern(self) -> str:
        """Return the regular expression of an object of scores whose values are labels."""
        labels = "|".join(map(re.escape, self.labels))
        return r"\{" + ", ".join(f'"{key}": "({labels})"' for key in self.score_keys) + r"\}"

    @property
    def scores_schema(self) -> dict[str, Any]:
        """Return the JSON schema of an object of scores whose values are labels."""
        label = {"type": "string", "enum": list(self.labels)}
        return {
            "type": "object",
            "properties": dict.fromkeys(self.score_keys, label),
            "required": list(self.score_keys),
            "additionalProperties": False,
        }


class Usage(NamedTuple):
    """Tokens of one reply.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Tokens of the prompt that were not computed again.
        output_tokens: Tokens of the reply, with the judge's thinking.
        thinking_tokens: Tokens of the thinking, if they are counted.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0


NO_USAGE = Usage()


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Return the sum of some token counts."""
    return Usage(*map(sum, zip(NO_USAGE, *usages, strict=True)))


#: Reason of a null whose prompt failed although the server answers other prompts.
SERVER_ERROR = "server_error"
#: Reason of a null whose prompt was answered, and paid for, in a form that cannot be read.
UNREADABLE_ANSWER = "unreadable_answer"

#: Remarks on a reply that are counted and said: the server gave no token counts, or impossible
#: ones; it did not say, or in an unknown word, why the reply ended; the text had characters that no
#: file can hold.
USAGE_ESTIMATED, END_UNKNOWN, TEXT_MENDED = "usage_estimated", "end_unknown", "text_mended"


def storable_text(text: str) -> str:
    """Return a text that files can hold: U+FFFD replaces null characters and lone surrogates.

    >>> storable_text("0.31 " + chr(0xD83D)) == "0.31 " + chr(0xFFFD)
    True
    """
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\0", "\ufffd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Raw reply of a judge.

    Attributes:
        text: Text of the reply; for decoding ``expected`` the most likely label.
        is_complete: False if the token limit cut the reply off.
        null_reason: Reason why the judge gave no answer; None if it answered.
        label_logprobs: Natural logarithms of the labels' probabilities, for decoding ``expected``.
        answers: Reply of a decision model to each question of the prompt, in their order.
        usage: Tokens of prompt and reply, and of answers to the prompt before it that could not be
            read. Like the fields after it, it is not compared: equal replies may differ in it.
        num_calls: Number of answers that the usage counts.
        answered_by: Name of the model that the server says has answered; empty if it says none.
        remarks: Remarks to count, such as `USAGE_ESTIMATED`; a space separates an unknown word.
        token_ids: What the judge wrote, for decodings with a ``stop`` alone.
    """

    text: str
    is_complete: bool
    null_reason: str | None = None
    label_logprobs: tuple[float, ...] | None = None
    answers: tuple[Reply, ...] = ()
    usage: Usage = field(default=NO_USAGE, compare=False)
    num_calls: int = field(default=1, compare=False)
    answered_by: str = field(default="", compare=False)
    remarks: tuple[str, ...] = field(default=(), compare=False)
    token_ids: tuple[int, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Make the text storable, whatever judge or file it comes from."""
        text = storable_text(self.text)
        if text != self.text:
            object.__setattr__(self, "text", text)
            object.__setattr__(self, "remarks", (*self.remarks, TEXT_MENDED))


def label_reply(
    decoding: Decoding, logprobs: Sequence[float], usage: Usage, **fields: Any
) -> Reply:
    """Return a reply of decoding ``expected``: the most likely label (`Decoding.most_likely`).

    Args:
        decoding: Way in which the judge answers.
        logprobs: Log-probability of each label.
        usage: Tokens of prompt and reply.
        **fields: Further fields of the reply.
    """
    return Reply(
        text=decoding.labels[decoding.most_likely(logprobs)],
        is_complete=True,
        label_logprobs=tuple(logprobs),
        usage=usage,
        **fields,
    )


#: Receives each reply as it arrives, with the position of its prompt.
ReplyHook = Callable[[int, Reply], None]


def ignore_reply(_index: int, _reply: Reply, /) -> None:
    """Do nothing: the reply is returned at the end of the call."""


def prompt_digest(prompt: Prompt) -> str:
    """Return the SHA-256 of a prompt's text, or of its token ids, in hex."""
    text = prompt if isinstance(prompt, str) else str(list(prompt))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeIdentity:
    """Everything about a judge that can change a reply; part of the run key.

    Attributes:
        backend: Name of the backend, e.g. ``vllm``.
        name: Hub id, or name of the folder; never a path.
        revision: Hub commit, or digest of the folder's files.
        dtype: Number format of the loaded weights.
        chat_template_sha256: Digest of the chat template; empty if it is on a server.
        frozen_date: Date that the chat template shows to the judge.
        max_model_len: Context length in tokens; 0 if unknown.
        engine_args: Engine arguments that can change a reply.
    """

    backend: str
    name: str
    revision: str
    dtype: str
    chat_template_sha256: str
    frozen_date: str
    max_model_len: int
    engine_args: Mapping[str, Any]


class AskedJudge(Protocol):
    """The one method by which prompts are asked, of a judge or of a wrapper around one."""

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
        """Return the replies in the order of the prompts. Any thread may call it.

        An exception during the generation, also one raised by ``on_progress``, discards the
        engine; the next call starts a new one.

        Args:
            prompts: Prompts to reply to.
            decoding: Way in which the judge answers.
            on_progress: Receives the number of finished replies.
            on_reply: Receives each reply as it arrives, also before an exception, in the thread
                of the caller.
            sessions: A name per prompt. Prompts with the same beginning have the same name, so
                that a router can send them to one server. Empty if there are no names.
            num_answered: Number of the caller's prompts that have an answer already. With it, a
                server's judge sets a prompt aside that keeps failing: its reply has the reason
                `SERVER_ERROR`. None: such a prompt is an error.
        """


class Judge(AskedJudge, Protocol):
    """Judge: prompts in, replies out. The model is loaded by `start` or the first `reply`."""

    @property
    def identity(self) -> JudgeIdentity:
        """Part of the run key. It needs the tokenizer and the config, not the weights."""

    @property
    def tokenizer(self) -> ChatTokenizer | None:
        """Tokenizer of the judge's prompts; None if the judge reads texts."""

    @property
    def is_on_cpu(self) -> bool:
        """True if generation runs on the processor's cores; known once the model is loaded."""

    @property
    def is_remote(self) -> bool:
        """True if another machine replies, perhaps for money: a check of the judge asks it."""

    @property
    def num_engines(self) -> int:
        """Number of engines that reply at the same time."""

    @property
    def wait_seconds(self) -> float:
        """Time that this judge has waited for a server that was away. It only grows."""

    def check(self, decoding: Decoding) -> None:
        """Refuse a decoding that this judge does not support. No weights are loaded.

        Raises:
            JudgeUnavailableError: It is not supported; the message says what is.
        """

    def start(self) -> None:
        """Load the model now rather than with the first reply; a large model takes minutes.

        It can be interrupted in the main thread.

        Raises:
            JudgeUnavailableError: The model or its engine cannot be loaded.
        """

    def close(self) -> None:
        """Release the engine's memory and processes."""


def encode_prompts(
    judge: Judge, texts: Iterable[str], *, decoding: Decoding
) -> Iterator[Prompt | None]:
    """Yield the prompt of each text; None if it is too long for the judge's context.

    A judge without a tokenizer gets the texts; its server reports those that are too long.
    """
    if judge.tokenizer is None:
        yield from texts
        return
    limit = judge.identity.max_model_len - decoding.max_new_tokens
    for token_ids in judge.tokenizer.encode_each(texts):
        yield token_ids if len(token_ids) <= limit else None


def ask_judge(
    judge: AskedJudge,
    prompts: Sequence[Prompt | None],
    *,
    decoding: Decoding,
    on_progress: ProgressHook,
    sessions: Sequence[str] = (),
    num_answered: int | None = None,
) -> list[Reply | None]:
    """Return a judge's reply to each prompt, and None for each prompt that is None.

    Args:
        judge: The judge to ask, or a wrapper around it.
        prompts: Prompts from `encode_prompts`, None for texts that are too long.
        decoding: Way in which the judge answers.
        on_progress: Receives the number of finished replies.
        sessions: A name per prompt, as for `AskedJudge.reply`.
        num_answered: Number of prompts answered before, as for `AskedJudge.reply`.
    """
    askable = {index: prompt for index, prompt in enumerate(prompts) if prompt is not None}
    replies: list[Reply | None] = [None] * len(prompts)
    if askable:
        answers = judge.reply(
            list(askable.values()),
            decoding=decoding,
            on_progress=on_progress,
            sessions=[sessions[index] for index in askable] if sessions else (),
            num_answered=num_answered,
        )
        for index, reply in zip(askable, answers, strict=True):
            replies[index] = reply
    return replies
