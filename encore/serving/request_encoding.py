"""Requests to token ids: conversations through the template, queries as the text they are.

A query of OpenRLHF is the policy's tokens as text, special ones included. It is read back the same
way, so a query that the model's own template rendered has exactly the tokens of that conversation.
"""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException

from encore.core.errors import InputError
from encore.data.records import Message
from encore.model.conversation import ConversationTokenizer, EncodedResponse
from encore.serving.reward_requests import Conversation, Texts

#: Characters of a text that are tokenized, for each token of the model's maximum length: far more
#: than a token has, so that what is left out would be cut anyway. Texts below the second number are
#: always tokenized whole.
_CHARACTERS_PER_TOKEN = 32
_MIN_CHARACTERS = 1 << 16
_SHOWN_TURNS = 8


class RequestEncoder:
    """A model's tokenizer for requests. One thread at a time may use it.

    Args:
        tokenizer: The model's.
        num_embeddings: Rows of the model's embedding table. A tokenizer may have more tokens than
            that; one of them would end the worker, on a GPU the whole process.
    """

    def __init__(self, tokenizer: ConversationTokenizer, *, num_embeddings: int) -> None:
        hf = tokenizer.hf_tokenizer
        self._tokenizer = tokenizer
        self._num_embeddings = num_embeddings
        self._max_characters = max(_MIN_CHARACTERS, _CHARACTERS_PER_TOKEN * tokenizer.max_length)
        self._end, pad = hf.convert_ids_to_tokens([tokenizer.end_token_id, tokenizer.pad_token_id])
        self._begins = {hf.bos_token, hf.cls_token} - {None}
        self._ends = {self._end, hf.eos_token} - {None}
        longest_first = sorted(map(re.escape, {*self._ends, pad}), key=len, reverse=True)
        self._around_padding = re.compile(f"({'|'.join(longest_first)})")

    def encode(self, texts: Texts, first: int) -> list[EncodedResponse]:
        """Token ids of some queries or conversations, of which the first is number ``first``.

        Of a text so long that its beginning is not tokenized, ``num_cut`` counts only tokens that
        were made.

        Of a query, padding at either side is dropped. Tokens that end it become the one that ends
        the assistant's turn, where the model was trained to be read. A query without any, a
        response that was cut at its length limit, gets none: as OpenRLHF's own server scores it.
        What spells a special token in a conversation's message is plain text.

        Raises:
            HTTPException: 422 for a query of nothing but padding and space, turns that the model's
                template refuses, a token for which the model has no embedding.
        """
        queries, encoded = [], []
        for index, text in enumerate(texts, first):
            if isinstance(text, str):
                queries.append(self._strip(text, index))
            else:
                encoded.append(self._conversation(text, index))
        encoded += self._tokenizer.encode_rendered(queries)
        for index, one in enumerate(encoded, first):
            if (largest := int(one.token_ids.max())) >= self._num_embeddings:
                token = self._tokenizer.hf_tokenizer.convert_ids_to_tokens(largest)
                raise _refusal(index, f"token {token!a} (id {largest}) has no embedding")
        return encoded

    def _conversation(self, conversation: Conversation, index: int) -> EncodedResponse:
        response = conversation.response[-self._max_characters :]
        left = self._max_characters - len(response)
        prompt: list[Message] = []
        for turn in reversed(conversation.messages):
            content = turn.content[max(0, len(turn.content) - left) :]
            left -= len(content)
            prompt.insert(0, Message(role=turn.role, content=content))
        try:
            return self._tokenizer.encode(prompt, response)
        except InputError:  # whose message names the model's folder
            roles = " ".join(turn.role for turn in prompt[:_SHOWN_TURNS])
            reason = f"the model's chat template does not take turns of roles {roles}"
            raise _refusal(index, reason) from None

    def _strip(self, text: str, index: int) -> str:
        """The text between its padding, with one end token if it had any; time is linear."""
        parts = self._around_padding.split(text)  # text, token, text, token, …, text
        has_ended, start, stop = False, 0, len(parts)
        # Space is dropped only together with a token before it: beside the text it is its own.
        while stop > 1 and not parts[stop - 1].strip():
            stop -= 2
            has_ended |= parts[stop] in self._ends
        while start + 1 < stop and not parts[start] and parts[start + 1] not in self._begins:
            start += 2
        bare = "".join(parts[start:stop])
        begin = next((token for token in self._begins if bare.startswith(token)), "")
        bare = begin + bare[len(begin) :][-self._max_characters :]
        if not bare.strip():
            raise _refusal(index, "an empty text")
        return bare + self._end if has_ended else bare


def _refusal(index: int, reason: str) -> HTTPException:
    return HTTPException(422, f"text {index} (counted from 0): {reason}")
