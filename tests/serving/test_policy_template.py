"""Texts of another family's template are refused by name, or read back into their messages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from encore.core.errors import InputError
from encore.data.records import Message
from encore.model.conversation import ConversationTokenizer
from encore.serving.policy_template import PolicyTemplate
from encore.serving.request_encoding import RequestEncoder
from tests.worlds.tokenizers import byte_level, chatml, llama_3

GENERATION = (
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
#: A template that puts the system message into the user's turn, with the plain text [INST].
MISTRAL = (
    "<s>{% if messages[0].role == 'system' %}{% set s, t = messages[0].content, messages[1:] %}"
    "{% else %}{% set s, t = '', messages %}{% endif %}{% for m in t %}{% if m.role == 'user' %}"
    "[INST] {% if loop.first and s %}{{ s }}\n\n{% endif %}{{ m.content }} [/INST]{% else %}"
    " {{ m.content }}</s>{% endif %}{% endfor %}"
)
#: A template whose reply begins with thinking, or with the end of it.
THINKING = chatml().chat_template.replace(
    "assistant\n{% endif %}",
    "assistant\n<think>\n{% if enable_thinking is false %}\n</think>\n\n{% endif %}{% endif %}",
)


def llama_policy() -> Any:
    tokenizer = llama_3()
    tokenizer.chat_template += GENERATION
    return tokenizer


def turns(*contents: str, system: str | None = None) -> tuple[Message, ...]:
    roles = ("user", "assistant") * len(contents)
    first = () if system is None else (Message(role="system", content=system),)
    return first + tuple(Message(role=r, content=c) for r, c in zip(roles, contents, strict=False))


def render(tokenizer: Any, prompt: tuple[Message, ...], **options: Any) -> str:
    messages = [{"role": turn.role, "content": turn.content} for turn in prompt]
    options = {"tokenize": False, "add_generation_prompt": True} | options
    return tokenizer.apply_chat_template(messages, **options)


TEXT = st.text(st.characters(codec="utf-8"), min_size=1).map(str.strip).filter(bool)
POLICIES = {"chatml": chatml(), "llama": llama_policy(), "thinking": chatml(THINKING)}


@pytest.mark.parametrize("name", POLICIES)
@given(contents=st.lists(TEXT, min_size=2, max_size=6), system=st.none() | TEXT)
def test_messages_are_read_back_as_they_were_rendered(name, contents, system):
    tokenizer = POLICIES[name]
    template = PolicyTemplate(tokenizer)
    if len(contents) % 2:
        contents = contents[1:]
    tokens = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    assume(not any(token in content for token in tokens for content in (*contents, system or "")))
    *before, response = contents
    prompt = turns(*before, system=system if name != "llama" else None)
    text = render(tokenizer, prompt) + response
    assert template.parse(text) == (prompt, response, False)
    end = tokenizer.eos_token
    padded = tokenizer.pad_token * 2 + text + end + tokenizer.pad_token * 3
    assert template.parse(padded) == (prompt, response, True)


def test_a_token_within_a_message_is_text_and_at_the_end_of_a_reply_its_end():
    within = "a<|endoftext|>b"
    assert PolicyTemplate(chatml()).parse(render(chatml(), turns(within)) + within) == (
        *(turns(within), within),
        False,
    )
    ended = PolicyTemplate(chatml()).parse(render(chatml(), turns("a")) + "<|endoftext|>")
    assert ended[:2] == (turns("a"), "")


def test_a_reply_after_the_end_of_thinking_and_any_date_are_read():
    no_thinking = render(chatml(THINKING), turns("a"), enable_thinking=False)
    assert PolicyTemplate(chatml(THINKING)).parse(no_thinking + "b").response == "b"
    another_day = render(llama_policy(), turns("a"), strftime_now=lambda _format: "01 Jan 2030")
    assert PolicyTemplate(llama_policy()).parse(another_day + "b")[:2] == (turns("a"), "b")


def test_a_system_message_within_the_users_turn_stays_there():
    specials = ("<s>", "</s>")
    mistral = byte_level(specials, template=MISTRAL, eos_token=specials[1])
    text = render(mistral, turns("a", "b", "c", system="s")) + " d</s>"
    assert PolicyTemplate(mistral).parse(text) == (turns("s\n\na", "b", "c"), " d", True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Hi.", "does not begin as that template begins"),
        (render(chatml(), turns("a")).removesuffix("<|im_start|>assistant\n"), "do not alternate"),
        (render(chatml(), turns("a", "b")) + "c", "do not alternate"),
        (render(chatml(), turns("a<|im_start|>tool")) + "b", "'<|im_start|>' is within a message"),
    ],
)
def test_a_text_that_cannot_be_read_in_one_way_is_refused(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        PolicyTemplate(chatml()).parse(text)


@pytest.mark.parametrize(
    "template",
    [None, "{{ messages[0].content }}", "{% for m in messages %}{{ m.content|upper }}{% endfor %}"],
)
def test_a_template_that_cannot_be_read_back_is_refused_at_the_start(template):
    with pytest.raises(InputError, match=r"--policy-tokenizer .* cannot be read back"):
        PolicyTemplate(chatml(template))


# --- at a reward model ----------------------------------------------------------------------------

LLAMA = ConversationTokenizer(llama_3(), max_length=500)


def encoded(text: str, policy: Any = None) -> list[int]:
    template = None if policy is None else PolicyTemplate(policy)
    encoder = RequestEncoder(LLAMA, num_embeddings=1 << 20, policy=template)
    return encoder.encode(text, 3).token_ids.tolist()


@pytest.mark.parametrize(
    ("model", "text", "token"),
    [
        (llama_3, render(chatml(), turns("a")) + "b<|im_end|>", "<|im_start|>"),
        (llama_3, "<s>[INST] a [/INST] b</s>", "[INST]"),
        (llama_3, "<bos><start_of_turn>user\na<end_of_turn>\n", "<start_of_turn>"),
        (llama_3, "<|user|>\na<|end|>\n<|assistant|>\nb<|end|>", "<|user|>"),
        (chatml, LLAMA.render(turns("a"), "b"), "<|begin_of_text|>"),
        # Within a message the text spells the model's own header.
        (llama_3, render(chatml(), turns(LLAMA.render(turns("a"), "b"))) + "c", "<|im_start|>"),
    ],
)  # fmt: skip
def test_a_text_of_another_template_is_refused_by_its_token(model, text, token):
    encoder = RequestEncoder(ConversationTokenizer(model(), max_length=500), num_embeddings=1 << 20)
    with pytest.raises(HTTPException) as caught:
        encoder.encode(text, 3)
    assert caught.value.status_code == 422
    assert f"text 3 (counted from 0): token {token!r} belongs to another" in caught.value.detail
    assert "--policy-tokenizer PATH" in caught.value.detail


def test_the_models_own_text_may_speak_of_another_familys_tokens():
    prompt, response = turns("What is <|im_start|> or [INST]?"), "<|im_start|> begins a turn."
    assert (
        encoded(LLAMA.render(prompt, response)) == LLAMA.encode(prompt, response).token_ids.tolist()
    )


def test_a_policys_text_has_the_tokens_of_its_messages():
    prompt, response = turns("a", "b", "What is <|eot_id|>?", system="Be brief."), "An end."
    expected = LLAMA.encode(prompt, response).token_ids.tolist()
    text = render(chatml(), prompt) + response
    assert encoded(text + "<|im_end|>", chatml()) == expected
    # A response that was cut at its length limit gets no end.
    assert encoded(text, chatml()) == expected[:-1]
    with pytest.raises(HTTPException, match=r"text 3 .*--policy-tokenizer did not render"):
        encoded("Hi.", chatml())
