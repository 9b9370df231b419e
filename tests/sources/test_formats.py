"""What every source promises, whatever its format."""

from __future__ import annotations

from typing import Any

import pytest

from encore.data.records import Message, PreferencePair
from encore.data.sources import FORMATS, HUB_SOURCES, FormatName, known_repo, load_parser
from encore.data.sources.detect import detect_format
from encore.data.sources.identity import pair_id_of
from encore.data.sources.malformed import MalformedRecordError


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def record_of(format_name: FormatName, *, prompt: str, chosen: str, rejected: str) -> Any:
    """The same pair, as each format writes it."""
    records: dict[FormatName, Any] = {
        "hh": {
            "chosen": f"\n\nHuman: {prompt}\n\nAssistant: {chosen}",
            "rejected": f"\n\nHuman: {prompt}\n\nAssistant: {rejected}",
        },
        "rlhflow": {
            "chosen": [user(prompt), assistant(chosen)],
            "rejected": [user(prompt), assistant(rejected)],
            "chosen_score": None,
        },
        "pku": {
            "prompt": prompt,
            "response_0": rejected,
            "response_1": chosen,
            "safer_response_id": 1,
            "better_response_id": 0,
        },
        "pairs": {"prompt": prompt, "chosen": chosen, "rejected": rejected, "id": 7},
    }
    return records[format_name]


each_format = pytest.mark.parametrize("format_name", list(FORMATS))


@each_format
def test_one_pair_is_the_same_pair_in_every_format(format_name: FormatName) -> None:
    record = record_of(format_name, prompt="Hello?", chosen="Hi.", rejected="Go away.")
    prompt = (Message(role="user", content="Hello?"),)
    assert load_parser(format_name, source="here")(record) == PreferencePair(
        pair_id=pair_id_of(prompt, chosen="Hi.", rejected="Go away."),
        source="here",
        prompt=prompt,
        chosen="Hi.",
        rejected="Go away.",
    )


@each_format
def test_a_format_is_told_from_its_own_record(format_name: FormatName) -> None:
    record = record_of(format_name, prompt="Hello?", chosen="Hi.", rejected="Go away.")
    assert detect_format(record, name="file") == format_name


@each_format
def test_every_column_that_identifies_a_format_is_required(format_name: FormatName) -> None:
    parse = load_parser(format_name, source="here")
    record = record_of(format_name, prompt="Hello?", chosen="Hi.", rejected="Go away.")
    for column in FORMATS[format_name].columns:
        with pytest.raises(MalformedRecordError, match=f"column '{column}' is missing"):
            parse({name: value for name, value in record.items() if name != column})


@each_format
@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"prompt": "Q", "chosen": "same", "rejected": "same"}, "identical-responses"),
        ({"prompt": "Q", "chosen": "", "rejected": "no"}, "empty-response"),
        ({"prompt": "Q", "chosen": "yes", "rejected": " \n\t"}, "empty-response"),
        ({"prompt": "", "chosen": "yes", "rejected": "no"}, "empty-prompt"),
        ({"prompt": "Q", "chosen": "a\x00b", "rejected": "no"}, "unstorable-text"),
        ({"prompt": "Q\ud800", "chosen": "yes", "rejected": "no"}, "unstorable-text"),
    ],
)
def test_what_is_no_pair_is_refused_with_its_reason(
    format_name: FormatName, texts: dict[str, str], reason: str
) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        load_parser(format_name, source="here")(record_of(format_name, **texts))
    assert caught.value.reason == reason


@each_format
def test_text_is_kept_to_the_letter(format_name: FormatName) -> None:
    # Composed and decomposed é, a no-break space inside, an emoji, a template's placeholder.
    text = "e\u0301 é a\u00a0b 🙂 {rule}\n\n  indented"
    record = record_of(format_name, prompt=text, chosen=text + "1", rejected=text + "2")
    pair = load_parser(format_name, source="here")(record)
    assert (pair.prompt[0].content, pair.chosen, pair.rejected) == (text, text + "1", text + "2")


def test_every_registered_data_set_has_a_format_and_a_commit() -> None:
    for source in (source for sources in HUB_SOURCES.values() for source in sources):
        assert source.format in FORMATS
        assert len(source.revision) in (7, 40)
        assert set(source.revision) <= set("0123456789abcdef")
        assert known_repo(source.repo_id) == source


def test_the_combination_is_the_papers_two_processed_data_sets() -> None:
    labels = {source.label: source.repo_id for source in HUB_SOURCES["hh-pku"]}
    assert labels == {
        "hh": "RLHFlow/HH-RLHF-Harmless-and-RedTeam-standard",
        "pku": "RLHFlow/PKU-SafeRLHF-30K-standard",
    }
