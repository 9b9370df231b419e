"""Turn conversations into token ids: frozen chat template, special tokens, truncation.

A chat template is a program, and the one of Llama 3.1 prints today's date. A reward model must
always give a conversation the same score. So the template is frozen before anything is tokenised,
and the frozen text is saved with the weights.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from encore.core.chat_tokenizer import FROZEN_DATE
from encore.core.errors import InputError
from encore.core.token_encoder import TokenEncoder
from encore.data.records import Message, PreferencePair

logger = logging.getLogger(__name__)

#: Names by which templates read the date: a variable of the caller, a function of the renderer.
_DATE_NAMES = ("date_string", "strftime_now")
#: Template code that sets both to one fixed date.
_FIXED_DATE = (
    f"{{%- set date_string = '{FROZEN_DATE}' -%}}"
    f"{{%- macro strftime_now(format) -%}}{FROZEN_DATE}{{%- endmacro -%}}"
)
#: Padding tokens to try, if the tokenizer has none or uses an end token as its padding token.
_PAD_TOKENS = (
    *("<|finetune_right_pad_id|>", "<|reserved_special_token_0|>"),  # Llama 3.1, Llama 3
    *("[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|endoftext|>", "<unk>"),
)
_MARKER = "ENCORE-FRAME-{}-MARKER"
_MARKERS = re.compile(r"ENCORE-FRAME-(\d+)-MARKER")
_RESPONSE = "ENCORE-RESPONSE-MARKER"
_QUESTION = Message(role="user", content="Hi.")
#: Characters at the end of a turn that are looked for in the rendered text.
_END_OF_TURN = 40
#: Most characters of a template's own words in a message.
_MAX_REASON = 200
#: Responses with which a template is tried out.
_TEST_RESPONSES = ("", "Yes.", "a {b}\n\nHuman: c", "é ≥ 0.5 \\ \u2028 d", "\n  a  \n")
#: What a template may do to a message's text: nothing, remove the white space around it (Llama,
#: Gemma), or remove the newlines before it (Qwen3).
_TEXT_CHANGES: tuple[Callable[[str], str], ...] = (str, str.strip, lambda text: text.lstrip("\n"))


class EncodedResponse(NamedTuple):
    """The tokens of a conversation with one response, as the model reads them.

    Attributes:
        token_ids: Token ids, int32. The last token ends the assistant's turn.
        num_prompt: Number of tokens before the response's first token.
        num_cut: Number of oldest tokens that were cut to fit the maximum length.
    """

    token_ids: NDArray[np.int32]
    num_prompt: int
    num_cut: int


class EncodedPair(NamedTuple):
    """The tokens of both responses of a preference pair."""

    chosen: EncodedResponse
    rejected: EncodedResponse


class _Rendered(NamedTuple):
    """A conversation as text: ``text`` is all of it, ``head`` the part before the response."""

    prompt: Sequence[Message]
    response: str
    head: str
    text: str


class TemplateRefusalError(InputError):
    """A chat template does not render a conversation.

    Attributes:
        reason: The template's own words, or what it does with the conversation.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ConversationTokenizer:
    """A Hugging Face tokenizer with a frozen chat template, for whole conversations.

    Attributes:
        hf_tokenizer: The tokenizer as it is saved, with the frozen template and a pad token.
        template: Text of the frozen template.
        template_sha256: SHA-256 of that text.
        name: Name or path of the tokenizer, for messages.
        pad_token_id: Id of the pad token, which ends no turn and no text.
        end_token_id: Id of the token that ends every conversation.
        max_length: Longest conversation in tokens.
        is_as_downloaded: True if conversations are rendered exactly as by the model's own library.

    Args:
        hf_tokenizer: Tokenizer; its template and pad token are changed in place.
        max_length: Longest conversation in tokens; longer ones lose their oldest tokens.
        template: Chat template to use; None uses the tokenizer's.
        num_embeddings: Rows of the model's embedding table, if known. A pad token with a larger id
            would make a model that cannot be loaded.
        is_as_downloaded: True for a reward model that others trained: text after the assistant's
            turn is kept. Many templates put a line break after ``<|im_end|>``, and their models
            score that token. Our models score the end of the turn.

    Raises:
        InputError: The tokenizer has no tokenizer.json or no token to pad with, or the template
            does not render, changes the response, or does not end in a special token.
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
        self.name = str(hf_tokenizer.name_or_path)
        if getattr(hf_tokenizer, "backend_tokenizer", None) is None:
            raise InputError(
                f"tokenizer of {self.name!r}: {type(hf_tokenizer).__name__} has no "
                "tokenizer.json; convert it to a fast tokenizer first"
            )
        freeze = fix_date if is_as_downloaded else freeze_template
        self.template = freeze(template or self._find_template())
        self.template_sha256 = hashlib.sha256(self.template.encode()).hexdigest()
        hf_tokenizer.chat_template = self.template
        self._encoder = TokenEncoder(hf_tokenizer)
        head, tail = self._split([_QUESTION])
        if not is_as_downloaded and self._ends_open(tail):
            head, tail = self._end_with_eos()
        self._change_text = self._find_text_change(head, tail)
        self.end_token_id = self._find_end(tail)
        self.pad_token_id = self._choose_pad(num_embeddings)
        self._begin_ids = {hf_tokenizer.bos_token_id, hf_tokenizer.cls_token_id} - {None}

    def render(self, prompt: Sequence[Message], response: str) -> str:
        """Return the full text that the model reads."""
        return self._render(prompt, [response])[0].text

    def encode(self, prompt: Sequence[Message], response: str) -> EncodedResponse:
        """Return the token ids of a conversation with one response.

        Raises:
            TemplateRefusalError: The template refuses the conversation.
        """
        return self._encode(self._render(prompt, [response]))[0]

    def refusal(self, prompt: Sequence[Message], *responses: str) -> str | None:
        """Return why the template does not render these conversations, in its words, or None."""
        try:
            self._render(prompt, responses)
        except TemplateRefusalError as error:
            return error.reason
        return None

    def leaves_out(self, prompt: Sequence[Message]) -> bool:
        """Return True if a turn of the prompt is not in the rendered text, or not with its end.

        Some templates have no place for a system turn and pass over it. To leave out what an
        assistant thought before it spoke is no loss.

        Raises:
            TemplateRefusalError: The template refuses the prompt.
        """
        head, _ = self._split(prompt)
        texts = (turn.content.rpartition("</think>")[2].strip() for turn in prompt)
        num_by_end = Counter(text[-_END_OF_TURN:] for text in texts)
        return any(head.count(end) < num for end, num in num_by_end.items())

    def encode_pairs(self, pairs: Sequence[PreferencePair]) -> list[EncodedPair]:
        """Return the token ids of both responses of every pair, by one call of the tokenizer.

        The tokenizer needs about 100 bytes a token until the call ends.

        Raises:
            TemplateRefusalError: The template refuses a pair's conversation; the message names the
                pair.
        """
        rendered: list[_Rendered] = []
        for pair in pairs:
            try:
                rendered += self._render(pair.prompt, [pair.chosen, pair.rejected])
            except TemplateRefusalError as error:
                message = f"pair {pair.pair_id}: {error}"
                raise TemplateRefusalError(message, reason=error.reason) from error
        encoded = self._encode(rendered)
        return list(map(EncodedPair, encoded[::2], encoded[1::2]))

    def encode_rendered(self, texts: Sequence[str]) -> list[EncodedResponse]:
        """Return the token ids of rendered texts (`render`). Their ``num_prompt`` is 0: unknown."""
        return [self._cut(token_ids, 0) for token_ids in self._encoder.encode(texts)]

    def _render(self, prompt: Sequence[Message], responses: Sequence[str]) -> list[_Rendered]:
        """Render one prompt with each of its responses, applying the template once."""
        head, tail = self._split(prompt)
        for response in responses:
            if not response.strip():  # a template may refuse a turn without text
                self._apply([*prompt, Message(role="assistant", content=response)])
        return [
            _Rendered(prompt, response, head, head + self._change_text(response) + tail)
            for response in responses
        ]

    def _encode(self, rendered: Sequence[_Rendered]) -> list[EncodedResponse]:
        # Both conversations of a pair have the same head: it is encoded once.
        texts = dict.fromkeys(
            text for conversation in rendered for text in (conversation.head, conversation.text)
        )
        ids_of = dict(zip(texts, self._encoder.encode(list(texts)), strict=True))
        encoded = []
        for conversation in rendered:
            contents = [*(turn.content for turn in conversation.prompt), conversation.response]
            if any(map(self._encoder.spells_special, contents)):
                encoded.append(self._cut(*self._encode_as_plain_text(conversation)))
                continue
            ids, head_ids = ids_of[conversation.text], ids_of[conversation.head]
            num_prompt = len(head_ids)
            if ids[:num_prompt] != head_ids:  # one token spans the end of the head
                num_prompt = [a == b for a, b in zip(ids, head_ids, strict=False)].index(False)
            encoded.append(self._cut(ids, num_prompt))
        return encoded

    def _encode_as_plain_text(self, conversation: _Rendered) -> tuple[list[int], int]:
        """Encode a conversation whose messages contain the text of special tokens.

        Special tokens of the template stay special. In messages they are encoded as plain text.

        Returns:
            The token ids, and how many of them come before the response.
        """
        turns = [*conversation.prompt, Message(role="assistant", content=conversation.response)]
        marked = [replace(turn, content=_MARKER.format(index)) for index, turn in enumerate(turns)]
        ids: list[int] = []
        num_prompt = 0
        # Text of the template and indices of messages alternate.
        for piece_index, piece in enumerate(_MARKERS.split(self._apply(marked))):
            is_message = piece_index % 2 == 1
            num_prompt = len(ids) if is_message else num_prompt  # the last message is the response
            text = self._change_text(turns[int(piece)].content) if is_message else piece
            ids += self._encoder.encode([text], is_plain=is_message)[0]
        return ids, num_prompt

    def _cut(self, ids: list[int], num_prompt: int) -> EncodedResponse:
        """Cut the oldest tokens beyond the maximum length, but keep the begin-of-text token."""
        num_cut = max(0, len(ids) - self.max_length)
        kept_ids, min_prompt = ids[num_cut:], 0
        if num_cut and ids[0] in self._begin_ids:
            kept_ids, min_prompt = [ids[0], *ids[num_cut + 1 :]], 1
        return EncodedResponse(
            token_ids=np.array(kept_ids, dtype=np.int32),
            num_prompt=max(min_prompt, num_prompt - num_cut),
            num_cut=num_cut,
        )

    def _split(self, prompt: Sequence[Message]) -> tuple[str, str]:
        """Return the rendered text before and after a response to this prompt."""
        text = self._apply([*prompt, Message(role="assistant", content=_RESPONSE)])
        head, marker, tail = text.rpartition(_RESPONSE)
        if not marker:
            raise TemplateRefusalError(
                str(self._changed_response_error()), reason="it changes or drops the response"
            )
        return head, tail

    def _apply(self, messages: Sequence[Message]) -> str:
        """Render messages with the template."""
        try:
            rendered: str = self.hf_tokenizer.apply_chat_template(
                [{"role": message.role, "content": message.content} for message in messages],
                tokenize=False,
            )
        except Exception as error:  # a template is a program
            roles = " ".join(message.role for message in messages)
            reason = " ".join(str(error).split())[:_MAX_REASON] or type(error).__name__
            raise TemplateRefusalError(
                f"chat template of {self.name!r}: it does not render a conversation of roles "
                f"{roles} ({type(error).__name__}: {reason}); expected turns that it takes, or a "
                "template that takes these (`encore train --chat-template FILE`)",
                reason=reason,
            ) from error
        return rendered if self.is_as_downloaded else rendered.rstrip()

    def _find_text_change(self, head: str, tail: str) -> Callable[[str], str]:
        """Return the function of `_TEXT_CHANGES` that the template applies to a response."""
        rendered = {}
        for response in _TEST_RESPONSES:
            # A template that refuses an empty turn has refused it for good: see `_render`.
            with suppress(TemplateRefusalError) if not response else nullcontext():
                turns = [_QUESTION, Message(role="assistant", content=response)]
                rendered[response] = self._apply(turns)
        for change_text in _TEXT_CHANGES:
            if all(
                text.rstrip() == (head + change_text(response) + tail).rstrip()
                for response, text in rendered.items()
            ):
                return change_text
        raise self._changed_response_error()

    def _changed_response_error(self) -> InputError:
        return InputError(
            f"chat template of {self.name!r}: it changes or drops the response; expected a "
            "template that contains every message as it is (give one with --chat-template)"
        )

    def _ends_open(self, tail: str) -> bool:
        """Return True if no special token ends an assistant's turn."""
        [ids] = self._encoder.encode([tail.rstrip()])
        return not ids or ids[-1] not in set(self.hf_tokenizer.get_added_vocab().values())

    def _end_with_eos(self) -> tuple[str, str]:
        """Have the template end a conversation with the end-of-text token, and split it again.

        The model scores the end of the last turn, so that end needs a token of its own.
        """
        end = self.hf_tokenizer.eos_token
        if end:
            self.template += "{%- if not add_generation_prompt -%}{{ eos_token }}{%- endif -%}"
            self.template_sha256 = hashlib.sha256(self.template.encode()).hexdigest()
            self.hf_tokenizer.chat_template = self.template
            logger.warning(
                "chat template of %r: no special token ends an assistant's turn; %s is put at the "
                "end of each conversation, in the saved template too",
                self.name,
                end,
            )
        return self._split([_QUESTION])

    def _find_end(self, tail: str) -> int:
        """Return the id of the special token that ends an assistant's turn."""
        [ids] = self._encoder.encode([tail.rstrip()])
        if self._ends_open(tail):
            raise InputError(
                f"chat template of {self.name!r}: an assistant's turn ends with {tail[-20:]!r}, "
                "expected a special token such as <|eot_id|>; give a template with --chat-template"
            )
        return ids[-1]

    def _choose_pad(self, num_embeddings: int | None) -> int:
        """Set a pad token that begins and ends no text, and return its id."""
        tokenizer = self.hf_tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        boundary_ids = {
            *(self.end_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id),
            *(tokenizer.cls_token_id, tokenizer.sep_token_id),
        }
        for token in (tokenizer.pad_token, *_PAD_TOKENS):
            token_id = vocabulary.get(token)
            if token_id is None or token_id in boundary_ids:
                continue
            if num_embeddings is None or token_id < num_embeddings:
                tokenizer.pad_token = token
                return token_id
        raise InputError(
            f"tokenizer of {self.name!r}: no token to pad with that ends nothing and has an "
            f"embedding (pad token {tokenizer.pad_token!r}); expected one like {_PAD_TOKENS[0]}: "
            "set pad_token in tokenizer_config.json, or resize the model's embeddings"
        )

    def _find_template(self) -> str:
        """Return the tokenizer's chat template, or a plain one with its first and last tokens.

        The plain one has turns ``Human: …`` and ``Assistant: …`` with blank lines between them.
        """
        tokenizer = self.hf_tokenizer
        template = tokenizer.chat_template
        if isinstance(template, dict):  # several templates by name
            template = template.get("default")
        if template:
            return str(template)
        end = tokenizer.sep_token or tokenizer.eos_token
        if not end:
            raise InputError(
                f"tokenizer of {self.name!r}: neither a chat template nor a token that ends a "
                "text; give a template with --chat-template"
            )
        begin = tokenizer.cls_token or tokenizer.bos_token or ""
        template = _read_template("plain_chat")
        return template.replace("'BEGIN'", repr(begin)).replace("'END'", repr(end))


def freeze_template(template: str) -> str:
    """Return a template that does not depend on today's date.

    A template that prints no date is returned as it is. A dated template of Llama 3 (3.1 and later
    print the day and the knowledge date) is replaced by the format without dates. Any other
    template is kept, with the day fixed to one date.
    """
    fixed = fix_date(template)
    is_llama_3 = "<|start_header_id|>" in template and "<|eot_id|>" in template
    return _read_template("llama_3_chat") if is_llama_3 and fixed != template else fixed


def fix_date(template: str) -> str:
    """Return the template with today's date replaced by one fixed date, if it prints the date."""
    if template.startswith(_FIXED_DATE) or not any(name in template for name in _DATE_NAMES):
        return template
    return _FIXED_DATE + template


def _read_template(name: str) -> str:
    """Read a chat template from this folder, without its line breaks and indentation."""
    text = Path(__file__).with_name(f"{name}.jinja").read_text(encoding="utf-8")
    return "".join(map(str.strip, text.splitlines()))
