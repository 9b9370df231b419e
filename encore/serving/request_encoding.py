"""Turn requests into token ids: conversations through the template, queries as plain text.

A query of OpenRLHF is the text of the policy's tokens, including special tokens. It is tokenized
with special tokens, so a query that the model's own template rendered has exactly the tokens of
that conversation. A query of another family's template is refused, or read back into messages with
the policy's tokenizer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from encore.data.records import Message
from encore.model.conversation import ConversationTokenizer, EncodedResponse, TemplateRefusalError
from encore.model.layouts import TokenIds
from encore.serving.policy_template import PolicyTemplate
from encore.serving.reward_requests import Conversation, GeneratedConversation, RequestError, Turn

#: Characters of a text that are tokenized per token of the model's maximum length. A token is much
#: shorter, so the text beyond would be cut anyway. Texts of fewer characters than the second number
#: are always tokenized whole.
_CHARACTERS_PER_TOKEN = 32
_MIN_CHARACTERS = 1 << 16
_SHOWN_TURNS = 8
_QUESTION, _ANSWER = "ENCORE-QUESTION-MARKER", "ENCORE-ANSWER-MARKER"
#: Tokens of chat templates, in the forms that the families of models write them.
_CHAT_TOKEN = re.compile(
    r"<\|[A-Za-z_]+\|>|<｜[^｜<>\s]{1,40}｜>|\[/?INST\]|<(?:start|end)_of_turn>|<\|turn>|<turn\|>"
)
#: Tokens that begin a turn. A vocabulary may have them although the model's template does not.
_TURN_TOKENS = ("<|im_start|>", "<|start_header_id|>", "<|user|>", "<|assistant|>")
#: Tokens that other families write before the first turn.
_FIRST_TOKENS = ("", "<s>", "<bos>")


class EncodedText(NamedTuple):
    """A text as the model reads it.

    Attributes:
        token_ids: Token ids, int32.
        num_cut: Number of oldest tokens that were cut to fit the maximum length.
        prompt_digest: Hash of the prompt; all samples of a prompt have the same.
    """

    token_ids: TokenIds
    num_cut: int
    prompt_digest: bytes


class RequestEncoder:
    """Tokenizer of requests for one model. One thread at a time may use it.

    Args:
        tokenizer: Tokenizer of the reward model.
        num_embeddings: Number of rows of the model's embedding table. A tokenizer may have more
            tokens; such a token would end the worker, and on a GPU the whole process.
        policy: Template that rendered the queries. None: they are of the model's own template.
    """

    def __init__(
        self,
        tokenizer: ConversationTokenizer,
        *,
        num_embeddings: int,
        policy: PolicyTemplate | None = None,
    ) -> None:
        hf = tokenizer.hf_tokenizer
        self._tokenizer = tokenizer
        self._num_embeddings = num_embeddings
        self._policy = policy
        self._max_characters = max(_MIN_CHARACTERS, _CHARACTERS_PER_TOKEN * tokenizer.max_length)
        self._end_token, pad = hf.convert_ids_to_tokens(
            [tokenizer.end_token_id, tokenizer.pad_token_id]
        )
        self._begin_tokens = {hf.bos_token, hf.cls_token} - {None}
        self._end_tokens = {self._end_token, hf.eos_token} - {None}
        longest_first = sorted(map(re.escape, {*self._end_tokens, pad}), key=len, reverse=True)
        self._padding_pattern = re.compile(f"({'|'.join(longest_first)})")
        rendered = tokenizer.render([Message(role="user", content=_QUESTION)], _ANSWER)
        head, _, tail = rendered.rpartition(_ANSWER)
        before_prompt, _, before_reply = head.rpartition(_QUESTION)
        self._num_tail = len(tokenizer.encode_rendered([tail])[0].token_ids)
        special = [str(token) for token in hf.added_tokens_decoder.values() if token.special]
        stops = [
            before_reply.rfind(token) + len(token) for token in special if token in before_reply
        ]
        #: Text between a user's turn and the reply, as far as templates of one family agree on it.
        self._reply_header = before_reply[: max(stops)] if stops else before_reply.strip()
        begins = (token for token in self._begin_tokens if before_prompt.startswith(token))
        self._begin = next(begins, "")
        first = before_prompt[len(self._begin) :]
        #: Special token that follows the token that begins a text, or the text that does.
        self._first_header = next(filter(first.startswith, special), first.strip())
        self._vocabulary = {*hf.get_added_vocab()} - {*_TURN_TOKENS}

    def encode(self, text: str | Conversation, index: int) -> EncodedText:
        """Return the token ids of a query or a conversation; errors give its number ``index``.

        Conversations: text in a message that spells a special token is tokenized as plain text.

        Queries: padding at both ends is removed. End tokens are replaced by the one that ends the
        assistant's turn, at which the model was trained to be read. A query without an end token
        (a response cut at its length limit) gets none, as in OpenRLHF's own server. The token that
        begins a text is there once, also if the client left it to the server, as vLLM's clients do.

        If a text is so long that its beginning is not tokenized, ``num_cut`` counts only the tokens
        that were made.

        Raises:
            RequestError: 422 for a query of padding and space alone, for one of another template,
                for turns that the model's template refuses, and for a token without an embedding.
        """
        prompt: str | Sequence[Turn | Message]
        if not isinstance(text, str):
            prompt, response = text.messages, text.response
            if isinstance(text, GeneratedConversation):
                response, _ = self._without_end(self._padding_pattern.split(response))
            encoded = self._encode(prompt, response, index)
        elif self._policy is not None:
            try:
                prompt, response, has_ended = self._policy.parse(text)
            except ValueError as error:
                reason = f"the template of --policy-tokenizer did not render this text: {error}"
                raise _refusal(index, "other_template", reason) from None
            encoded = self._encode(prompt, response, index)
            if not has_ended:
                encoded = encoded._replace(token_ids=encoded.token_ids[: -self._num_tail])
        else:
            [encoded] = self._tokenizer.encode_rendered([self._strip(text, index)])
            prompt = text.rpartition(self._reply_header)[0]
        if (largest := int(encoded.token_ids.max())) >= self._num_embeddings:
            token = self._tokenizer.hf_tokenizer.convert_ids_to_tokens(largest)
            reason = f"token {token!a} (id {largest}) has no embedding"
            raise _refusal(index, "no_embedding", reason)
        if not isinstance(prompt, str):
            prompt = repr([(turn.role, turn.content) for turn in prompt])
        digest = hashlib.sha256(prompt.encode()).digest()
        return EncodedText(encoded.token_ids, encoded.num_cut, digest)

    def _encode(
        self, turns: Sequence[Turn | Message], response: str, index: int
    ) -> EncodedResponse:
        response = response[-self._max_characters :]
        num_free = self._max_characters - len(response)
        prompt: list[Message] = []
        for turn in reversed(turns):
            content = turn.content[max(0, len(turn.content) - num_free) :]
            num_free -= len(content)
            prompt.insert(0, Message(role=turn.role, content=content))
        try:
            return self._tokenizer.encode(prompt, response)
        except TemplateRefusalError as error:  # its message names the model's folder
            roles = " ".join(turn.role for turn in prompt[:_SHOWN_TURNS])
            reason = f"the model's chat template does not take turns of roles {roles}"
            reason += f" ({error.reason}); expected turns that it takes"
            raise _refusal(index, "turns", reason) from None

    def _strip(self, text: str, index: int) -> str:
        """Return the text without padding, with one end token if it had any, in linear time."""
        parts = self._padding_pattern.split(text)  # text, token, text, token, …, text
        start = 0
        while len(parts) > start + 1 and not parts[start]:
            if parts[start + 1] in self._begin_tokens:
                break
            start += 2
        bare, has_ended = self._without_end(parts[start:])
        if (token := self._foreign_token(bare)) is not None:
            reason = f"token {token!a} belongs to another chat template than the model's; start the"
            advice = "server with --policy-tokenizer PATH of the policy, or send messages to /score"
            raise _refusal(index, "other_template", f"{reason} {advice}")
        begin = next((token for token in self._begin_tokens if bare.startswith(token)), "")
        first = len(begin)
        while begin not in {"", *self._end_tokens} and bare.startswith(begin, first):
            first += len(begin)
        if self._first_header and bare.startswith(self._first_header):
            begin = self._begin
        bare = begin + bare[first:][-self._max_characters :]
        if not bare.strip():
            raise _refusal(index, "empty_text", "an empty text")
        return bare + self._end_token if has_ended else bare

    def _without_end(self, parts: list[str]) -> tuple[str, bool]:
        """Join text and tokens without those at the end; return True if an end token was there."""
        has_ended, stop = False, len(parts)
        # Space is removed only after a token; space beside the text belongs to the text.
        while stop > 1 and not parts[stop - 1].strip():
            stop -= 2
            has_ended |= parts[stop] in self._end_tokens
        return "".join(parts[:stop]), has_ended

    def _foreign_token(self, text: str) -> str | None:
        """Return a token that shows that another template rendered the text; None without one.

        In a text that has the model's own header of a reply, such a token is plain text, unless the
        text begins with it.
        """
        for foreign in _CHAT_TOKEN.finditer(text):
            if foreign[0] not in self._vocabulary and foreign[0] not in self._tokenizer.template:
                break
        else:
            return None
        is_first = text[: foreign.start()].strip() in _FIRST_TOKENS
        return None if self._reply_header in text and not is_first else foreign[0]


def _refusal(index: int, kind: str, reason: str) -> RequestError:
    return RequestError(422, kind, f"text {index} (counted from 0): {reason}")
