"""Every source format reads the same pair, and refuses records that are not a pair."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from encore.data.ingest_options import IngestConfig
from encore.data.records import Message, PreferencePair, pair_id_of
from encore.data.sources import FORMATS, FormatName, detect_format, load_parser
from encore.data.sources.raw_records import MalformedRecordError

GOLDEN_IDS = json.loads(
    (Path(__file__).parents[2] / "golden" / "ingest-pair-ids.json").read_text(encoding="utf-8")
)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def record_of(format_name: FormatName, *, prompt: str, chosen: str, rejected: str) -> Any:
    """Return the record of a pair in a format."""
    human = f"\n\nHuman: {prompt}\n\nAssistant: "
    responses = {"response_0": rejected, "response_1": chosen}
    records: dict[FormatName, Any] = {
        "hh": {"chosen": human + chosen, "rejected": human + rejected},
        "rlhflow": {
            "chosen": [user(prompt), assistant(chosen)],
            "rejected": [user(prompt), assistant(rejected)],
            "chosen_score": None,
        },
        "pku": {"prompt": prompt, **responses, "safer_response_id": 1, "better_response_id": 0},
        "pairs": {"prompt": prompt, "chosen": chosen, "rejected": rejected, "id": 7},
    }
    return records[format_name]


def parsed(format_name: FormatName, record: Any) -> PreferencePair:
    return load_parser(format_name, source="here")(record)


def reason_of(format_name: FormatName, record: Any) -> str:
    with pytest.raises(MalformedRecordError) as caught:
        parsed(format_name, record)
    return caught.value.reason


@pytest.mark.parametrize("format_name", list(FORMATS))
def test_every_format_is_detected_and_gives_the_same_pair(format_name):
    # Composed and decomposed é, a no-break space inside, an emoji, a template's placeholder.
    text = "e\u0301 é a\u00a0b 🙂 {rule}\n\n  indented"
    record = record_of(format_name, prompt=text, chosen=text + "1", rejected=text + "2")
    prompt = (Message(role="user", content=text),)
    assert detect_format(record) == format_name
    help_text = IngestConfig.model_fields["sources"].description or ""
    names = re.split(r"\W+", help_text.partition("FORMAT is")[2])
    assert format_name in names, "name it in the help of sources, encore/data/ingest_options.py"
    assert parsed(format_name, record) == PreferencePair(
        pair_id=pair_id_of(prompt, chosen=text + "1", rejected=text + "2"),
        source="here",
        prompt=prompt,
        chosen=text + "1",
        rejected=text + "2",
    )
    for column in FORMATS[format_name].columns:
        with pytest.raises(MalformedRecordError, match=f"column '{column}' is missing"):
            parsed(format_name, {name: value for name, value in record.items() if name != column})


def test_of_several_formats_that_fit_the_one_with_the_most_columns_is_detected():
    # A transcript as the chosen response of a `pairs` record fits `hh`, too; both ids fit `pku`.
    transcript = "\n\nHuman: Q\n\nAssistant: a"
    record = {"prompt": "Q", "chosen": transcript, "rejected": "n"}
    assert detect_format(record) == "pairs"
    assert detect_format({"chosen": transcript, "rejected": transcript}) == "hh"
    assert detect_format({**record, "response_0": "a", "response_1": "b"}) == "pku"
    assert detect_format({"chosen": 1, "rejected": 2}) is None


@pytest.mark.parametrize("prompt", ["Q", [user("Q")]])
@pytest.mark.parametrize("chosen", ["yes", [assistant("yes")], [user("Q"), assistant("yes")]])
def test_a_response_may_or_may_not_repeat_the_prompt(prompt, chosen):
    pair = parsed("pairs", {"prompt": prompt, "chosen": chosen, "rejected": "no"})
    assert [turn.content for turn in pair.prompt] == ["Q"]
    assert (pair.chosen, pair.rejected) == ("yes", "no")


GOOD = {"prompt": "Q", "chosen": "yes", "rejected": "no"}
PKU = record_of("pku", prompt="Q", chosen="y", rejected="n")
LISTS = record_of("rlhflow", prompt="Q", chosen="y", rejected="n")


@pytest.mark.parametrize(
    ("format_name", "record", "reason"),
    [
        ("pairs", {**GOOD, "chosen": "no"}, "identical-responses"),
        ("pairs", {**GOOD, "rejected": " \n\t"}, "empty-response"),
        ("pairs", {**GOOD, "prompt": ""}, "empty-prompt"),
        ("pairs", {**GOOD, "chosen": "a\x00b"}, "unstorable-text"),
        ("pairs", {**GOOD, "prompt": "Q\ud800"}, "unstorable-text"),
        ("pairs", {**GOOD, "prompt": []}, "no-user-turn"),
        ("pairs", {**GOOD, "prompt": [user("a"), assistant("b")]}, "no-user-turn"),
        ("pairs", {**GOOD, "prompt": [{"role": "narrator", "content": "a"}]}, "unknown-role"),
        ("pairs", {**GOOD, "prompt": [{"role": ["user"], "content": "a"}]}, "unknown-role"),
        ("pairs", {**GOOD, "prompt": [{"role": "user"}]}, "missing-column"),
        ("pairs", {**GOOD, "prompt": [{"role": "user", "content": None}]}, "wrong-type"),
        ("pairs", {**GOOD, "prompt": ["a"]}, "wrong-type"),
        ("pairs", {**GOOD, "prompt": None}, "wrong-type"),
        ("pairs", {**GOOD, "chosen": [user("P"), assistant("y")]}, "prefix-mismatch"),
        ("rlhflow", {**LISTS, "chosen": [user("Q")]}, "no-final-response"),
        ("rlhflow", {**LISTS, "chosen": [user("P"), assistant("y")]}, "prefix-mismatch"),
        ("rlhflow", {**LISTS, "chosen": "text"}, "wrong-type"),
        *(
            ("pku", {**PKU, "safer_response_id": label}, "no-preference")
            for label in (-1, 2, None, True, "0", 0.5)
        ),
    ],
)
def test_malformed_records_are_refused_with_their_reason(format_name, record, reason):
    assert reason_of(format_name, record) == reason


# --- transcripts, with the oddities that the files of hh really contain -----------------------

START = "\n\nHuman: First?\n\nAssistant: One.\n\nHuman: Second?"


@pytest.mark.parametrize(
    ("prompt", "turns"),
    [
        (START, ["user First?", "assistant One.", "user Second?"]),
        # A speaker's name inside a turn is text, also as its first word.
        (
            "\n\nHuman: He said Human: stop\nAssistant: go\n\nAssistant: Human: Which?\n\nHuman: 1",
            ["user He said Human: stop\nAssistant: go", "assistant Human: Which?", "user 1"],
        ),
        # Two turns of one speaker in a row stay two turns.
        (
            "\n\nHuman: Hey\n\nAssistant: Wait.\n\nAssistant:  Back.\n\nHuman: So?",
            ["user Hey", "assistant Wait.", "assistant Back.", "user So?"],
        ),
        # White space around turns is layout; inside them it is text.
        ("Human:First\n\nb: c \n\n\n", ["user First\n\nb: c"]),
    ],
)
def test_the_prompt_is_every_turn_up_to_the_last_response(prompt, turns):
    chosen, rejected = f"{prompt}\n\nAssistant:  A.  B. \n", f"{prompt}\n\nAssistant: No."
    pair = parsed("hh", {"chosen": chosen, "rejected": rejected})
    assert [f"{turn.role} {turn.content}" for turn in pair.prompt] == turns
    assert (pair.chosen, pair.rejected) == ("A.  B.", "No.")


def test_malformed_transcripts_are_refused():
    for chosen, rejected, reason in (
        (f"{START}\n\nAssistant: y", "\n\nHuman: First?\n\nAssistant: z", "prefix-mismatch"),
        (f"{START}\n\nAssistant: y", f"{START}?\n\nAssistant: n", "prefix-mismatch"),
        (START, f"{START}\n\nAssistant: y", "no-final-response"),
        ("  \n", START, "not-a-transcript"),
        (f"Intro{START}\n\nAssistant: y", START, "not-a-transcript"),
    ):
        assert reason_of("hh", {"chosen": chosen, "rejected": rejected}) == reason


@pytest.mark.parametrize("case", GOLDEN_IDS, ids=lambda case: case["about"])
def test_pair_ids_equal_the_golden_file(case):
    prompt = [Message(role=role, content=content) for role, content in case["prompt"]]
    assert pair_id_of(prompt, chosen=case["chosen"], rejected=case["rejected"]) == case["pair_id"]
