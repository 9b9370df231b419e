"""Conversations to token ids: frozen template, special tokens, truncation, many at a time.

A chat template is a program, and stock Llama-3.1's prints a date. A reward model must give one
score to one conversation, so the template is frozen before anything is tokenised, and the frozen
text is the one that is saved beside the weights.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from encore.core.chat_tokenizer import FROZEN_DATE
from encore.core.errors import InputError
from encore.core.token_encoder import TokenEncoder
from encore.data.records import Message, PreferencePair

#: What templates ask the day with: a variable the caller may set, a function of the renderer.
_DATE_WORDS = ("date_string", "strftime_now")
_PIN = (
    f"{{%- set date_string = '{FROZEN_DATE}' -%}}"
    f"{{%- macro strftime_now(format) -%}}{FROZEN_DATE}{{%- endmacro -%}}"
)
#: Tokens that exist to pad with, tried where a tokenizer's own choice is an end token or missing.
_PAD_TOKENS = (
    *("<|finetune_right_pad_id|>", "<|reserved_special_token_0|>"),  # Llama 3.1, Llama 3
    *("[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|endoftext|>", "<unk>"),
)
_MARKER = "ENCORE-FRAME-{}-MARKER"
_MARKERS = re.compile(r"ENCORE-FRAME-(\d+)-MARKER")
_RESPONSE = "ENCORE-RESPONSE-MARKER"
_QUESTION = Message(role="user", content="Hi.")
_PROBES = ("", "Yes.", "a {b}\n\nHuman: c", "é ≥ 0.5 \\ \u2028 d", "\n  a  \n")
#: What templates do to a message's text: nothing, trim it (Llama, Gemma), drop newlines before it
#: (Qwen3).
_PUTS: tuple[Callable[[str], str], ...] = (str, str.strip, lambda text: text.lstrip("\n"))


class EncodedResponse(NamedTuple):
    """One response in its conversation, as the model reads it.

    Attributes:
        token_ids: int32; the last one ends the assistant's turn.
        num_prompt: How many come before the response's own first token.
        num_cut: How many of the oldest were cut to fit the maximum length.
    """

    token_ids: NDArray[np.int32]
    num_prompt: int
    num_cut: int


class EncodedPair(NamedTuple):
    """Both responses of a preference pair."""

    chosen: EncodedResponse
    rejected: EncodedResponse


class _Rendered(NamedTuple):
    """A conversation as text: whole, and what stands before the response."""

    prompt: Sequence[Message]
    response: str
    head: str
    text: str


class ConversationTokenizer:
    """A Hugging Face tokenizer with a frozen chat template around whole conversations.

    Attributes:
        hf_tokenizer: With the frozen template and a pad token of its own, as it is saved.
        template: The frozen template's text.
        template_sha256: Of that text.
        pad_token_id: Distinct from every token that ends a turn or a text.
        end_token_id: What every conversation ends with.
        max_length: In tokens.
        is_as_downloaded: Whether conversations are rendered as by the model's own library.

    Args:
        hf_tokenizer: Changed in place: template and pad token.
        max_length: Longer conversations lose their oldest tokens.
        template: Instead of the tokenizer's own.
        num_embeddings: Rows of the model's embedding table, where known: a pad token beyond it
            would make a model that cannot be loaded.
        is_as_downloaded: For a reward model that others trained: the template's text is theirs, and
            so is its end. Many put a line break after ``<|im_end|>``, and their models score that
            token; ours end where the turn does.

    Raises:
        InputError: a tokenizer without a tokenizer.json; a template that does not render, changes
            or drops the response, or ends in no special token; no token to pad with.
    """

    def __init__(
        self,
        hf_tokenizer: Any,
        *,
        max_length: int,
        template: str | None = None,
        num_embeddings: int | None = None,
        is_as_downloaded: bool = False,
    ) -> None:
        self.hf_tokenizer = hf_tokenizer
        self.max_length = max_length
        self.is_as_downloaded = is_as_downloaded
        self._name = str(hf_tokenizer.name_or_path)
        if getattr(hf_tokenizer, "backend_tokenizer", None) is None:
            raise InputError(
                f"tokenizer of {self._name!r}: {type(hf_tokenizer).__name__} has no "
                "tokenizer.json; convert it to a fast tokenizer first"
            )
        freeze = pin_template if is_as_downloaded else freeze_template
        self.template = freeze(template or self._own_template())
        self.template_sha256 = hashlib.sha256(self.template.encode()).hexdigest()
        hf_tokenizer.chat_template = self.template
        self._encoder = TokenEncoder(hf_tokenizer)
        head, tail = self._split([_QUESTION])
        self._put = self._find_put(head, tail)
        self.end_token_id = self._find_end(tail)
        self.pad_token_id = self._choose_pad(num_embeddings)
        self._begin_ids = {hf_tokenizer.bos_token_id, hf_tokenizer.cls_token_id} - {None}

    def render(self, prompt: Sequence[Message], response: str) -> str:
        """The full text the model reads."""
        return self._render(prompt, [response])[0].text

    def encode(self, prompt: Sequence[Message], response: str) -> EncodedResponse:
        """Token ids of one response in its conversation.

        Raises:
            InputError: the template refuses the conversation.
        """
        return self._encode(self._render(prompt, [response]))[0]

    def encode_pairs(self, pairs: Sequence[PreferencePair]) -> list[EncodedPair]:
        """Token ids of both responses of every pair, in one call of the tokenizer.

        The tokenizer keeps about 100 bytes a token until the call ends.

        Raises:
            InputError: the template refuses a pair's conversation; the message names the pair.
        """
        rendered: list[_Rendered] = []
        for pair in pairs:
            try:
                rendered += self._render(pair.prompt, [pair.chosen, pair.rejected])
            except InputError as error:
                raise InputError(f"pair {pair.pair_id}: {error}") from error
        encoded = self._encode(rendered)
        return [EncodedPair(*two) for two in zip(encoded[::2], encoded[1::2], strict=True)]

    def encode_rendered(self, texts: Sequence[str]) -> list[EncodedResponse]:
        """Token ids of texts as `render` makes them; nothing says where their responses begin."""
        return [self._cut(token_ids, 0) for token_ids in self._encoder.encode(texts)]

    def _render(self, prompt: Sequence[Message], responses: Sequence[str]) -> list[_Rendered]:
        """Around each response of one prompt: the template is applied once."""
        head, tail = self._split(prompt)
        return [
            _Rendered(prompt, response, head, head + self._put(response) + tail)
            for response in responses
        ]

    def _encode(self, rendered: Sequence[_Rendered]) -> list[EncodedResponse]:
        texts = [text for part in rendered for text in (part.head, part.text)]
        distinct = list(dict.fromkeys(texts))  # the heads of a pair are one
        ids_of = dict(zip(distinct, self._encoder.encode(distinct), strict=True))
        encoded = []
        for part in rendered:
            contents = [*(message.content for message in part.prompt), part.response]
            if any(map(self._encoder.spells_special, contents)):
                encoded.append(self._cut(*self._encode_as_plain_text(part)))
                continue
            ids, head_ids = ids_of[part.text], ids_of[part.head]
            num_prompt = len(head_ids)
            if ids[:num_prompt] != head_ids:  # a token reaches over the response's beginning
                num_prompt = [a == b for a, b in zip(ids, head_ids, strict=False)].index(False)
            encoded.append(self._cut(ids, num_prompt))
        return encoded

    def _encode_as_plain_text(self, part: _Rendered) -> tuple[list[int], int]:
        """The template's own special tokens stay special; those in messages are spelled out."""
        turns = [*part.prompt, Message(role="assistant", content=part.response)]
        marked = [replace(turn, content=_MARKER.format(place)) for place, turn in enumerate(turns)]
        ids: list[int] = []
        num_prompt = 0
        for index, piece in enumerate(_MARKERS.split(self._apply(marked))):
            is_message = index % 2 == 1
            num_prompt = len(ids) if is_message else num_prompt  # the last one is the response
            text = self._put(turns[int(piece)].content) if is_message else piece
            ids += self._encoder.encode([text], is_plain=is_message)[0]
        return ids, num_prompt

    def _cut(self, ids: list[int], num_prompt: int) -> EncodedResponse:
        num_cut = max(0, len(ids) - self.max_length)
        kept, least_prompt = ids[num_cut:], 0
        if num_cut and ids[0] in self._begin_ids:  # every text of this model begins with it
            kept, least_prompt = [ids[0], *ids[num_cut + 1 :]], 1
        return EncodedResponse(
            token_ids=np.array(kept, dtype=np.int32),
            num_prompt=max(least_prompt, num_prompt - num_cut),
            num_cut=num_cut,
        )

    def _split(self, prompt: Sequence[Message]) -> tuple[str, str]:
        """The template's text before and after a response."""
        text = self._apply([*prompt, Message(role="assistant", content=_RESPONSE)])
        head, found, tail = text.rpartition(_RESPONSE)
        if not found:
            raise self._changed()
        return head, tail

    def _apply(self, messages: Sequence[Message]) -> str:
        try:
            rendered: str = self.hf_tokenizer.apply_chat_template(
                [{"role": message.role, "content": message.content} for message in messages],
                tokenize=False,
            )
        except Exception as error:  # a template is a program
            roles = " ".join(message.role for message in messages)
            raise InputError(
                f"chat template of {self._name!r}: it does not render a conversation of roles "
                f"{roles} ({type(error).__name__}: {error}); give another with chat_template"
            ) from error
        return rendered if self.is_as_downloaded else rendered.rstrip()

    def _find_put(self, head: str, tail: str) -> Callable[[str], str]:
        """How the template puts a response in: as it is, or without the space around it."""
        for put in _PUTS:
            if all(
                self._apply([_QUESTION, Message(role="assistant", content=probe)]).rstrip()
                == (head + put(probe) + tail).rstrip()
                for probe in _PROBES
            ):
                return put
        raise self._changed()

    def _changed(self) -> InputError:
        return InputError(
            f"chat template of {self._name!r}: it changes or drops the response; expected a "
            "template that contains every message as it is (give one with chat_template)"
        )

    def _find_end(self, tail: str) -> int:
        [ids] = self._encoder.encode([tail.rstrip()])
        added = set(self.hf_tokenizer.get_added_vocab().values())
        if not ids or ids[-1] not in added:
            raise InputError(
                f"chat template of {self._name!r}: an assistant's turn ends with {tail[-20:]!r}, "
                "expected a special token such as <|eot_id|>; give a template with chat_template"
            )
        return ids[-1]

    def _choose_pad(self, num_embeddings: int | None) -> int:
        tokenizer = self.hf_tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        ends = (tokenizer.eos_token_id, tokenizer.bos_token_id)
        taken = {self.end_token_id, *ends, tokenizer.cls_token_id, tokenizer.sep_token_id}
        for token in (tokenizer.pad_token, *_PAD_TOKENS):
            token_id = vocabulary.get(token)
            if token_id is None or token_id in taken:
                continue
            if num_embeddings is None or token_id < num_embeddings:
                tokenizer.pad_token = token
                return token_id
        raise InputError(
            f"tokenizer of {self._name!r}: no token to pad with that ends nothing and has an "
            f"embedding (pad token {tokenizer.pad_token!r}); expected one like {_PAD_TOKENS[0]}: "
            "set pad_token in tokenizer_config.json, or resize the model's embeddings"
        )

    def _own_template(self) -> str:
        """The tokenizer's template, or a plain one with its own first and last tokens."""
        tokenizer = self.hf_tokenizer
        own = tokenizer.chat_template
        if isinstance(own, dict):  # several by name
            own = own.get("default")
        if own:
            return str(own)
        end = tokenizer.sep_token or tokenizer.eos_token
        if not end:
            raise InputError(
                f"tokenizer of {self._name!r}: neither a chat template nor a token that ends a "
                "text; give a template with chat_template"
            )
        return plain_template(begin=tokenizer.cls_token or tokenizer.bos_token or "", end=end)


