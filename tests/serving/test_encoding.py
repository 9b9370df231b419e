"""A query gets the tokens of the conversation that the template rendered."""

from __future__ import annotations

import time

import numpy as np
import pytest
from starlette.exceptions import HTTPException

from encore.data.records import Message
from encore.model.conversation import ConversationTokenizer
from encore.serving.request_encoding import EncodedText, RequestEncoder
from encore.serving.reward_requests import Conversation, Turn
from tests.serving.servers import make_conversations
from tests.worlds.tokenizers import bert, byte_level, demo_tokenizer, llama_3

PAD, BEGIN, END = "<|finetune_right_pad_id|>", "<|begin_of_text|>", "<|eot_id|>"
PROMPT = (Message(role="user", content="Hello there."),)


@pytest.fixture(scope="module")
def llama() -> ConversationTokenizer:
    return ConversationTokenizer(llama_3(), max_length=200)


def conversation(
    tokenizer: ConversationTokenizer, *contents: str, response: str = "c"
) -> EncodedText:
    turns = [
        Turn(role=("user", "assistant")[index % 2], content=content)
        for index, content in enumerate(contents)
    ]
    text = Conversation(messages=turns, response=response)
    return RequestEncoder(tokenizer, num_embeddings=1 << 20).encode(text, 7)


def ids(tokenizer: ConversationTokenizer, *texts: str) -> list[list[int]]:
    return [encoded.token_ids.tolist() for encoded in queries(tokenizer, *texts)]


def queries(tokenizer: ConversationTokenizer, *texts: str) -> list[EncodedText]:
    encoder = RequestEncoder(tokenizer, num_embeddings=1 << 20)
    return [encoder.encode(text, index) for index, text in enumerate(texts, 8)]


@pytest.mark.parametrize("make", [llama_3, bert, lambda: demo_tokenizer().hf_tokenizer])
def test_a_rendered_query_has_the_tokens_of_its_conversation(make):
    tokenizer = ConversationTokenizer(make(), max_length=2000)
    dialogues = make_conversations(20)
    texts = [tokenizer.render(*dialogue) for dialogue in dialogues]
    expected = [tokenizer.encode(*dialogue).token_ids.tolist() for dialogue in dialogues]
    assert ids(tokenizer, *texts) == expected


def test_padding_is_dropped_and_a_missing_end_token_is_not_added(llama):
    text = llama.render(PROMPT, "Be kind.")
    bare = text.removesuffix(END)
    [expected] = ids(llama, text)
    assert expected[-1] == llama.end_token_id
    with_end = [
        text + END,  # the policy's own end after the template's
        text + PAD * 3,  # right-padded
        PAD * 3 + text,  # left-padded, as OpenRLHF generates
        END * 2 + text,  # padded with the end token, as it does without a pad token
        text + "\n" + PAD,  # a template that ends in a newline
    ]
    assert ids(llama, *with_end) == [expected] * len(with_end)
    # A response that was cut at its length limit has no end and gets none.
    assert ids(llama, bare, bare + PAD, bare + PAD * 3) == [expected[:-1]] * 3
    # One byte, one token: a newline and two spaces within the response are three more.
    assert len(ids(llama, bare + "\n  " + END)[0]) == len(expected) + 3


def test_the_first_token_is_kept_if_it_is_also_the_end_token():
    specials = ("<|endoftext|>", "<pad>")
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    named = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<pad>"}
    tokenizer = ConversationTokenizer(
        byte_level(specials, template=template, **named), max_length=200
    )
    text = tokenizer.render(PROMPT, "Be kind.")
    assert ids(tokenizer, text) == [tokenizer.encode(PROMPT, "Be kind.").token_ids.tolist()]


def test_a_very_long_text_costs_little_and_has_the_same_tokens():
    tokenizer = demo_tokenizer(max_length=256)
    long = "Many words, one after the other, and é ≥ 5. " * 8_000  # 0.35 MB
    prompt = [Message(role="user", content=long)]
    rendered, expected = tokenizer.render(prompt, long), tokenizer.encode(prompt, long)
    started = time.process_time()
    [by_text] = queries(tokenizer, rendered)
    by_turns = conversation(tokenizer, long, response=long)
    seconds = time.process_time() - started
    started = time.process_time()
    tokenizer.hf_tokenizer(rendered)
    whole_seconds = time.process_time() - started
    for encoded in (by_text, by_turns):
        np.testing.assert_array_equal(encoded.token_ids, expected.token_ids)
        assert encoded.num_cut > 0
    assert seconds < whole_seconds / 2


@pytest.mark.parametrize("empty", ["", PAD * 3, END, f"{PAD}{END}\n{END}"])
def test_a_query_without_text_is_refused_by_its_number(llama, empty):
    with pytest.raises(HTTPException, match=r"422: text 9 .*: an empty text"):
        queries(llama, "Hi.", empty)


def test_a_million_end_tokens_take_no_longer_than_their_length(llama):
    num_tokens = 200_000
    started = time.process_time()
    for hostile, bare in (
        (END * num_tokens + "x" + END, "x" + END),
        ("x" + END * num_tokens, "x" + END),
        # Space beside the text belongs to the text.
        ("x" + (" " + END) * num_tokens, "x " + END),
    ):
        assert ids(llama, hostile) == ids(llama, bare)
    assert time.process_time() - started < 15  # quadratic: hours


def test_refused_turns_are_named_without_the_models_folder():
    template = (
        "{% if messages|length > 2 %}{{ raise_exception('one turn') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}"
    )
    hf_tokenizer = llama_3()
    hf_tokenizer.name_or_path = "/somewhere/secret"
    tokenizer = ConversationTokenizer(hf_tokenizer, max_length=99, template=template)
    with pytest.raises(HTTPException, match=r"422: text 7 .*roles user assistant user") as caught:
        conversation(tokenizer, "a", "b", "c")
    assert "secret" not in caught.value.detail
