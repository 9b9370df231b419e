"""RLHFlow's standard format: chosen and rejected are message lists that share their prefix.

The paper's processed data come in this format: RLHFlow's HH-RLHF-Harmless-and-RedTeam-standard and
PKU-SafeRLHF-30K-standard, which together have the "approximately 70K samples" that it states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encore.data.records import PreferencePair
from encore.data.sources.raw_records import field, messages_of, pair_of_conversations


def parse(record: Mapping[str, Any], *, source: str) -> PreferencePair:
    """The pair of a ``{"chosen": [...], "rejected": [...]}`` record; texts are kept as they are.

    Raises:
        MalformedRecordError: no message list; no final response; the prefixes differ; …
    """
    return pair_of_conversations(
        chosen=messages_of(field(record, "chosen"), name="chosen"),
        rejected=messages_of(field(record, "rejected"), name="rejected"),
        source=source,
    )
