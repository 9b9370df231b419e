"""Requests to token ids: conversations through the template, queries as the text they are.

A query of OpenRLHF is what the policy's tokenizer makes of its own tokens, special ones included.
It is read back the same way: what spells a special token is one. So a query that the model's own
template rendered has exactly the tokens of that conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError
from encore.model.conversation import ConversationTokenizer
from encore.serving.refusal import Refusal
from encore.serving.requests import Conversation
from encore.token_encoder import TokenEncoder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedText:
    """One text as the model reads it.

    Attributes:
        token_ids: int32; the last one ends the assistant's turn.
        num_cut: How many of the oldest were cut to fit the maximum length.
    """

    token_ids: NDArray[np.int32]
    num_cut: int


class RequestEncoder:
    """A model's tokenizer for what clients send. One thread at a time may use it.

    Args:
        tokenizer: The model's.
        num_embeddings: Rows of the model's embedding table, where known. A tokenizer may have more
            tokens than that, and one of them would end the worker, on a GPU the whole process.
    """

    def __init__(
        self, tokenizer: ConversationTokenizer, *, num_embeddings: int | None = None
    ) -> None:
        hf_tokenizer = tokenizer.hf_tokenizer
        self._tokenizer = tokenizer
        self._num_embeddings = num_embeddings
        self._encoder = TokenEncoder(hf_tokenizer)
        self._end = str(hf_tokenizer.convert_ids_to_tokens(tokenizer.end_token_id))
        pad = str(hf_tokenizer.convert_ids_to_tokens(tokenizer.pad_token_id))
        begins = {hf_tokenizer.bos_token, hf_tokenizer.cls_token}
        self._begin_ids = {hf_tokenizer.bos_token_id, hf_tokenizer.cls_token_id} - {None}
        ends = {self._end, hf_tokenizer.eos_token, pad} - {None}
        self._after = tuple(sorted(ends))
        self._before = tuple(sorted(ends - begins))

    def encode_queries(self, texts: Sequence[str]) -> list[EncodedText]:
        """Token ids of rendered texts.

        Padding at either side goes, as a client that decodes whole batches sends it, and so does
        what ends the text; one token that ends the assistant's turn is put there, where the model
        was trained to be read. A response that was cut off before its end is thus scored as if it
        had ended.

        Raises:
            Refusal: 422 for a text that is nothing but padding and space, or has a token for which
                the model has no embedding.
        """
        bare = [self._strip(text) for text in texts]
        for index, text in enumerate(bare):
            if not text.strip():
                raise Refusal(422, f"query[{index}]: an empty text, expected prompt and response")
        encoded = self._encoder.encode([text + self._end for text in bare])
        return [
            self._known(self._cut(ids), name=f"query[{index}]") for index, ids in enumerate(encoded)
        ]

    def encode_conversations(self, conversations: Sequence[Conversation]) -> list[EncodedText]:
        """Token ids of conversations; what spells a special token in a message is plain text.

        Raises:
            Refusal: 422 for turns that the model's template does not take, or a token for which
                the model has no embedding.
        """
        return [
            self._encode_conversation(index, conversation)
            for index, conversation in enumerate(conversations)
        ]

    def _encode_conversation(self, index: int, conversation: Conversation) -> EncodedText:
        try:
            encoded = self._tokenizer.encode(conversation.prompt, conversation.response)
        except InputError:  # whose message names the model's folder
            roles = " ".join(turn.role for turn in conversation.messages[:_SHOWN_TURNS])
            raise Refusal(
                422,
                f"conversations[{index}]: the model's chat template does not take turns of roles "
                f"{roles} before a response; expected turns as it was trained on, the last one of "
                "the user",
            ) from None
        text = EncodedText(token_ids=encoded.token_ids, num_cut=encoded.num_cut)
        return self._known(text, name=f"conversations[{index}]")

    def _known(self, text: EncodedText, *, name: str) -> EncodedText:
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
        """The text between its padding; every step moves on, however long the padding is."""
        start = 0
        while token := _at_start(text, start, self._before):
            start += len(token)
        end = place = len(text)
        while place > start:
            if token := _at_end(text, place, self._after):
                end = place = place - len(token)
            elif text[place - 1].isspace():  # goes only together with a token before it
                place -= 1
            else:
                break
        return text[start : max(start, end)]

    def _cut(self, ids: Sequence[int]) -> EncodedText:
        """As training cut them: the oldest go, but for the token that every text begins with."""
        num_cut = max(0, len(ids) - self._tokenizer.max_length)
        kept = list(ids[num_cut:])
        if num_cut and ids[0] in self._begin_ids:
            kept = [ids[0], *ids[num_cut + 1 :]]
        return EncodedText(token_ids=np.array(kept, dtype=np.int32), num_cut=num_cut)


_SHOWN_TURNS = 8
_SHOWN_CHARACTERS = 80


def _at_start(text: str, place: int, tokens: Sequence[str]) -> str | None:
    return next((token for token in tokens if text.startswith(token, place)), None)


def _at_end(text: str, place: int, tokens: Sequence[str]) -> str | None:
    return next((token for token in tokens if text.endswith(token, 0, place)), None)