def plain_template(*, begin: str, end: str) -> str:
    """Turns as ``Human: …`` and ``Assistant: …``, separated by blank lines.

    Args:
        begin: The token a text of this backbone begins with ('' for none).
        end: The token it ends with.
    """
    plain = _template_file("plain_chat")
    return plain.replace("'BEGIN'", repr(begin)).replace("'END'", repr(end))


def freeze_template(template: str) -> str:
    """The template if it prints no date, else one that prints none or always the same.

    Llama-3's is replaced by its own format without the knowledge and today dates that its 3.1 and
    later templates print; any other keeps its text, with the day pinned to one date.
    """
    pinned = pin_template(template)
    is_llama_3 = "<|start_header_id|>" in template and "<|eot_id|>" in template
    return _template_file("llama_3_chat") if is_llama_3 and pinned != template else pinned


def pin_template(template: str) -> str:
    """The template as it is, but for the day, which is one date."""
    if template.startswith(_PIN) or not any(word in template for word in _DATE_WORDS):
        return template
    return _PIN + template


def _template_file(name: str) -> str:
    """A chat template that stands beside this file; its line breaks are for people alone."""
    text = Path(__file__).with_name(f"{name}.jinja").read_text(encoding="utf-8")
    return "".join(map(str.strip, text.splitlines()))
