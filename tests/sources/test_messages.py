"""Formats made of columns and message lists: RLHFlow, PKU and anybody's pairs."""

from __future__ import annotations

from typing import Any

import pytest

from encore.data.sources import FormatName, load_parser
from encore.data.sources.detect import detect_format
from encore.data.sources.malformed import MalformedRecordError
from encore.errors import InputError
from tests.sources.test_formats import assistant, user

SYSTEM = {"role": "system", "content": "Be brief."}


def reason_of(format_name: FormatName, record: Any) -> str:
    with pytest.raises(MalformedRecordError) as caught:
        load_parser(format_name, source="here")(record)
    return caught.value.reason


PKU = {
    "prompt": "Q",
    "response_0": "zero",
    "response_1": "one",
    "safer_response_id": 0,
    "better_response_id": 1,
}


@pytest.mark.parametrize(
    ("prefer", "chosen"), [(None, "zero"), ("safer", "zero"), ("better", "one")]
)
def test_prefer_names_the_label_and_safer_is_the_default(prefer: str | None, chosen: str) -> None:
    pair = load_parser("pku", source="pku", prefer=prefer)(PKU)
    assert pair.chosen == chosen
    assert {pair.chosen, pair.rejected} == {"zero", "one"}


@pytest.mark.parametrize("label", [-1, 2, None, True, "0", 0.5])
def test_a_label_other_than_zero_and_one_is_no_preference(label: object) -> None:
    assert reason_of("pku", {**PKU, "safer_response_id": label}) == "no-preference"


@pytest.mark.parametrize("prompt", ["Q", [user("Q")]])
@pytest.mark.parametrize("chosen", ["yes", [assistant("yes")], [user("Q"), assistant("yes")]])
def test_a_response_may_or_may_not_repeat_the_prompt(prompt: object, chosen: object) -> None:
    record = {"prompt": prompt, "chosen": chosen, "rejected": "no"}
    pair = load_parser("pairs", source="mine")(record)
    assert [turn.content for turn in pair.prompt] == ["Q"]
    assert (pair.chosen, pair.rejected) == ("yes", "no")


def test_a_prompt_of_messages_keeps_system_and_earlier_turns() -> None:
    prompt = [SYSTEM, user("a"), assistant("b"), user("c")]
    record = {"prompt": prompt, "chosen": [*prompt, assistant("yes")], "rejected": "no"}
    pair = load_parser("pairs", source="mine")(record)
    assert [turn.role for turn in pair.prompt] == ["system", "user", "assistant", "user"]


def test_a_response_that_repeats_another_prompt_is_refused() -> None:
    record = {"prompt": "Q", "chosen": [user("P"), assistant("yes")], "rejected": "no"}
    assert reason_of("pairs", record) == "prefix-mismatch"


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([], "no-user-turn"),
        ([SYSTEM], "no-user-turn"),
        ([user("a"), assistant("b")], "no-user-turn"),
        ([{"role": "human", "content": "a"}], "unknown-role"),
        ([{"role": ["user"], "content": "a"}], "unknown-role"),
        ([{"role": "user"}], "missing-column"),
        ([{"role": "user", "content": None}], "wrong-type"),
        (["a"], "wrong-type"),
        (None, "wrong-type"),
        (3, "wrong-type"),
    ],
)
def test_a_prompt_that_is_none_is_refused(prompt: object, reason: str) -> None:
    assert reason_of("pairs", {"prompt": prompt, "chosen": "y", "rejected": "n"}) == reason


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ([], "no-final-response"),
        ([user("Q")], "no-final-response"),
        ([user("P"), assistant("y")], "prefix-mismatch"),
        ([user("Q"), user("Q"), assistant("y")], "prefix-mismatch"),
        ("text", "wrong-type"),
        (None, "wrong-type"),
    ],
)
def test_rlhflow_lists_must_share_all_but_the_final_response(chosen: object, reason: str) -> None:
    record = {"chosen": chosen, "rejected": [user("Q"), assistant("n")]}
    assert reason_of("rlhflow", record) == reason


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": "Q", "chosen": "y"}, "format pairs, missing column 'rejected'"),
        ({"prompt": "Q", "response_0": "y"}, "format pku, missing column 'response_1'"),
        ({"chosen": "y", "rejected": "n"}, "column 'prompt' is missing"),
        ({}, r"columns \(none\)"),
    ],
)
def test_a_format_that_cannot_be_told_says_which_column_is_missing(record: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        detect_format(record, name="mine.jsonl")
