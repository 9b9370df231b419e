"""Samples in a study and what annotators answered: where both lie, and how they are read.

Under STUDY/annotations/KEY, ``sample.json`` says what was drawn, ``sample.parquet`` has its items
with what annotators do not see, and ``answers.parquet`` the answers of all annotators.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from encore.core.errors import InputError
from encore.data.records import SampleKind
from encore.data.schemas import ANSWERS, CHOICES
from encore.data.study import Study

SAMPLE_FILE, ITEMS_FILE, ANSWERS_FILE = "sample.json", "sample.parquet", "answers.parquet"
_FOLDER = "annotations"


class Sample(BaseModel):
    """What is recorded of a sample beside its items.

    Attributes:
        key: Its name; a digest of what annotators see, and of the seed.
        kind: What was sampled.
        scale: Labels for responses, the lowest first; empty for rules.
        seed: What it was drawn with.
        run_key: The rating run that it was stratified by.
        num_items: How many items.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    kind: SampleKind
    scale: tuple[str, ...]
    seed: int
    run_key: str
    num_items: int

    def path(self, name: str) -> str:
        """Where a file of the sample is, relative to the study."""
        return f"{_FOLDER}/{self.key}/{name}"


def read_samples(study: Study) -> tuple[Sample, ...]:
    """Every sample of a study, sorted by key.

    Raises:
        InputError: A damaged `SAMPLE_FILE`.
    """
    found = []
    for path in sorted(study.path.glob(f"{_FOLDER}/[!.]*/{SAMPLE_FILE}")):
        try:
            found.append(Sample.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise InputError(
                f"{path}: damaged; export the sample again with the same options"
            ) from error
    return tuple(found)


def read_items(study: Study, sample: Sample) -> pa.Table:
    """The items of a sample, of schema `SAMPLED_RESPONSES` or `SAMPLED_RULES`."""
    return pq.read_table(study.path / sample.path(ITEMS_FILE), partitioning=None)


def read_answers(study: Study, sample: Sample) -> pa.Table:
    """What annotators answered, of schema `ANSWERS` or `CHOICES`; no row before an import."""
    path = study.path / sample.path(ANSWERS_FILE)
    if not path.is_file():
        return (ANSWERS if sample.kind == "responses" else CHOICES).empty_table()
    return pq.read_table(path, partitioning=None)


def people_labels(study: Study) -> Iterator[tuple[Sample, dict[tuple[str, str, str], float]]]:
    """Of each sample of responses, people's label by source, response_id and rule_id.

    Of several annotators it is the lower median.
    """
    for sample in read_samples(study):
        if sample.kind == "responses":
            given: dict[tuple[str, str, str], list[float]] = {}
            for row in read_answers(study, sample).to_pylist():
                key = row["source"], row["response_id"], row["rule_id"]
                given.setdefault(key, []).append(row["label"])
            yield sample, {key: median_low(labels) for key, labels in given.items()}
