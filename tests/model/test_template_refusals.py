"""Pairs that a chat template refuses are counted, named and limited in their share."""

from __future__ import annotations

import pytest

from encore.core.errors import InputError
from encore.data.records import Message, PreferencePair
from encore.model.conversation import ConversationTokenizer, TemplateRefusalError
from encore.model.template_refusals import TemplateRefusals, find_refusals
from tests.worlds.strict_templates import mixed_rows, strict_tokenizer, turns
from tests.worlds.tokenizers import byte_level

TOKENIZER = strict_tokenizer()


def pairs_of_rows(rows) -> list[PreferencePair]:
    return [
        PreferencePair(
            pair_id=f"{index:032x}",
            source="made",
            prompt=tuple(Message(**turn) for turn in row["prompt"]),
            chosen=row["chosen"],
            rejected=row["rejected"],
        )
        for index, row in enumerate(rows)
    ]


def test_every_kind_of_refusal_is_counted_by_the_templates_words():
    refusals = find_refusals(TOKENIZER, pairs_of_rows(mixed_rows(4)))
    # Five of nine: prompts 4 and 8 have a system turn, 5 to 7 do not alternate.
    assert (refusals.num_pairs, refusals.num_set_aside) == (9, 5)
    assert refusals.reasons == {"roles must alternate": 3, "no system turns": 2}
    assert refusals.example == f"{4:032x}"
    [note] = refusals.notes
    assert note == (
        "5 of 9 pairs are set aside: the chat template refuses them (3 with 'roles must "
        "alternate', 2 with 'no system turns')"
    )


def test_a_turn_that_a_template_passes_over_is_counted_not_set_aside():
    """A template without a place for system turns, and one that leaves out what was thought."""
    rows = mixed_rows(4)  # two of nine have a system turn
    thought = [*turns("user"), *turns("assistant", text="<think>Hm.</think>Fine."), *turns("user")]
    rows.append({"prompt": thought, "chosen": "Yes.", "rejected": "No."})
    tokenizer = strict_tokenizer()
    for template, num_partly_read in (
        ("{% for m in messages if m.role != 'system' %}", 2),
        ("{% for m in messages %}", 0),
        ("{% for m in messages[-2:] %}", 6),  # prompts 4 to 9 have more turns than one
    ):
        tokenizer.hf_tokenizer.chat_template = (
            f"{template}{{{{ '[' + m.role + ']' + m.content.split('</think>')[-1] + eos_token }}}}"
            "{% endfor %}"
        )
        refusals = find_refusals(tokenizer, pairs_of_rows(rows))
        assert refusals.num_set_aside == 0
        assert refusals.num_partly_read == num_partly_read
        assert len(refusals.notes) == (num_partly_read > 0)
    assert "are read without one of their turns" in refusals.notes[0]


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_response_without_text_is_refused_by_the_template_not_rendered(side):
    [pair] = pairs_of_rows(mixed_rows(1, num_refused=0))
    texts = {"chosen": pair.chosen, "rejected": pair.rejected, side: " \n"}
    assert TOKENIZER.refusal(pair.prompt, *texts.values()) == "an empty turn"
    assert TOKENIZER.refusal(pair.prompt, pair.chosen, pair.rejected) is None


def test_an_error_of_the_template_itself_is_a_refusal_of_that_pair_alone():
    tokenizer = strict_tokenizer()
    # Fails with a type error for a conversation of more than two messages.
    tokenizer.hf_tokenizer.chat_template = (
        "{% if messages | length > 2 %}{{ 'a' + 1 }}{% endif %}" + tokenizer.template
    )
    short, long = (tuple(Message(role="user", content="Hi.") for _ in range(num)) for num in (1, 2))
    assert tokenizer.refusal(short, "Yes.") is None
    assert "str" in tokenizer.refusal(long, "Yes.")


def test_the_strict_reading_of_pairs_names_the_pair_and_an_option_that_exists():
    pairs = pairs_of_rows(mixed_rows(1, num_refused=1))
    with pytest.raises(TemplateRefusalError, match=f"pair {1:032x}: .*no system turns") as caught:
        TOKENIZER.encode_pairs(pairs)
    assert "`encore train --chat-template FILE`" in str(caught.value)


def refusals_of(num_refused: int, num_pairs: int) -> TemplateRefusals:
    reasons = ["no"] * num_refused + [None] * (num_pairs - num_refused)
    return TemplateRefusals(reason_P=tuple(reasons), example="abc")


@pytest.mark.parametrize(
    ("num_refused", "num_pairs", "share", "is_allowed"),
    [(0, 9, 0.0, True), (2, 20, 0.1, True), (3, 20, 0.1, False), (20, 20, 1.0, False)],
)
def test_a_larger_share_than_the_limit_is_refused_and_so_are_all_pairs(
    num_refused, num_pairs, share, is_allowed
):
    refusals = refusals_of(num_refused, num_pairs)
    if is_allowed:
        refusals.check(share, model="mine")
        return
    message = rf"'mine': it refuses {num_refused} of {num_pairs} pairs .*with 'no'.* such as abc"
    with pytest.raises(InputError, match=message):
        refusals.check(share, model="mine")


def test_the_proposed_share_is_one_with_which_the_same_call_passes():
    # 29 of 200 are 14.5 %: 0.15.
    with pytest.raises(InputError, match=r"--max-set-aside-share 0\.15$"):
        refusals_of(29, 200).check(0.1, model="mine")
    refusals_of(29, 200).check(0.15, model="mine")
    with pytest.raises(InputError, match=r"--chat-template FILE`\)$"):  # no share helps
        refusals_of(3, 3).check(1.0, model="mine")


def test_many_reasons_are_counted_together_after_the_first():
    reasons = ["a"] * 4 + ["b"] * 3 + ["c"] * 2 + ["d", "e", None]
    refusals = TemplateRefusals(reason_P=tuple(reasons))
    assert refusals.reasons == {"a": 4, "b": 3, "c": 2, "other reasons": 2}


def test_a_template_without_a_special_token_at_its_end_gets_that_of_the_text():
    """A turn that ends in a line break alone has no token that a model could be scored at."""
    names = {"eos_token": "</s>", "pad_token": "<pad>"}
    template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    )
    tokenizer = ConversationTokenizer(
        byte_level(tuple(names.values()), template=template, **names), max_length=100
    )
    rendered = tokenizer.render([Message(role="user", content="So?")], "Yes.")
    assert rendered == "<user>So?\n<assistant>Yes.\n</s>"
    # The saved template says so too, and a prompt for generation has no such token.
    asked = tokenizer.hf_tokenizer.apply_chat_template(
        [{"role": "user", "content": "So?"}], tokenize=False, add_generation_prompt=True
    )
    assert asked == "<user>So?\n"
    with pytest.raises(InputError, match="expected a special token"):
        ConversationTokenizer(byte_level(("</s>",), template=template), max_length=100)
