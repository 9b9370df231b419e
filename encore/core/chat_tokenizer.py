"""Encode rating prompts for a judge: chat template, frozen date, truncation."""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from encore.core.errors import JudgeUnavailableError
from encore.core.extras import install_command, pip_source
from encore.core.model_files import ModelFiles
from encore.core.token_encoder import TokenEncoder
from encore.core.transformers_loading import loading_errors

#: Some chat templates print today's date. A rating must not depend on the day.
FROZEN_DATE = "26 Jul 2024"

_BATCH_SIZE = 500
#: Labels to propose where the labels of a scale are several tokens.
_PROPOSED_LABELS = tuple("0123456789ABCDEFGHIJ")
_PROBES = ("Score:", "a {b}\n\nHuman: c", "é ≥ 0.5 \\ \u2028 d")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a judge's chat has beside the user's message.

    Attributes:
        system: System message; empty for none.
        template: Text of a chat template in place of the tokenizer's own; None takes that.
        template_args: Arguments of the template, e.g. ``{"enable_thinking": False}``.
    """

    system: str = ""
    template: str | None = None
    template_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keyed(self) -> dict[str, str]:
        """Return what is part of a judge's identity beside the digest of its template."""
        args = json.dumps(dict(self.template_args), sort_keys=True) if self.template_args else ""
        keyed = {"system": self.system, "chat_template_args": args}
        return {name: text for name, text in keyed.items() if text}


