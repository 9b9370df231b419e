"""A conversation is read whole, or its record is set aside with a reason that names the remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from encore.data.records import PreferencePair
from encore.data.sources import FormatName, detect_format, load_parser
from encore.data.sources.raw_records import MalformedRecordError

CALL = [{"id": "1", "type": "function", "function": {"name": "unlock", "arguments": "{}"}}]


def user(text: Any, **keys: object) -> dict[str, Any]:
    return {"role": "user", "content": text, **keys}


def assistant(text: Any, **keys: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **keys}


def pair(prompt: Any = "How do I open it?", **columns: Any) -> dict[str, Any]:
    return {"prompt": prompt, "chosen": "Ask the owner.", "rejected": "Break it.", **columns}


def read(record: Any) -> tuple[PreferencePair, set[str]]:
    """Return the pair of a record by its detected format, and the forms that it was read from."""
    forms = set[str]()
    name = detect_format(record)
    assert name is not None
    return load_parser(name, source="here", on_reading=forms.add)(record), forms


def turns(record: Any) -> list[str]:
    return [f"{turn.role}: {turn.content}" for turn in read(record)[0].prompt]


def refused(record: Any, *, name: FormatName | None = None) -> MalformedRecordError:
    with pytest.raises(MalformedRecordError) as caught:
        load_parser(name or detect_format(record) or "pairs", source="here")(record)
    return caught.value


# --- what is no text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([user("Hi"), assistant("I will.", tool_calls=CALL), user("Well?")], "tool-calls"),
        ([user("Hi"), assistant(None, tool_calls=CALL), user("Well?")], "tool-calls"),
        ([user("Hi"), assistant("", function_call={"name": "f"}), user("?")], "tool-calls"),
        (
            [user("Hi"), {"role": "tool", "content": "7", "tool_call_id": "1"}, user("?")],
            "tool-calls",
        ),
        ([user("Hi"), {"from": "observation", "value": "7"}, user("?")], "tool-calls"),
        ([user("Hi"), assistant("A.", reasoning_content="He lies."), user("?")], "reasoning"),
        ([user("Hi", name="Ann")], "speaker-name"),
        ([user([{"type": "text", "text": "What is this?"}, {"type": "image"}])], "not-text"),
        ([user([{"type": "tool_use", "name": "f", "input": {}}])], "tool-calls"),
        ([user("Hi"), assistant(None, refusal="I can't."), user("?")], "unread-text"),
    ],
)
def test_a_turn_with_more_than_its_text_is_set_aside(messages, reason):
    error = refused(pair(messages))
    assert error.reason == reason
    assert "text" in error.detail  # the remedy
    # As the conversation of a response, in RLHFlow's format, too.
    lists = {"chosen": [*messages, assistant("Ask.")], "rejected": [*messages, assistant("Break.")]}
    assert refused(lists).reason == reason


def test_responses_that_differ_in_their_calls_alone_are_not_called_identical():
    calls = ([{**CALL[0], "id": side}] for side in "12")
    chosen, rejected = ([assistant("Let me see.", tool_calls=call)] for call in calls)
    assert refused(pair(chosen=chosen, rejected=rejected)).reason == "tool-calls"


@pytest.mark.parametrize(
    "empty", [None, [], "", {}, "[]", {"name": None, "arguments": None}, [None]]
)
def test_keys_without_a_value_change_nothing(empty):
    # Tables give every message the columns that one of them has.
    keys = {"tool_calls": empty, "name": empty, "reasoning_content": empty, "weight": 1}
    assert turns(pair([user("Hi", **keys)])) == ["user: Hi"]


# --- names of roles and keys ----------------------------------------------------------------------


def test_other_names_of_roles_and_keys_are_read():
    record = pair(
        [
            {"role": "developer", "content": "Be kind."},
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "Hello"},
            {"role": "Human", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
        ],
        chosen={"from": "gpt", "value": "Ask."},
        rejected=[{"role": "model", "content": "Break."}],
    )
    read_pair, forms = read(record)
    assert turns(record) == ["system: Be kind.", "user: Hi", "assistant: Hello", "user: a\nb"]
    assert (read_pair.chosen, read_pair.rejected) == ("Ask.", "Break.")
    assert forms == {"role-names", "content-parts"}


def test_an_unknown_role_says_how_to_rename_it():
    error = refused(pair([{"role": "narrator", "content": "Once"}]))
    assert (error.reason, "rename it to system, user or assistant" in error.detail) == (
        "unknown-role",
        True,
    )


def test_messages_that_are_json_in_a_cell_are_messages():
    record = pair(json.dumps([user("Hi")]), chosen=json.dumps([user("Hi"), assistant("Ask.")]))
    read_pair, forms = read(record)
    assert (turns(record), read_pair.chosen) == (["user: Hi"], "Ask.")
    assert forms == {"messages-as-text"}
    # A text that is other JSON is a text; Python's own form is no JSON.
    assert turns(pair('[1, {"a": 2}]')) == ['user: [1, {"a": 2}]']
    assert refused(pair(str([user("Hi")]))).reason == "turns-in-text"


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["system", "system_prompt", "system_message"])
def test_a_system_column_becomes_the_first_turn(column):
    record = pair(**{column: "Never talk about locks."})
    assert turns(record) == ["system: Never talk about locks.", "user: How do I open it?"]
    assert read(record)[1] == {"system-column"}
    # Said twice it is one turn; two different ones contradict each other.
    system = {"role": "system", "content": "Be kind."}
    assert len(turns(pair([system, user("Hi")], **{column: "Be kind."}))) == 2
    assert refused(pair([system, user("Hi")], **{column: "Be rude."})).reason == "unread-text"
    assert turns(pair(**{column: None})) == turns(pair(**{column: " "})) == turns(pair())


@pytest.mark.parametrize(
    "history", [[["I am 9.", "Hello!"]], [user("I am 9."), assistant("Hello!")]]
)
def test_a_history_becomes_the_turns_before_the_prompt(history):
    expected = ["system: S", "user: I am 9.", "assistant: Hello!", "user: How do I open it?"]
    assert turns(pair(history=history, system="S")) == expected
    # A prompt that has these turns already has them once.
    whole = [user("I am 9."), assistant("Hello!"), user("How do I open it?")]
    assert turns(pair(whole, history=history, system="S")) == expected
    system = [{"role": "system", "content": "S"}, user("How do I open it?")]
    assert turns(pair(system, history=history)) == expected
    assert refused(pair(history="He is 9.")).reason == "unread-text"
    assert refused(pair(history=[["a", "b", "c"]])).reason == "unread-text"


def test_the_input_of_an_instruction_is_added_to_it():
    texts = {"instruction": "Explain to a child", "input": "How are swords made?"}
    record = {**texts, "chosen": "By smiths.", "rejected": "With steel."}
    assert turns(record) == ["user: Explain to a child\nHow are swords made?"]
    assert read(record)[1] == {"prompt-column", "input-column"}
    assert turns({**record, "input": ""}) == ["user: Explain to a child"]


@pytest.mark.parametrize("column", ["instruction", "question", "query"])
def test_the_prompt_may_stand_in_a_column_of_another_name(column):
    record = pair()
    record[column] = record.pop("prompt")
    assert turns(record) == ["user: How do I open it?"]
    conversations = {**record, "conversations": [{"from": "human", "value": "Hi"}]}
    del conversations[column]
    assert turns(conversations) == ["user: Hi"]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("context", "It is your neighbour's.", "unread-text"),
        ("question", "And how do I close it?", "unread-text"),
        ("messages", [user("Whose is it?")], "unread-text"),
        ("tools", [{"name": "unlock"}], "tool-calls"),
        ("images", ["lock.png"], "not-text"),
    ],
)
def test_a_column_of_the_conversation_that_is_not_read_sets_the_record_aside(column, value, reason):
    error = refused(pair(**{column: value}))
    assert error.reason == reason
    assert f"column {column!r}" in error.detail
    lists = {side: [user("Hi"), assistant(side)] for side in ("chosen", "rejected")}
    transcripts = {side: f"\n\nHuman: Hi\n\nAssistant: {side}" for side in ("chosen", "rejected")}
    for record in (lists, transcripts):
        assert refused({**record, column: value}).reason == reason


def test_columns_that_repeat_what_is_read_or_cannot_change_it_are_ignored():
    # As in UltraFeedback: the question alone, and the conversation with the chosen response.
    messages = [user("How do I open it?"), assistant("Ask the owner.")]
    extra = {"question": "How do I open it?", "messages": messages, "score": 7, "id": "x"}
    extra |= {"context": "open it"}  # it stands inside the prompt
    assert read(pair(**extra)) == read(pair())


# --- turns inside a text --------------------------------------------------------------------------

TRANSCRIPT = "\n\nHuman: Open it?\n\nAssistant: Whose is it?\n\nHuman: Mine.\n\nAssistant:"


def test_a_transcript_becomes_turns_and_gives_the_pair_of_the_format_hh():
    record = {"prompt": TRANSCRIPT, "chosen": " Call a smith.", "rejected": " Break it."}
    read_pair, forms = read(record)
    assert turns(record) == ["user: Open it?", "assistant: Whose is it?", "user: Mine."]
    assert forms == {"turns-in-prompt"}
    hh = {side: TRANSCRIPT + record[side] for side in ("chosen", "rejected")}
    assert read(hh)[0] == read_pair
    # Responses that repeat the transcript are the same pair.
    repeated, forms = read({**hh, "prompt": TRANSCRIPT})
    assert repeated == read_pair
    assert forms == {"turns-in-prompt", "prompt-in-response"}
    assert refused({**hh, "prompt": "\n\nHuman: Close it?"}).reason == "prefix-mismatch"


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
        "<s>[INST] Hi [/INST]",
        "<start_of_turn>user\nHi<end_of_turn>\n",
        "<|user|>\nHi</s>\n<|assistant|>\n",
        "Below is an instruction.\n\n### Instruction:\nHi\n\n### Response:",
        "### Human: Hi### Assistant:",
        "A chat. USER: Hi ASSISTANT:",
        "User: Hi\nAssistant: Hello\nUser: Open it?\nAssistant:",
        "Human: Hi\nAssistant: Hello\nHuman: Open it?\nAssistant:",
        "You are kind.\n\nHuman: Hi\n\nAssistant:",
    ],
)
def test_turns_of_another_form_in_a_text_set_the_record_aside(text):
    error = refused(pair(text))
    assert error.reason == "turns-in-text"
    assert "write them as messages" in error.detail
    # As the one turn of a message the text may quote anything.
    assert turns(pair([user(text)])) == [f"user: {text}"]
    responses = {"chosen": f"{text} a", "rejected": f"{text} b"}
    if not text.startswith(("Below", "A chat", "You are")):
        assert refused(pair("Hi", **responses)).reason == "turns-in-text"


@pytest.mark.parametrize(
    "text",
    [
        "Explain ### headings, [INST] and USER: in a chat.",
        "What does 'Human: hi' mean?",
        "Write the turn of the Assistant:",
    ],
)
def test_a_text_that_names_a_mark_is_a_text(text):
    assert turns(pair(text)) == [f"user: {text}"]
    assert read(pair(chosen=text))[0].chosen == text


def test_a_prompt_that_both_responses_repeat_is_cut_off():
    prompt = "How do I pick a lock?"
    record = {"prompt": prompt, "chosen": f"{prompt} Ask.", "rejected": f"\n{prompt}\n\nBreak it."}
    read_pair, forms = read(record)
    assert (read_pair.chosen, read_pair.rejected) == ("Ask.", "Break it.")
    assert forms == {"prompt-in-response"}


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected"),
    [
        # One alone quotes the prompt.
        ("How do I pick a lock?", "How do I pick a lock? Ask.", "Break it with a long hammer."),
        # A short prompt begins two responses by chance.
        ("Hello", "Hello there", "Hello you"),
        # The prompt ends inside a word.
        ("Say what a lock", "Say what a locksmith does", "Say what a locker is"),
        # Nothing is left.
        ("How do I pick a lock?", "How do I pick a lock?", "How do I pick a lock? Break it."),
    ],
)
def test_responses_that_begin_like_the_prompt_are_kept(prompt, chosen, rejected):
    read_pair, forms = read({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    assert (read_pair.chosen, read_pair.rejected, forms) == (chosen, rejected, set())
