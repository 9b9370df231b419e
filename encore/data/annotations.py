"""Read the samples that were drawn for annotators, and the annotators' answers.

STUDY/annotations/KEY holds ``sample.json`` (kind, seed and size of the sample), ``sample.parquet``
(its items, with the columns that annotators do not see) and ``answers.parquet`` (the answers of
all annotators).
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
    """Record of a sample without its items.

    Attributes:
        key: Name of the sample: a digest of what annotators see and of the seed.
        kind: ``responses`` under a rule, or pairs of ``rules``.
        scale: Labels of responses, the lowest first; empty for rules.
        seed: Seed of the random draw.
        run_key: Key of the rating run that the draw was stratified by.
        num_items: Number of items in the sample.
        further_run_keys: Keys of the other rating runs that the draw was stratified by.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    kind: SampleKind
    scale: tuple[str, ...]
    seed: int
    run_key: str
    num_items: int
    further_run_keys: tuple[str, ...] = ()

    def path(self, name: str) -> str:
        """Return the path of a file of the sample, relative to the study."""
        return f"{_FOLDER}/{self.key}/{name}"


def read_samples(study: Study) -> tuple[Sample, ...]:
    """Read the record of every sample of a study, sorted by key.

    Raises:
        InputError: A file `SAMPLE_FILE` is damaged.
    """
    samples = []
    for path in sorted(study.path.glob(f"{_FOLDER}/[!.]*/{SAMPLE_FILE}")):
        try:
            samples.append(Sample.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise InputError(
                f"{path}: damaged; export the sample again with the same options"
            ) from error
    return tuple(samples)


def read_items(study: Study, sample: Sample) -> pa.Table:
    """Read the items of a sample, of schema `SAMPLED_RESPONSES` or `SAMPLED_RULES`."""
    return pq.read_table(study.path / sample.path(ITEMS_FILE), partitioning=None)


def read_answers(study: Study, sample: Sample) -> pa.Table:
    """Read the answers to a sample, of schema `ANSWERS` or `CHOICES`; no row before an import."""
    schema = ANSWERS if sample.kind == "responses" else CHOICES
    path = study.path / sample.path(ANSWERS_FILE)
    if not path.is_file():
        return schema.empty_table()
    return pq.read_table(path, partitioning=None)


def people_labels(study: Study) -> Iterator[tuple[Sample, dict[tuple[str, str, str], float]]]:
    """Yield each sample of responses with people's labels by (source, response_id, rule_id).

    The label of several annotators is their lower median. An item that nobody could label has none.
    """
    for sample in read_samples(study):
        if sample.kind == "responses":
            answers: dict[tuple[str, str, str], list[float]] = {}
            for row in read_answers(study, sample).to_pylist():
                if row["label"] is None:
                    continue
                key = row["source"], row["response_id"], row["rule_id"]
                answers.setdefault(key, []).append(row["label"])
            yield sample, {key: median_low(labels) for key, labels in answers.items()}
