"""Prompts that are tokenised in parts have the tokens of the whole, whatever the tokenizer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from encore.core.chat_tokenizer import ChatTokenizer
from encore.data.rule_sets import load_rule_set
from encore.judges.segments import Parts, SegmentEncoder
from encore.rating.prompts import RATING_TEMPLATE, RatingPrompt
from tests.worlds.judges import CHAT_TEMPLATE, SPECIAL_TOKENS, byte_tokenizer
from tests.worlds.tokenizers import trained

#: How Llama 3 cuts text before it merges bytes.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RULES = load_rule_set("encore-10").rules[:3]
LAYOUTS = ("paper", "conversation-first", "demand-first")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
SPLIT = pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated")
PRE_TOKENIZERS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama-3": pre_tokenizers.Sequence([SPLIT, BYTES]),
    "metaspace": pre_tokenizers.Metaspace(),
}


def chat_tokenizer(pre_tokenizer: Any) -> ChatTokenizer:
    """Return a tokenizer that cuts text as a family does and merges line feeds where it can."""
    texts = [RATING_TEMPLATE, "a.\n\nB\n\n\nC \n\n D\n", *(rule.rating_rule for rule in RULES)]
    tokenizer = trained(texts * 5, SPECIAL_TOKENS, pre_tokenizer, vocab_size=800)
    tokenizer.bos_token, tokenizer.chat_template = "<bos>", CHAT_TEMPLATE
    return ChatTokenizer(tokenizer)


ENCODERS = {
    **{kind: SegmentEncoder(chat_tokenizer(cutter)) for kind, cutter in PRE_TOKENIZERS.items()},
    "bytes": SegmentEncoder(ChatTokenizer(byte_tokenizer())),
}


def ids_of(encoder: SegmentEncoder, prompts: Sequence[Parts]) -> list[list[int]]:
    """Return the token ids of prompts that are encoded in parts."""
    return [list(token_ids) for token_ids in encoder.encode_each(prompts)]


def ids_of_texts(encoder: SegmentEncoder, prompts: Sequence[Parts]) -> list[list[int]]:
    """Return the token ids of the same prompts, each encoded as one text."""
    return encoder.tokenizer.encode(list(map("".join, prompts)))


texts = st.text(alphabet=st.sampled_from("a B.0\n\r\t é文<user>"), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, min_size=2, max_size=4), st.sampled_from(LAYOUTS))
def test_prompts_encoded_in_parts_have_the_tokens_of_the_whole_text(responses, layout):
    prompt = RatingPrompt(layout=layout)
    parts = [
        prompt.parts(f"Human: Why?\n\nAssistant: {response}", rating_rule=rule.rating_rule)
        for response in responses
        for rule in RULES
    ]
    for encoder in ENCODERS.values():
        assert ids_of(encoder, parts) == ids_of_texts(encoder, parts)


def test_a_tokenizer_that_adds_a_space_encodes_whole_prompts():
    assert ENCODERS["metaspace"].num_moved is None
    assert ENCODERS["llama-3"].num_moved == 0
    assert ENCODERS["bytes"].num_moved == 0


def test_prompts_are_encoded_whole_after_a_cut_changed_their_tokens(monkeypatch):
    encoder = SegmentEncoder(ChatTokenizer(byte_tokenizer()))
    monkeypatch.setattr(type(encoder), "_joined", lambda *_: [[1], [2]])
    parts = [("a\n\n", "b"), ("c\n\n", "d")]
    assert ids_of(encoder, parts) == ids_of_texts(encoder, parts)
    assert encoder.num_moved is None


@pytest.mark.parametrize("kind", ["llama-3", "bytes"])
@pytest.mark.parametrize(
    "part_that_spells",
    [("Assistant: a <user> b\n\n", "Rate it."), ("Assistant: a\n\n", "Rate <user> it.")],
    ids=["first part", "second part"],
)
def test_a_part_that_spells_a_special_token_stays_text(kind, part_that_spells):
    """A rated response cannot open a turn, as in `ChatTokenizer.encode`."""
    encoder = SegmentEncoder(ENCODERS[kind].tokenizer)
    special_id = encoder.tokenizer.hf_tokenizer.convert_tokens_to_ids("<user>")
    plain = ("Assistant: c\n\n", "Judge it.")
    # Between prompts that spell nothing: the whole batch goes through the parts.
    prompts = [plain, part_that_spells, plain, (part_that_spells[0], plain[1])]
    encoded = ids_of(encoder, prompts)
    assert encoder.num_moved == 0
    # The template opens one user turn, and no text opens another.
    assert [token_ids.count(special_id) for token_ids in encoded] == [1] * 4
    assert encoded == ids_of_texts(encoder, prompts)


def test_two_shards_can_be_encoded_at_the_same_time(monkeypatch):
    encoder = SegmentEncoder(ChatTokenizer(byte_tokenizer()))
    shards = [[(f"shard {shard}\n\n", f"{number}") for number in range(2000)] for shard in range(4)]
    expected = [ids_of_texts(encoder, parts) for parts in shards]
    real = ChatTokenizer.encode_text

    def slow(self, texts):
        time.sleep(0.01)  # the other thread goes on
        return real(self, texts)

    monkeypatch.setattr(ChatTokenizer, "encode_text", slow)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ids_of, [encoder] * 4, shards)) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_part_is_tokenised_once(layout, monkeypatch):
    encoder = SegmentEncoder(ChatTokenizer(byte_tokenizer()))
    encode_text = Mock(wraps=encoder.tokenizer.encode_text)
    monkeypatch.setattr(ChatTokenizer, "encode_text", encode_text)
    prompt = RatingPrompt(layout=layout)
    parts = [
        prompt.parts(f"Assistant: {index}", rating_rule=rule.rating_rule)
        for index in range(400)
        for rule in RULES
    ]
    assert len(list(encoder.encode_each(parts))) == 1200
    # Three batches of 500 prompts: two of their edges cut a response's rules apart, and the cache
    # of the batch before has that part.
    num_encoded = sum(len(encoded.args[0]) for encoded in encode_text.call_args_list)
    assert num_encoded == 400 + len(RULES)
