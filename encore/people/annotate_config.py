"""Configs of `encore annotate export` and `encore annotate import`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from encore.core.config import option
from encore.data.records import SampleKind
from encore.data.study_config import RunChoice, StudyConfig

Format = Literal["html", "csv", "label-studio"]

#: Number of items of a sample: responses, or pairs of rules.
DEFAULT_ITEMS: Mapping[SampleKind, int] = {"responses": 200, "rules": 25}
#: The page for annotators has keys for this many choices.
MAX_LABELS = 15


def _checked_scale(text: str) -> str:
    """Return the labels without spaces. Raise ValueError if they are not a rising scale."""
    labels = [label.strip() for label in text.split(",")]
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        numbers = []
    is_rising = numbers == sorted({number for number in numbers if 0 <= number <= 1})
    if not (is_rising and 2 <= len(numbers) <= MAX_LABELS):
        raise ValueError(f"expected 2 to {MAX_LABELS} rising numbers from 0 to 1 with commas")
    return ",".join(labels)


class AnnotateExportConfig(StudyConfig, RunChoice):
    """Config of `encore annotate export`: what the sample holds and how many people answer it."""

    kind: SampleKind = option(
        "responses",
        help="responses: how far a response follows a rule. rules: which of two rules, one of "
        "lower and one of higher entropy, is clearer and more reliable (the paper's study).",
    )
    items: int | None = option(
        None,
        ge=1,
        help=f"Number of items. Default: {DEFAULT_ITEMS['responses']} responses, or "
        f"{DEFAULT_ITEMS['rules']} pairs of rules.",
    )
    scale: Annotated[str, AfterValidator(_checked_scale)] = option(
        "0,0.5,1",
        metavar="LABELS",
        help="Labels of --kind responses: numbers from 0 to 1 with commas, the lowest first.",
    )
    seed: int = option(
        0, ge=0, help="Seed of the sample and of the order in which each annotator sees it."
    )
    format: Format = option(
        "html",
        help="html: a page for each annotator that works offline. csv: a table with a column to "
        "fill in. label-studio: tasks and labelling config.",
    )
    annotators: int = option(
        1,
        ge=1,
        le=100,
        help="Number of people who get the same items. Each gets a file in another random order "
        "(html, csv).",
    )


class AnnotateImportConfig(StudyConfig):
    """Config of `encore annotate import`: the files of answers and their study."""

    files: tuple[Path, ...] = option(
        positional=True,
        metavar="FILE...",
        min_length=1,
        help="Files of answers to one sample: saved by the page, filled CSV files, or JSON exports "
        "of Label Studio.",
    )
