"""Check annotators' answers and put them in the study (`encore annotate import`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.data.annotations import ANSWERS_FILE, Sample, read_answers, read_items, read_samples
from encore.data.study import Study, changed_study
from encore.people.answer_files import Answer, read_answer_file
from encore.people.people_options import AnnotateImportConfig
from encore.people.questionnaire import CANNOT_SAY, COMMENT, Question, questions_of

#: From this number of answers on, an annotator whose answers are all equal is reported.
_MIN_EQUAL_ANSWERS = 5

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAnnotator:
    """Answers of one annotator that an import put in the study.

    Attributes:
        annotator: Name of the annotator.
        num_answers: Number of answers in the study now, without the next ones.
        num_cannot_say: Number of questions answered by "cannot say".
        num_missing: Number of questions without any answer.
        always: The answer to every item if all are equal and there are at least five, else None.
    """

    annotator: str
    num_answers: int
    num_cannot_say: int
    num_missing: int
    always: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAnswers:
    """Result of `import_answers`.

    Attributes:
        sample: The sample that the files answer.
        annotators: The imported answers of each annotator.
    """

    sample: Sample
    annotators: tuple[ImportedAnnotator, ...]


def import_answers(study: Study, config: AnnotateImportConfig) -> ImportedAnswers:
    """Check the files of annotators and put their answers in the study, all or none.

    An annotator's earlier answers are replaced; the answers of other annotators stay.

    Raises:
        InputError: A file cannot be read, belongs to another sample, or has an annotator that
            another file has too, an unknown or repeated item, or a label that is not on the scale.
    """
    files = [(path, read_answer_file(path)) for path in config.files]
    sample = _sample_of(study, files)
    items = {row["item_id"]: row for row in read_items(study, sample).to_pylist()}
    file_of: dict[str, Path] = {}
    rows: list[_Row] = []
    for path, answers in files:
        for annotator in dict.fromkeys(answer.annotator for answer in answers):
            if annotator in file_of:
                raise InputError(
                    f"annotator {annotator!r} is in {file_of[annotator]} and in {path}; "
                    "give one of them another name in its file, or import one"
                )
            file_of[annotator] = path
        rows += _answer_rows(answers, items, sample, path)
    with changed_study(study.path) as change:
        earlier = read_answers(study, sample)
        rows_after = [row for row in earlier.to_pylist() if row["annotator"] not in file_of] + rows
        rows_after.sort(key=lambda row: (row["annotator"], row["item_id"], row.get("question", "")))
        table = pa.Table.from_pylist(rows_after, schema=earlier.schema)
        pq.write_table(table, change.path(sample.path(ANSWERS_FILE)), compression="zstd")
    annotators = tuple(_imported_annotator(sample, rows, annotator) for annotator in file_of)
    return ImportedAnswers(sample=sample, annotators=annotators)


def _sample_of(study: Study, files: Sequence[tuple[Path, list[Answer]]]) -> Sample:
    """Return the sample that all files answer. Raise InputError if there are several or none."""
    sample_by_key = {sample.key: sample for sample in read_samples(study)}
    file_of = {answer.sample: path for path, answers in files for answer in answers}
    if len(file_of) > 1 or not file_of.keys() <= sample_by_key.keys():
        raise InputError(
            f"answers of {', '.join(f'sample {key} ({path})' for key, path in file_of.items())}; "
            f"expected one that study {study.path} has ({', '.join(sample_by_key) or 'none'}): "
            "import one sample at a time, into its study"
        )
    return sample_by_key[next(iter(file_of))]


def _answer_rows(
    answers: Sequence[Answer], items: Mapping[str, _Row], sample: Sample, path: Path
) -> Iterator[_Row]:
    """Yield the answers of a file as rows of the sample's schema, each with the item's comment.

    Raises:
        InputError: An answer is to an unknown item or question, repeated, or no choice.
    """
    questions = {question.name: question for question in questions_of(sample.kind, sample.scale)}
    comments = {
        (answer.annotator, answer.item_id): answer.value
        for answer in answers
        if answer.question == COMMENT
    }
    seen: set[Answer] = set()
    for answer in answers:
        if answer.question == COMMENT:
            continue
        context = f"{path}, annotator {answer.annotator!r}: item {answer.item_id!r}"
        item, question = items.get(answer.item_id), questions.get(answer.question)
        if item is None or question is None:
            raise InputError(
                f"{context}, question {answer.question!r} is not in sample {sample.key}; leave it "
                "out, or export the sample again"
            )
        if (answer_key := answer._replace(value="")) in seen:
            raise InputError(f"{context} is answered more than once; keep one answer")
        seen.add(answer_key)
        value = _choice_value(answer.value, question)
        if value is None and answer.value.strip().casefold() != CANNOT_SAY:
            raise InputError(
                f"{context} has {question.name} {answer.value!r}; expected one of "
                f"{', '.join([*dict(question.choices), CANNOT_SAY])}, or nothing"
            )
        comment = comments.get((answer.annotator, answer.item_id))
        row = {**item, "annotator": answer.annotator, "comment": comment}
        if sample.kind == "responses":
            response_id = f"{item['pair_id']}:{item['response']}"
            label = None if value is None else float(value)
            yield {**row, "response_id": response_id, "label": label}
        else:
            yield {**row, "question": question.name, "choice": value}


def _choice_value(answer_text: str, question: Question) -> str | None:
    """Return the value of the choice that a text means, None if it means none.

    Spreadsheets write 0.50 or 0,5 for 0.5.
    """
    answer_text = answer_text.strip().removeprefix("'").casefold()
    number = _number(answer_text)
    for value, text in question.choices:
        if answer_text in (value, text.casefold()) or number == _number(value) is not None:
            return value
    return None


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _imported_annotator(sample: Sample, rows: Sequence[_Row], annotator: str) -> ImportedAnnotator:
    values = [row.get("choice", row.get("label")) for row in rows if row["annotator"] == annotator]
    answers = [value for value in values if value is not None]
    num_questions = sample.num_items * len(questions_of(sample.kind, sample.scale))
    is_constant = len(answers) >= _MIN_EQUAL_ANSWERS and len(set(answers)) == 1
    return ImportedAnnotator(
        annotator=annotator,
        num_answers=len(answers),
        num_cannot_say=len(values) - len(answers),
        num_missing=num_questions - len(values),
        always=str(answers[0]) if is_constant else None,
    )
