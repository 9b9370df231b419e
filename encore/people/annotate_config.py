"""What `encore annotate export` and `encore annotate import` are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from encore.core.config import option
from encore.data.records import SampleKind
from encore.data.study_config import RunChoice, StudyConfig

Format = Literal["html", "csv", "label-studio"]

#: Of responses, and of pairs of rules.
DEFAULT_ITEMS: Mapping[SampleKind, int] = {"responses": 200, "rules": 25}
#: As many as the page has keys for choices.
MAX_LABELS = 15


def _checked_scale(text: str) -> str:
    labels = [label.strip() for label in text.split(",")]
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        numbers = []
    is_rising = numbers == sorted({one for one in numbers if 0 <= one <= 1})
    if not (is_rising and 2 <= len(numbers) <= MAX_LABELS):
        raise ValueError(f"expected 2 to {MAX_LABELS} rising numbers from 0 to 1 with commas")
    return ",".join(labels)


class AnnotateExportConfig(StudyConfig, RunChoice):
    """What `encore annotate export` draws and for whom."""

    kind: SampleKind = option(
        "responses",
        help="responses: how far a response follows a rule. rules: which of two rules, one of "
        "lower and one of higher entropy, is clearer and more reliable (the paper's study).",
    )
    items: int | None = option(
        None,
        ge=1,
        help=f"How many items. Default: {DEFAULT_ITEMS['responses']} responses, or "
        f"{DEFAULT_ITEMS['rules']} pairs of rules.",
    )
    scale: Annotated[str, AfterValidator(_checked_scale)] = option(
        "0,0.5,1",
        metavar="LABELS",
        help="Of responses: numbers from 0 to 1 with commas, the lowest first.",
    )
    seed: int = option(0, ge=0, help="Of everything that is drawn, orders too.")
    format: Format = option(
        "html",
        help="html: a page for each annotator that works offline. csv: a table with a column to "
        "fill in. label-studio: tasks and labelling config.",
    )
    annotators: int = option(
        1,
        ge=1,
        le=100,
        help="How many people get the same items, each a file in an order of its own (html, csv).",
    )


class AnnotateImportConfig(StudyConfig):
    """What `encore annotate import` reads."""

    files: tuple[Path, ...] = option(
        positional=True,
        metavar="FILE...",
        min_length=1,
        help="Answers: what the page saved, filled CSV files, Label Studio's JSON export; all of "
        "one sample.",
    )
