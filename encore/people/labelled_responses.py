"""Read single responses that people labelled safe or unsafe, in the columns of published sets.

Per record a label is in ``is_safe`` (BeaverTails), ``response_harm_label`` (WildGuardTest) or
``label`` (XSTest-Response). A record of PKU-SafeRLHF has two responses with a label each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from encore.core.errors import InputError
from encore.data.records import Message
from encore.data.sources.messages import messages_of
from encore.data.sources.raw_records import MalformedRecordError, field, text_field
from encore.data.table_files import read_table

_PUBLISHED_LABELS = {"unharmful": True, "safe": True, "harmful": False, "unsafe": False}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_LABELS: Mapping[str, Mapping[str, bool]] = {
    "is_safe": _TRUTH,
    "response_harm_label": _PUBLISHED_LABELS,
    "label": _PUBLISHED_LABELS,
}


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


def read_labelled(files: Sequence[Path]) -> list[LabelledResponse]:
    """Read the labelled responses of all files, in order.

    Raises:
        InputError: A file does not exist, or a record has no prompt, response or known label.
    """
    responses: list[LabelledResponse] = []
    for path in files:
        for position, record in read_table(path):
            try:
                responses += _responses_of(record)
            except MalformedRecordError as error:
                raise InputError(f"{path}, {position}: {error.detail}") from error
    return responses


def _responses_of(record: Mapping[str, Any]) -> Iterator[LabelledResponse]:
    prompt = record.get("prompt")
    if isinstance(prompt, list):
        messages = tuple(messages_of(prompt, name="prompt"))
    else:
        messages = (Message(role="user", content=text_field(record, "prompt")),)
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
