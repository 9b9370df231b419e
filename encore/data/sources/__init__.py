"""Data sources: one file per format, and the table that names them.

A new format is one file with ``parse(record, *, source) -> PreferencePair`` and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

from encore.data.records import PreferencePair

FormatName = Literal["hh", "pku", "rlhflow", "pairs"]
Parser = Callable[[Mapping[str, Any]], PreferencePair]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How records of one shape become pairs.

    ``columns`` identify the format; ``label`` is the ``source`` column when nobody gives another
    (None: the file's or repository's name).
    """

    columns: tuple[str, ...]
    label: str | None = None
    has_prefer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A data set on the Hugging Face hub, pinned.

    ``revision`` is a commit id; one of seven digits is resolved to the full id, which is recorded.
    """

    repo_id: str
    format: FormatName
    revision: str
    label: str
    subsets: tuple[str, ...] = ()


FORMATS: Mapping[FormatName, Format] = {
    "hh": Format(columns=("chosen", "rejected"), label="hh"),
    "pku": Format(columns=("prompt", "response_0", "response_1"), label="pku", has_prefer=True),
    "rlhflow": Format(columns=("chosen", "rejected")),
    "pairs": Format(columns=("prompt", "chosen", "rejected")),
}

#: The repositories' main branches as their pages and other projects' pins name them. Of RLHFlow's
#: only the first seven digits are known to us; the hub has to know exactly one such commit.
HUB_SOURCES: Mapping[str, tuple[HubSource, ...]] = {
    "hh": (
        HubSource(
            repo_id="Anthropic/hh-rlhf",
            format="hh",
            revision="09be8c5bbc57cb3887f3a9732ad6aa7ec602a1fa",
            label="hh",
            subsets=(
                "harmless-base",
                "helpful-base",
                "helpful-online",
                "helpful-rejection-sampled",
            ),
        ),
    ),
    "pku": (
        HubSource(
            repo_id="PKU-Alignment/PKU-SafeRLHF",
            format="pku",
            revision="9421ffafec3fa40a1f1a7d567b4d525079477ecb",
            label="pku",
        ),
    ),
    # The paper's combined data set (paper notes, decision 9).
    "hh-pku": (
        HubSource(
            repo_id="RLHFlow/HH-RLHF-Harmless-and-RedTeam-standard",
            format="rlhflow",
            revision="b1c5623",
            label="hh",
        ),
        HubSource(
            repo_id="RLHFlow/PKU-SafeRLHF-30K-standard",
            format="rlhflow",
            revision="d92dda2",
            label="pku",
        ),
    ),
}


def load_parser(name: FormatName, *, source: str, prefer: str | None = None) -> Parser:
    """The function that turns a record of a format into a pair labelled ``source``.

    It raises `encore.data.sources.raw_records.MalformedRecordError` for a record that is no pair.
    """
    chosen_by = {"prefer": prefer} if FORMATS[name].has_prefer and prefer else {}
    return partial(import_module(f"{__name__}.{name}").parse, source=source, **chosen_by)