@dataclass(frozen=True, slots=True)
class ChatTokenizer:
    """A Hugging Face tokenizer that puts its chat template around one user message.

    The template is rendered once around a marker. The text before and after the marker is the
    frame. It replaces the template only if it gives the template's own output on several probes.

    Attributes:
        hf_tokenizer: The tokenizer of transformers.
        options: System message, template and its arguments.
        template_sha256: SHA-256 of the chat template.
        frame: Text that the template puts before and after a message; None if it does more.
    """

    hf_tokenizer: Any
    options: ChatOptions = ChatOptions()
    template_sha256: str = field(init=False)
    frame: tuple[str, str] | None = field(init=False)
    _encoder: TokenEncoder = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Check that there is a chat template and prepare the frame."""
        if self.options.template is not None:
            self.hf_tokenizer.chat_template = self.options.template
        if not self.hf_tokenizer.chat_template:
            raise JudgeUnavailableError(
                f"judge {self.hf_tokenizer.name_or_path!r}: its tokenizer has no chat template; "
                "use an instruction-tuned model or add a chat_template to tokenizer_config.json"
            )
        digest = hashlib.sha256(str(self.hf_tokenizer.chat_template).encode()).hexdigest()
        object.__setattr__(self, "template_sha256", digest)
        object.__setattr__(self, "frame", self._find_frame())
        object.__setattr__(self, "_encoder", TokenEncoder(self.hf_tokenizer))

    def render(self, prompt: str) -> str:
        """Return the full text that the judge reads for one user message, reply header included."""
        if self.frame is not None and prompt == prompt.strip():  # many templates trim
            return self.frame[0] + prompt + self.frame[1]
        return self._apply_template(prompt)

    def spells_special(self, text: str) -> bool:
        """Return True if a text contains characters that would become a special token."""
        return self._encoder.spells_special(text)

    def encode_text(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of rendered texts. Spelled special tokens become special tokens."""
        return self._encoder.encode(texts)

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each prompt, chat template included.

        Text in a prompt that spells a special token is encoded as plain text: a rated
        conversation cannot end the judge's user turn.
        """
        ids = self._encoder.encode([self.render(prompt) for prompt in prompts])
        for index, prompt in enumerate(prompts):
            if self._encoder.spells_special(prompt):
                ids[index] = self._encode_as_plain_text(prompt)
        return ids

    def encode_each(self, prompts: Iterable[str]) -> Iterator[array[int]]:
        """Yield the token ids of each prompt as an array, which takes 4 bytes a token, not 40."""
        remaining = iter(prompts)
        while batch := list(itertools.islice(remaining, _BATCH_SIZE)):
            yield from (array("I", token_ids) for token_ids in self.encode(batch))

    def label_tokens(self, labels: Sequence[str]) -> tuple[int, ...]:
        """Return the token id of each label as the whole reply.

        Raises:
            JudgeUnavailableError: A label is several tokens after the chat template's reply
                header, or two are one token; the message names labels that work.
        """
        [header] = self._encoder.encode([self.render(_PROBES[0])])
        token_ids = {}
        for label in dict.fromkeys([*labels, *_PROPOSED_LABELS]):
            [ids] = self._encoder.encode([self.render(_PROBES[0]) + label])
            if ids[:-1] == header:
                token_ids[label] = ids[-1]
        split = [label for label in labels if label not in token_ids]
        if split or len({token_ids[label] for label in labels}) < len(labels):
            usable = ",".join(label for label in _PROPOSED_LABELS if label in token_ids)
            raise JudgeUnavailableError(
                f"--scale: judge {self.hf_tokenizer.name_or_path!r} does not write "
                f"{', '.join(map(repr, split or labels))} as one token each, which --decode "
                f"expected needs; labels that work: {usable or 'none of the digits and letters'}"
            )
        return tuple(token_ids[label] for label in labels)

    def cut_left(self, text: str, *, num_tokens: int) -> str:
        """Return the text without (about) its first ``num_tokens`` tokens, cut between tokens."""
        offsets = self.hf_tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        if num_tokens >= len(offsets):
            return ""
        return text[offsets[num_tokens][0] :]

    def _encode_as_plain_text(self, prompt: str) -> list[int]:
        head, tail = self.frame or _split_around(self._apply_template(prompt), prompt)
        [head_ids, tail_ids] = self._encoder.encode([head, tail])
        [content_ids] = self._encoder.encode([prompt], is_plain=True)
        return [*head_ids, *content_ids, *tail_ids]

    def _find_frame(self) -> tuple[str, str] | None:
        marker = "ENCORE-FRAME-MARKER"
        head, tail = _split_around(self._apply_template(marker), marker)
        exact = all(self._apply_template(probe) == head + probe + tail for probe in _PROBES)
        return (head, tail) if exact else None

    def _apply_template(self, prompt: str) -> str:
        frozen: Callable[[str], str] = lambda _format: FROZEN_DATE  # noqa: E731 - one argument
        dates = {"date_string": FROZEN_DATE, "strftime_now": frozen}
        messages = [{"role": "user", "content": prompt}]
        if self.options.system:
            messages.insert(0, {"role": "system", "content": self.options.system})
        try:
            rendered: str = self.hf_tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=True,
                tokenize=False,
                **dates | dict(self.options.template_args),
            )
        except Exception as error:  # a template is a program
            raise JudgeUnavailableError(
                f"judge {self.hf_tokenizer.name_or_path!r}: its chat template does not render one "
                f"user message ({type(error).__name__}: {error}); mend chat_template"
            ) from error
        return rendered


def _split_around(text: str, part: str) -> tuple[str, str]:
    head, separator, tail = text.partition(part)
    if not separator:
        raise JudgeUnavailableError(
            "the judge's chat template changes or drops the user message; ENCORE needs a template "
            "that contains it as it is"
        )
    return head, tail


def load_tokenizer(model: ModelFiles, options: ChatOptions = ChatOptions()) -> ChatTokenizer:
    """Load the tokenizer of a judge with its chat template. No code of the model is run.

    Args:
        model: Files of the tokenizer.
        options: System message, template and its arguments.

    Raises:
        JudgeUnavailableError: transformers is missing, or the model has no tokenizer or no chat
            template.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise JudgeUnavailableError(
            f"a judge needs the package transformers ({error}): {install_command('vllm')}, without "
            f"a GPU {pip_source('judge-cpu')}, for --backend transformers {pip_source('train')}"
        ) from error
    with loading_errors(
        f"judge {model.name!r}: its tokenizer does not load; expected tokenizer.json and "
        "tokenizer_config.json beside the weights",
        JudgeUnavailableError,
    ):
        tokenizer = AutoTokenizer.from_pretrained(
            model.location, revision=model.hub_revision, trust_remote_code=False
        )
    return ChatTokenizer(tokenizer, options)
