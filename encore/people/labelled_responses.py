"""Read responses that people labelled: under rules, or safe and unsafe.

`read_labels` reads labels under rules from any table, from the gold data of Rule Based Rewards, or
from the scores that the package PyRIT has.
`read_safety_labels` reads the columns of published sets. Per record a label is in ``is_safe``
(BeaverTails), ``response_harm_label`` (WildGuardTest) or ``label`` (XSTest-Response). A record of
PKU-SafeRLHF has two responses with a label each.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from encore.core.errors import InputError
from encore.data.records import Message, PreferencePair, pair_id_of
from encore.data.sources.messages import messages_of
from encore.data.sources.raw_records import (
    MalformedRecordError,
    field,
    split_final_response,
    text_field,
)
from encore.data.table_files import read_table
from encore.people.pyrit_labels import is_pyrit, pyrit_records

_Labelled = TypeVar("_Labelled")

_FURTHER_RATING = re.compile(r"rating_\d+")
_NUMBER_OF_WORD = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_PUBLISHED_LABELS = {"unharmful": True, "safe": True, "harmful": False, "unsafe": False}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_LABELS: Mapping[str, Mapping[str, bool]] = {
    "is_safe": _TRUTH,
    "response_harm_label": _PUBLISHED_LABELS,
    "label": _PUBLISHED_LABELS,
}


def _read(
    files: Sequence[Path],
    labels_of: Callable[[Mapping[str, Any], Path], Iterable[_Labelled]],
    records_of: Callable[[Path], Iterator[tuple[str, dict[str, Any]]]] = read_table,
) -> Iterator[_Labelled]:
    """Yield the labels of each record of all files, in order.

    Raises:
        InputError: A file does not exist, or a record is malformed; the message says where.
    """
    for path in files:
        for position, record in records_of(path):
            try:
                yield from labels_of(record, path)
            except MalformedRecordError as error:
                raise InputError(f"labels {path}, {position}: {error.detail}") from error


def _turns(prompt: Any) -> tuple[Message, ...]:
    """Return a prompt as turns: a text is the turn of a user."""
    if isinstance(prompt, str):
        return (Message(role="user", content=prompt),)
    return messages_of(prompt, name="prompt")


# --- labels under rules ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRow:
    """Label of one response under one rule.

    Attributes:
        response_id: Id of the response in the table, else a digest of its text.
        source: Source in the table, else the file's name without its suffixes.
        rule_id: Id of the rule.
        label: Number from 0 (the rule does not hold) to 1 (it holds); NaN for a response without a
            label, which a judge rates.
        rating: Rating by a judge in the table, None without one.
        further_ratings: Ratings by further judges, by the names of their columns: ``rating_2``, ….
        pair: Prompt and response for the judge, as a pair whose rejected response is empty. None
            if the table has no text.
        prompt_id: Id of the prompt in the table, else a digest of its text; None without both.
    """

    response_id: str
    source: str
    rule_id: str
    label: float
    rating: float | None
    pair: PreferencePair | None
    prompt_id: str | None = None
    further_ratings: Mapping[str, float | None] = dataclasses.field(default_factory=dict)

    @property
    def content_id(self) -> str:
        """Return a digest of the text, or the response's id if there is no text."""
        return self.response_id if self.pair is None else self.pair.pair_id


def read_labels(files: Sequence[Path], *, unlabelled: bool = False) -> list[LabelledRow]:
    """Read the labels under rules of all files, in order.

    Args:
        files: Tables of labels.
        unlabelled: True returns records without a label too; else they are skipped.

    Raises:
        InputError: A file does not exist, a record is malformed, two texts have the same
            response_id, or no file has a label.
    """
    content_id_of: dict[tuple[str, str], str] = {}

    def rows_of_one_text(record: Mapping[str, Any], path: Path) -> Iterator[LabelledRow]:
        for row in _rows_of(record, source=path.name.partition(".")[0]):
            key = row.source, row.response_id
            if content_id_of.setdefault(key, row.content_id) != row.content_id:
                raise MalformedRecordError(
                    "wrong-type",
                    f"an earlier text has the same response_id {row.response_id!r}; give "
                    "each response another id, or leave the column out",
                )
            yield row

    def records_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        return pyrit_records(path) if is_pyrit(path) else read_table(path)

    rows = [*_read(files, rows_of_one_text, records_of)]
    labelled_rows = [row for row in rows if not math.isnan(row.label)]
    if not labelled_rows:
        raise InputError(
            f"labels {', '.join(map(str, files))}: no labels; expected the columns response, rule "
            "and label, or the records of Rule Based Rewards"
        )
    return rows if unlabelled else labelled_rows


