"""Transcripts of Anthropic/hh-rlhf, with the oddities that its files really contain."""

from __future__ import annotations

import pytest

from encore.data.records import Message
from encore.data.sources.hh import parse, turns_of
from encore.data.sources.malformed import MalformedRecordError

START = "\n\nHuman: First?\n\nAssistant: One.\n\nHuman: Second?"


def roles_and_texts(transcript: str) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in turns_of(transcript, name="chosen")]


def reason_of(chosen: str, rejected: str) -> str:
    with pytest.raises(MalformedRecordError) as caught:
        parse({"chosen": chosen, "rejected": rejected}, source="hh")
    return caught.value.reason


def test_the_prompt_is_everything_up_to_the_last_assistant_turn() -> None:
    pair = parse(
        {"chosen": f"{START}\n\nAssistant: Yes.", "rejected": f"{START}\n\nAssistant: No."},
        source="hh",
    )
    assert pair.prompt == (
        Message(role="user", content="First?"),
        Message(role="assistant", content="One."),
        Message(role="user", content="Second?"),
    )
    assert (pair.chosen, pair.rejected) == ("Yes.", "No.")


def test_a_speaker_name_inside_a_turn_is_text() -> None:
    transcript = "\n\nHuman: He said Human: stop\nAssistant: go\n\nAssistant: Human: Which one?"
    assert roles_and_texts(transcript) == [
        ("user", "He said Human: stop\nAssistant: go"),
        ("assistant", "Human: Which one?"),
    ]


def test_two_turns_of_one_speaker_in_a_row_stay_two_turns() -> None:
    transcript = "\n\nHuman: Hey\n\nAssistant: Wait.\n\nAssistant:  Back.\n\nHuman: So?"
    assert [role for role, _ in roles_and_texts(transcript)] == [
        "user",
        "assistant",
        "assistant",
        "user",
    ]


def test_white_space_around_turns_is_layout_and_inside_them_is_text() -> None:
    transcript = "Human:First\n\n  second \n\n\n\nAssistant:  A.  B. \n"
    assert roles_and_texts(transcript) == [("user", "First\n\n  second"), ("assistant", "A.  B.")]


def test_a_later_blank_line_without_a_speaker_does_not_end_the_turn() -> None:
    assert roles_and_texts("\n\nHuman: a\n\nb: c\n\nAssistant: d") == [
        ("user", "a\n\nb: c"),
        ("assistant", "d"),
    ]


def test_different_prefixes_are_no_pair() -> None:
    chosen = "\n\nHuman: A?\n\nAssistant: x\n\nHuman: B?\n\nAssistant: y"
    rejected = "\n\nHuman: A?\n\nAssistant: z"
    assert reason_of(chosen, rejected) == "prefix-mismatch"


def test_prefixes_that_differ_in_one_letter_are_no_pair() -> None:
    chosen, rejected = f"{START}\n\nAssistant: y", f"{START}\n\nAssistant: n"
    assert reason_of(chosen, rejected.replace("One.", "Ome.")) == "prefix-mismatch"


def test_a_transcript_that_ends_with_the_human_has_no_response() -> None:
    assert reason_of(START, f"{START}\n\nAssistant: y") == "no-final-response"


def test_a_missing_final_response_is_an_empty_response() -> None:
    assert reason_of(f"{START}\n\nAssistant:", f"{START}\n\nAssistant: y") == "empty-response"


def test_a_response_right_after_another_one_answers_nobody() -> None:
    twice = f"{START}\n\nAssistant: One moment."
    assert reason_of(f"{twice}\n\nAssistant: y", f"{twice}\n\nAssistant: n") == "no-user-turn"


@pytest.mark.parametrize("text", ["", "  \n", "Just text.", "Intro\n\nHuman: Hi\n\nAssistant: Yo"])
def test_text_that_is_no_transcript_is_refused(text: str) -> None:
    assert reason_of(text, "\n\nHuman: Hi\n\nAssistant: Yo") == "not-a-transcript"
