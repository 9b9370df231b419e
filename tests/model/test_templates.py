"""The template that is saved renders the same on every day."""

from __future__ import annotations

import datetime

import pytest

from encore.data.records import Message
from encore.judges.chat import FROZEN_DATE
from encore.model.conversation import ConversationTokenizer, freeze_template, plain_template
from tests.model.tokenizers import LLAMA_3_TEMPLATE, bert, byte_level, llama_3

PROMPT = (Message(role="user", content="Hello there."),)
TODAY = (
    "{{ bos_token }}{{ strftime_now('%d %b %Y') }}{% if date_string is defined %}{{ date_string }}"
    "{% endif %}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eot>{% endfor %}"
)


def on_a_day(year: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(year, 3, 1, tzinfo=datetime.UTC)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Clock)


def rendered_by_transformers(tokenizer, **variables) -> str:
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes."}]
    return tokenizer.apply_chat_template(messages, tokenize=False, **variables)


@pytest.mark.parametrize("template", [LLAMA_3_TEMPLATE, TODAY], ids=["llama-3", "other"])
def test_the_frozen_template_knows_no_day(template, monkeypatch):
    specials = ["<bos>", "<eot>", "<pad>", "<user>", "<assistant>", "<|eot_id|>"]
    named = {"bos_token": "<bos>"}
    stock = byte_level(specials, template=template, **named)
    frozen = byte_level(specials, template=freeze_template(template), **named)
    on_a_day(2025, monkeypatch)
    before, frozen_before = rendered_by_transformers(stock), rendered_by_transformers(frozen)
    on_a_day(2031, monkeypatch)
    assert rendered_by_transformers(stock) != before  # the test can see a date
    assert rendered_by_transformers(frozen) == frozen_before
    assert rendered_by_transformers(frozen, date_string="1 Jan 1999") == frozen_before


def test_llama_3_is_left_without_any_date():
    text = ConversationTokenizer(llama_3(), max_length=100).render(PROMPT, "Be kind.")
    assert text == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello there.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nBe kind.<|eot_id|>"
    )


def test_another_dated_template_keeps_its_text_with_one_date():
    template = freeze_template(TODAY)
    assert template.endswith(TODAY)
    assert FROZEN_DATE in template


def test_the_plain_template_shows_turns_between_the_backbones_own_tokens():
    tokenizer = ConversationTokenizer(bert(), max_length=100)
    prompt = (
        Message(role="system", content="Be kind."),
        Message(role="user", content=" Hello. "),
    )
    text = "[CLS]System: Be kind.\n\nHuman: Hello.\n\nAssistant: There.[SEP]"
    assert tokenizer.render(prompt, "There.") == text
    assert tokenizer.template == plain_template(begin="[CLS]", end="[SEP]")
    generation = tokenizer.hf_tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello."}], tokenize=False, add_generation_prompt=True
    )
    assert generation == "[CLS]Human: Hello.\n\nAssistant:"
