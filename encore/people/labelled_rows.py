"""Read labels of single responses: any table of them, or the gold data of Rule Based Rewards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.core.errors import InputError
from encore.data.records import Message, PreferencePair, pair_id_of
from encore.data.sources.raw_records import (
    MalformedRecordError,
    field,
    messages_of,
    split_final_response,
    text_field,
)
from encore.data.table_files import read_table

_WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRow:
    """What people say of one response under one rule.

    Attributes:
        response_id: As the table has it, else of the content.
        source: As the table has it, else the file's name.
        rule_id: The rule.
        label: From 0, the rule does not hold, to 1.
        rating: A judge's, if the table has it.
        asked: Prompt and response as the chosen one of a pair without another response, which is
            how a judge is asked; None where the table has no text.
    """

    response_id: str
    source: str
    rule_id: str
    label: float
    rating: float | None
    asked: PreferencePair | None

    @property
    def content_id(self) -> str:
        """The same for the same text; without a text the response's id."""
        return self.response_id if self.asked is None else self.asked.pair_id


def read_labels(files: Sequence[Path]) -> list[LabelledRow]:
    """Every label in some files, in order; what has none is passed over.

    Raises:
        InputError: No such file, no label in it; the record that is wrong.
    """
    rows: list[LabelledRow] = []
    text_of: dict[tuple[str, str], str] = {}
    for path in files:
        for where, record in read_table(path):
            try:
                for row in _rows_of(record, source=path.name.partition(".")[0]):
                    place = row.source, row.response_id
                    if text_of.setdefault(place, row.content_id) != row.content_id:
                        raise MalformedRecordError(
                            "wrong-type",
                            f"response_id {row.response_id!r} is that of another text above; give "
                            "each response an id of its own, or leave the column out",
                        )
                    rows.append(row)
            except MalformedRecordError as error:
                raise InputError(f"labels {path}, {where}: {error.detail}") from error
    if not rows:
        raise InputError(
            f"labels {', '.join(map(str, files))}: no label there; expected the columns response, "
            "rule and label, or the records of Rule Based Rewards"
        )
    return rows


def _rows_of(record: Mapping[str, Any], *, source: str) -> Iterator[LabelledRow]:
    """The labels of a record: of each proposition, or the one of a table's row."""
    response: str | None
    if "propositions" in record:
        prompt, completion = (
            messages_of(field(record, name), name=name) for name in ("prompt", "completion")
        )
        turns, response = split_final_response(completion, name="completion")
        turns, labels = (*prompt, *turns), record["propositions"]
        if not isinstance(labels, dict):
            raise MalformedRecordError("wrong-type", "propositions: expected an object of labels")
    else:
        source = str(record.get("source") or source)
        said = record.get("prompt") or ()
        if isinstance(said, str):
            said = [{"role": "user", "content": said}]
        turns, response = messages_of(said, name="prompt"), record.get("response")
        rule = text_field(record, "rule" if "rule" in record else "rule_id").strip()
        labels = {rule: field(record, "label")}
    asked = None if response is None else _asked(turns, str(response), source=source)
    response_id = str(record.get("response_id") or ("" if asked is None else asked.pair_id))
    rating = _number(record.get("rating"), "rating")
    for rule_id, value in labels.items():
        if not response_id or not rule_id:
            raise MalformedRecordError(
                "missing-column", "expected a rule and a response (or response_id), one is empty"
            )
        label = _number(value, "label")
        if label is not None:
            yield LabelledRow(
                response_id=response_id,
                source=source,
                rule_id=rule_id,
                label=label,
                rating=rating,
                asked=asked,
            )


def _asked(prompt: Sequence[Message], response: str, *, source: str) -> PreferencePair:
    try:
        content_id = pair_id_of(prompt, chosen=response, rejected="")
    except UnicodeEncodeError as error:
        raise MalformedRecordError("unstorable-text", f"half a surrogate pair ({error})") from error
    return PreferencePair(
        pair_id=content_id, source=source, prompt=tuple(prompt), chosen=response, rejected=""
    )


def _number(value: Any, name: str) -> float | None:
    """A label or rating; None where there is none."""
    text = str(value).strip().casefold()
    if value is None or text in ("", "nan"):
        return None
    try:
        number = float(_WORDS.get(text, text))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise MalformedRecordError(
            "wrong-type", f"{name} {value!r}: expected true, false or a number from 0 to 1"
        )
    return number
