"""Parse RLHFlow's standard format: chosen and rejected are lists of messages.

The paper's processed data come in this format: RLHFlow's HH-RLHF-Harmless-and-RedTeam-standard and
PKU-SafeRLHF-30K-standard, which together have the "approximately 70K samples" that it states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encore.data.records import PreferencePair
from encore.data.sources.messages import OnReading, ignore_reading, messages_of
from encore.data.sources.raw_records import field, pair_of_conversations


def parse(
    record: Mapping[str, Any], *, source: str, on_reading: OnReading = ignore_reading
) -> PreferencePair:
    """Return the pair of a ``{"chosen": [...], "rejected": [...]}`` record; keep texts unchanged.

    Raises:
        MalformedRecordError: For example: a column is not a list of messages, it has no final
            response, or the prompts differ.
    """
    return pair_of_conversations(
        chosen=messages_of(field(record, "chosen"), name="chosen", on_reading=on_reading),
        rejected=messages_of(field(record, "rejected"), name="rejected", on_reading=on_reading),
        source=source,
    )
