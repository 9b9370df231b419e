"""Configs of `encore annotate`, `encore labels` and `encore guard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from encore.core.config import option
from encore.data.records import SampleKind
from encore.data.study_options import RunChoice, StudyConfig
from encore.judges.judge_options import JudgeConfig
from encore.model.model_options import ModelOptions, set_aside_option
from encore.rating.rating_options import RatingConfig
from encore.weighting.weights_options import WeightChoice

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

    kind: SampleKind = option("responses")
    """responses: how far a response follows a rule. rules: which of two rules, one of lower and one
    of higher entropy, is clearer and more reliable (the paper's study)."""
    items: int | None = option(
        None,
        ge=1,
        help=f"Number of items. Default: {DEFAULT_ITEMS['responses']} responses, or "
        f"{DEFAULT_ITEMS['rules']} pairs of rules.",
    )
    scale: Annotated[str, AfterValidator(_checked_scale)] = option("0,0.5,1", metavar="LABELS")
    """Labels of --kind responses: numbers from 0 to 1 with commas, the lowest first."""
    next: bool = option(False)
    """Draw responses without a label, where another label narrows the interval of people's rate
    most: by the labels so far, and where the study's judges disagree."""
    seed: int = option(0, ge=0)
    """Seed of the sample and of the order in which each annotator sees it."""
    format: Format = option("html")
    """html: a page for each annotator that works offline. csv: a table with a column to fill in.
    label-studio: tasks and labelling config."""
    annotators: int = option(1, ge=1, le=100)
    """Number of people who get the same items. Each gets a file in another random order (html,
    csv)."""

    @model_validator(mode="after")
    def _check_next(self) -> Self:
        if self.next and self.kind != "responses":
            raise ValueError("--next draws responses; leave --kind rules out")
        return self

    @property
    def num_items(self) -> int:
        """Return the requested number of items."""
        return self.items or DEFAULT_ITEMS[self.kind]


class AnnotateImportConfig(StudyConfig):
    """Config of `encore annotate import`: the files of answers and their study."""

    files: tuple[Path, ...] = option(positional=True, metavar="FILE...", min_length=1)
    """Files of answers to one sample: saved by the page, filled CSV files, or JSON exports of Label
    Studio."""


class LabelsConfig(RatingConfig):
    """Config of `encore labels`: labels by people, and the judge that is compared with them."""

    files: tuple[Path, ...] = option((), positional=True, metavar="FILE...", min_length=1)
    """Parquet, CSV or JSON lines with the columns response, rule and label (true, false or a number
    from 0 to 1) and optionally prompt; a column rating replaces the judge, rating_2, rating_3, …
    are further judges. Or the gold data of OpenAI's Rule Based Rewards, or a wheel of the package
    PyRIT or its unpacked folder."""
    judge: JudgeConfig | None = None  # type: ignore[assignment]  # a table may have ratings
    rules: str = option("encore-10", examples=["encore-10", "my-rules.toml", "propositions.yaml"])
    """Wording of the rules that the labels name, for the judge: encore-10, encore-20, a rule set
    (TOML), or the propositions of Rule Based Rewards (YAML)."""


class GuardConfig(ModelOptions):
    """Configuration of `encore guard`: labelled responses, a model, and its weights."""

    labelled: tuple[Path, ...] = option(positional=True, min_length=1, metavar="FILE...")
    """CSV, JSON or Parquet files of responses with labels."""
    model: str = option(metavar="FOLDER_OR_ID")
    """Folder that `encore train` or `encore export` wrote, or a reward model's hub id."""
    composition: WeightChoice = WeightChoice()
    max_set_aside_share: float = set_aside_option()
    out: Path = option(Path("guard-scores"), metavar="DIR")
    """Folder of the scores, one folder a model and set of responses. A call with other weights or
    other labels reads them, and a stopped call continues."""
    device: str | None = option(None)
    """Device of the model. Default: a GPU if there is one."""