def _rows_of(record: Mapping[str, Any], *, source: str) -> Iterator[LabelledRow]:
    """Yield the labels of a record, NaN without one: one for each proposition, or that of a row."""
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
        turns, response = _turns(record.get("prompt") or ()), record.get("response")
        rule = text_field(record, "rule" if "rule" in record else "rule_id").strip()
        labels = {rule: field(record, "label")}
    pair = None if response is None else _one_sided_pair(turns, str(response), source=source)
    response_id = str(record.get("response_id") or ("" if pair is None else pair.pair_id))
    prompt_id = str(record.get("prompt_id") or "") or None
    if prompt_id is None and turns:
        prompt_id = hashlib.sha256(repr(turns).encode()).hexdigest()[:32]
    rating = _number(record.get("rating"), "rating")
    further_ratings = {
        name: _number(record[name], name) for name in record if _FURTHER_RATING.fullmatch(name)
    }
    for rule_id, value in labels.items():
        if not response_id or not rule_id:
            raise MalformedRecordError(
                "missing-column",
                "expected a rule and a response (or response_id), but one is empty",
            )
        label = _number(value, "label")
        yield LabelledRow(
            response_id=response_id,
            source=source,
            rule_id=rule_id,
            label=math.nan if label is None else label,
            rating=rating,
            pair=pair,
            prompt_id=prompt_id,
            further_ratings=further_ratings,
        )


def _one_sided_pair(prompt: Sequence[Message], response: str, *, source: str) -> PreferencePair:
    """Return the response as the chosen one of a pair with an empty rejected response."""
    try:
        content_id = pair_id_of(prompt, chosen=response, rejected="")
    except UnicodeEncodeError as error:
        raise MalformedRecordError("unstorable-text", f"half a surrogate pair ({error})") from error
    return PreferencePair(
        pair_id=content_id, source=source, prompt=tuple(prompt), chosen=response, rejected=""
    )


def _number(value: Any, name: str) -> float | None:
    """Return a label or rating as a number from 0 to 1; None for an empty value."""
    text = str(value).strip().casefold()
    if value is None or text in ("", "nan"):
        return None
    try:
        number = float(_NUMBER_OF_WORD.get(text, text))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise MalformedRecordError(
            "wrong-type", f"{name} {value!r}: expected true, false or a number from 0 to 1"
        )
    return number


# --- safe and unsafe responses --------------------------------------------------------------------


class LabelledResponse(NamedTuple):
    """A response with its prompt; ``is_safe`` is None without a label or without text."""

    prompt: tuple[Message, ...]
    response: str
    is_safe: bool | None

    @property
    def half(self) -> int:
        """Return 0 or 1 from a hash of the prompt: all responses to a prompt are in one half."""
        text = "\0".join(message.content for message in self.prompt)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[0] % 2


def read_safety_labels(files: Sequence[Path]) -> list[LabelledResponse]:
    """Read the safe and unsafe responses of all files, in order.

    Raises:
        InputError: A file does not exist, or a record has no prompt, response or known label.
    """
    return [*_read(files, lambda record, _: _responses_of(record))]


def _responses_of(record: Mapping[str, Any]) -> Iterator[LabelledResponse]:
    messages = _turns(field(record, "prompt"))
    if "response_0" in record:
        for side in ("0", "1"):
            label = _label(record, f"is_response_{side}_safe", _TRUTH)
            yield _response(messages, record, f"response_{side}", label)
        return
    column = next((name for name in _LABELS if name in record), "is_safe")
    yield _response(messages, record, "response", _label(record, column, _LABELS[column]))


def _response(
    prompt: tuple[Message, ...], record: Mapping[str, Any], column: str, label: bool | None
) -> LabelledResponse:
    text = "" if record.get(column) in (None, "") else text_field(record, column)
    return LabelledResponse(prompt, text, label if text.strip() else None)


def _label(record: Mapping[str, Any], column: str, is_safe: Mapping[str, bool]) -> bool | None:
    value = field(record, column) if column not in record else record[column]
    if value is None or value == "":
        return None
    text = str(value).strip().lower()
    if text not in is_safe:
        raise MalformedRecordError(
            "wrong-type", f"{column} is {value!r:.40}, expected one of {', '.join(is_safe)}"
        )
    return is_safe[text]
