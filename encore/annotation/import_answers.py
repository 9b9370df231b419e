"""`encore annotate import` as a function: check annotators' answers, put them in the study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from encore.annotation.annotate_config import AnnotateImportConfig
from encore.annotation.answer_files import Answer, AnswerFile, read_answer_file
from encore.annotation.answers import (
    ANSWERS_FILE,
    Sample,
    read_answers,
    read_items,
    read_samples,
)
from encore.annotation.questionnaire import Question
from encore.data.study import Study, changed_study, open_study
from encore.errors import InputError

#: An annotator who gave so many answers, all alike, is named.
_MANY_ALIKE = 5

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAnnotator:
    """One annotator's answers.

    Attributes:
        annotator: The name.
        num_answers: How many are in the study now.
        num_missing: How many questions are not answered.
        num_replaced: How many answers of an earlier import were replaced.
        always: The one answer that was given to every item; None where answers differ.
    """

    annotator: str
    num_answers: int
    num_missing: int
    num_replaced: int
    always: str | None

    @property
    def line(self) -> str:
        """What was done, in one line."""
        total = self.num_answers + self.num_missing
        missing = f", {self.num_missing:,} missing" if self.num_missing else ""
        replaced = f"; {self.num_replaced:,} earlier ones replaced" if self.num_replaced else ""
        return f"{self.annotator}: {self.num_answers:,} of {total:,} answers{missing}{replaced}"


def import_answers(config: AnnotateImportConfig) -> tuple[Sample, tuple[ImportedAnnotator, ...]]:
    """Check the files of some annotators and put their answers in the study, all or none.

    An annotator's earlier answers are replaced; those of others stay.

    Raises:
        InputError: A file that cannot be read, is of another sample, or has an annotator that
            another file has too, an unknown or doubled item, or a label that is not on the scale.
    """
    study = open_study(config.study)
    files = [read_answer_file(argument) for argument in config.files]
    sample = _sample_of(study, files)
    items = {row["item_id"]: row for row in read_items(study, sample).to_pylist()}
    file_of: dict[str, AnswerFile] = {}
    rows: list[_Row] = []
    for file in files:
        for annotator, answers in file.answers.items():
            if annotator in file_of:
                raise InputError(
                    f"annotator {annotator!r} is in {file_of[annotator].path} and in {file.path}; "
                    f"give one of them another name, e.g. OTHER={file.path}, or import one"
                )
            file_of[annotator] = file
            where = f"{file.path}, annotator {annotator!r}"
            checked = _checked(answers, items, sample, where)
            rows += [{**row, "annotator": annotator} for row in checked]
    with changed_study(study.path) as change:
        before = read_answers(study, sample).to_pylist()
        kept = [row for row in before if row["annotator"] not in file_of]
        kept += sorted(rows, key=lambda row: (row["item_id"], row.get("question", "")))
        kept.sort(key=itemgetter("annotator"))
        table = pa.Table.from_pylist(kept, schema=sample.answer_schema)
        pq.write_table(table, change.path(sample.path(ANSWERS_FILE)), compression="zstd")
    replaced = Counter(row["annotator"] for row in before)
    return sample, tuple(_imported(sample, rows, replaced[one], one) for one in file_of)


def _sample_of(study: Study, files: Sequence[AnswerFile]) -> Sample:
    """The one sample that all files are of."""
    known = {sample.key: sample for sample in read_samples(study)}
    first = files[0]
    for file in files:
        if file.sample not in known:
            raise InputError(
                f"{file.path}: answers of sample {file.sample}, which study {study.path} does not "
                f"have (samples: {', '.join(known) or 'none'}); import them into its study"
            )
        if file.sample != first.sample:
            raise InputError(
                f"{file.path}: answers of sample {file.sample}, but {first.path} has those of "
                f"{first.sample}; import one sample at a time"
            )
    return known[first.sample]


def _checked(
    answers: Sequence[Answer], items: Mapping[str, _Row], sample: Sample, where: str
) -> Iterator[_Row]:
    """The answers of one annotator as rows of the sample's schema, without the annotator."""
    questions = {question.name: question for question in sample.questions}
    seen: set[tuple[str, str]] = set()
    for answer in answers:
        item, question = items.get(answer.item_id), questions.get(answer.question)
        if item is None or question is None:
            raise InputError(
                f"{where}: item {answer.item_id!r}, question {answer.question!r} is not in sample "
                f"{sample.key}; leave it out, or export the sample again"
            )
        if answer[:2] in seen:
            raise InputError(
                f"{where}: item {answer.item_id!r} is answered more than once; keep one answer"
            )
        seen.add(answer[:2])
        value = _value(answer.value, question)
        if value is None:
            raise InputError(
                f"{where}: item {answer.item_id!r} has {question.name} {answer.value!r}; expected "
                f"one of {', '.join(question.values)}, or nothing"
            )
        if sample.kind == "responses":
            response_id = f"{item['pair_id']}:{item['response']}"
            yield {**item, "response_id": response_id, "label": float(value)}
        else:
            yield {**item, "question": question.name, "choice": value}


def _value(text: str, question: Question) -> str | None:
    """The choice that a text means; spreadsheets write 0.50 or 0,5 for 0.5."""
    text = text.strip().removeprefix("'")
    for choice in question.choices:
        if text.casefold() in (choice.value, choice.text.casefold()):
            return choice.value
    for value in question.values:
        try:
            if float(text.replace(",", ".")) == float(value):
                return value
        except ValueError:
            return None
    return None


def _imported(
    sample: Sample, rows: Sequence[_Row], num_replaced: int, annotator: str
) -> ImportedAnnotator:
    own = [row for row in rows if row["annotator"] == annotator]
    said = [str(row.get("choice", row.get("label"))) for row in own]
    is_constant = len(said) >= _MANY_ALIKE and len(set(said)) == 1
    return ImportedAnnotator(
        annotator=annotator,
        num_answers=len(own),
        num_missing=sample.num_items * len(sample.questions) - len(own),
        num_replaced=num_replaced,
        always=said[0] if is_constant else None,
    )
