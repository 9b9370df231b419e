"""Requests to token ids: conversations through the template, queries as the text they are.

A query of OpenRLHF is the policy's tokens as text, special ones included. It is read back the same
way, so a query that the model's own template rendered has exactly the tokens of that conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from encore.data.records import Message
from encore.errors import InputError
from encore.model.conversation import ConversationTokenizer
from encore.serving.reward_requests import (
    Conversation,
    Refusal,
    RewardRequest,
    ScoreRequest,
)
from encore.token_encoder import TokenEncoder

#: Texts that are tokenized in one call, so that requests take turns.
TEXTS_AT_ONCE: Final = 8
_SHOWN_TURNS: Final = 8
_SHOWN_CHARACTERS: Final = 80
#: Characters of a text that are tokenized, for each token of the model's maximum length: far more
#: than a token has, so that what is left out would be cut anyway. Texts below the second number are
#: always tokenized whole.
_CHARACTERS_PER_TOKEN: Final = 32
_MIN_CHARACTERS: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedText:
    """One text as the model reads it.

    Attributes:
        token_ids: int32, at most the model's maximum length.
        num_cut: Oldest tokens that were cut to fit it. Of a text so long that its beginning is not
            tokenized at all, those that were.
    """

    token_ids: NDArray[np.int32]
    num_cut: int


class RequestEncoder:
    """A model's tokenizer for requests. One thread at a time may use it.

    Args:
        tokenizer: The model's.
        num_embeddings: Rows of the model's embedding table, where known. A tokenizer may have more
            tokens than that; one of them would end the worker, on a GPU the whole process.
    """

    def __init__(
        self, tokenizer: ConversationTokenizer, *, num_embeddings: int | None = None
    ) -> None:
        hf = tokenizer.hf_tokenizer
        self._tokenizer = tokenizer
        self._num_embeddings = num_embeddings
        self._max_characters = max(_MIN_CHARACTERS, _CHARACTERS_PER_TOKEN * tokenizer.max_length)
        self._encoder = TokenEncoder(hf)
        self._end = str(hf.convert_ids_to_tokens(tokenizer.end_token_id))
        self._begins = tuple({hf.bos_token, hf.cls_token} - {None})
        self._begin_ids = {hf.bos_token_id, hf.cls_token_id} - {None}
        self._ends = {self._end, hf.eos_token} - {None}
        pad = str(hf.convert_ids_to_tokens(tokenizer.pad_token_id))
        self._after = tuple(sorted({*self._ends, pad}))
        self._before = tuple(sorted({*self._ends, pad} - set(self._begins)))

    def encode_queries(self, asked: RewardRequest, start: int = 0) -> list[EncodedText]:
        """Token ids of the next `TEXTS_AT_ONCE` texts of a request; none beyond its end.

        Padding at either side is dropped. Tokens that end the text become the one that ends the
        assistant's turn, where the model was trained to be read. A text without any, a response
        that was cut at its length limit, gets none: as OpenRLHF's own server scores it.

        Raises:
            Refusal: 422 for a text of nothing but padding and space, or with a token for which the
                model has no embedding.
        """
        stripped = [self._strip(text) for text in asked.query[start : start + TEXTS_AT_ONCE]]
        for index, text in enumerate(stripped, start):
            if not text.removesuffix(self._end).strip():
                raise Refusal(422, f"query[{index}]: an empty text, expected prompt and response")
        return [
            self._checked(self._cut(ids), name=f"query[{index}]")
            for index, ids in enumerate(self._encoder.encode(stripped), start)
        ]

    def encode_conversations(self, asked: ScoreRequest, start: int = 0) -> list[EncodedText]:
        """The same of conversations; what spells a special token in a message is plain text.

        Raises:
            Refusal: 422 for turns that the model's template refuses, or a token for which the
                model has no embedding.
        """
        return [
            self._encode_conversation(conversation, name=f"conversations[{index}]")
            for index, conversation in enumerate(
                asked.conversations[start : start + TEXTS_AT_ONCE], start
            )
        ]

    def _encode_conversation(self, conversation: Conversation, *, name: str) -> EncodedText:
        left = self._max_characters
        newest: list[str] = []
        for text in (conversation.response, *(t.content for t in reversed(conversation.messages))):
            newest.append(_newest(text, left))
            left -= len(newest[-1])
        response, *contents = newest
        prompt = tuple(
            Message(role=turn.role, content=content)
            for turn, content in zip(conversation.messages, reversed(contents), strict=True)
        )
        try:
            encoded = self._tokenizer.encode(prompt, response)
        except InputError:  # whose message names the model's folder
            roles = " ".join(turn.role for turn in conversation.messages[:_SHOWN_TURNS])
            raise Refusal(
                422,
                f"{name}: the model's chat template does not take turns of roles {roles} before a "
                "response; expected turns as it was trained on, the last one of the user",
            ) from None
        return self._checked(
            EncodedText(token_ids=encoded.token_ids, num_cut=encoded.num_cut), name=name
        )

    def _checked(self, text: EncodedText, *, name: str) -> EncodedText:
        """The same text, once every token of it is known to have an embedding."""
        largest = int(text.token_ids.max())
        if self._num_embeddings is not None and largest >= self._num_embeddings:
            token = str(self._tokenizer.hf_tokenizer.convert_ids_to_tokens(largest))
            raise Refusal(
                422,
                f"{name}: token {token[:_SHOWN_CHARACTERS]!a} (id {largest}), for which the "
                f"model has no embedding (it has {self._num_embeddings}); expected a text without "
                "it",
            )
        return text

    def _strip(self, text: str) -> str:
        """The text between its padding, with one end token if it had any; time is linear."""
        start = 0
        while token := next((t for t in self._before if text.startswith(t, start)), None):
            start += len(token)
        end = place = len(text)
        has_ended = False
        while place > start:
            if token := next((t for t in self._after if text.endswith(t, 0, place)), None):
                end = place = place - len(token)
                has_ended |= token in self._ends
            elif text[place - 1].isspace():  # dropped only together with a token before it
                place -= 1
            else:
                break
        bare = text[start : max(start, end)]
        begin = next((token for token in self._begins if bare.startswith(token)), "")
        bare = begin + _newest(bare[len(begin) :], self._max_characters)
        return bare + self._end if has_ended else bare

    def _cut(self, ids: Sequence[int]) -> EncodedText:
        """As training cut them: the oldest go, but for the token that every text begins with."""
        num_cut = max(0, len(ids) - self._tokenizer.max_length)
        kept = list(ids[num_cut:])
        if num_cut and ids[0] in self._begin_ids:
            kept = [ids[0], *ids[num_cut + 1 :]]
        return EncodedText(token_ids=np.array(kept, dtype=np.int32), num_cut=num_cut)


def _newest(text: str, num_characters: int) -> str:
    """The last characters of a text, from the beginning of a word on."""
    if len(text) <= num_characters:
        return text
    start = len(text) - num_characters
    space = text.find(" ", start, start + num_characters // 8)
    return text[max(start, space) :]
