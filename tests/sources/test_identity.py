"""The pair id: one name per content, on every machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.data.records import Message
from encore.data.sources.identity import pair_id_of

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "ingest-pair-ids.json").read_text(encoding="utf-8")
)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
conversations = st.lists(
    st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=texts),
    max_size=3,
)


def test_the_encoding_is_lengths_before_texts() -> None:
    # Written out by hand: one message, then role, content, chosen, rejected, each after its
    # length in bytes ("é" has two).
    written = (
        b"\0\0\0\0\0\0\0\1"
        b"\0\0\0\0\0\0\0\4user"
        b"\0\0\0\0\0\0\0\2\xc3\xa9"
        b"\0\0\0\0\0\0\0\3yes"
        b"\0\0\0\0\0\0\0\2no"
    )
    prompt = (Message(role="user", content="é"),)
    expected = hashlib.sha256(written).hexdigest()[:32]
    assert pair_id_of(prompt, chosen="yes", rejected="no") == expected


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["about"])
def test_ids_are_those_of_the_golden_file(case: dict[str, object]) -> None:
    messages = case["prompt"]
    assert isinstance(messages, list)
    prompt = [Message(role=role, content=content) for role, content in messages]
    found = pair_id_of(prompt, chosen=str(case["chosen"]), rejected=str(case["rejected"]))
    assert found == case["pair_id"]


@given(conversations, texts, texts, conversations, texts, texts)
def test_different_pairs_have_different_ids(
    prompt: list[Message],
    chosen: str,
    rejected: str,
    other_prompt: list[Message],
    other_chosen: str,
    other_rejected: str,
) -> None:
    same = (prompt, chosen, rejected) == (other_prompt, other_chosen, other_rejected)
    first = pair_id_of(prompt, chosen=chosen, rejected=rejected)
    second = pair_id_of(other_prompt, chosen=other_chosen, rejected=other_rejected)
    assert (first == second) == same


def test_text_does_not_wander_between_fields() -> None:
    ids = {
        pair_id_of([Message(role="user", content="ab")], chosen="c", rejected="d"),
        pair_id_of([Message(role="user", content="a")], chosen="bc", rejected="d"),
        pair_id_of([Message(role="user", content="ab")], chosen="cd", rejected=""),
        pair_id_of(
            [Message(role="user", content="a"), Message(role="user", content="b")],
            chosen="c",
            rejected="d",
        ),
        pair_id_of([Message(role="assistant", content="ab")], chosen="c", rejected="d"),
    }
    assert len(ids) == 5


def test_chosen_and_rejected_are_not_interchangeable() -> None:
    prompt = [Message(role="user", content="Q")]
    assert pair_id_of(prompt, chosen="a", rejected="b") != pair_id_of(
        prompt, chosen="b", rejected="a"
    )
