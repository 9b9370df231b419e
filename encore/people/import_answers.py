"""`encore annotate import` as a function: check annotators' answers, put them in the study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.data.annotations import ANSWERS_FILE, Sample, read_answers, read_items, read_samples
from encore.data.study import Study, changed_study, open_study
from encore.people.annotate_config import AnnotateImportConfig
from encore.people.answer_files import Answer, read_answer_file
from encore.people.questionnaire import Question, questions_of

#: An annotator who gave so many answers, all alike, is named.
_MANY_ALIKE = 5

_Row = dict[str, Any]


def import_answers(config: AnnotateImportConfig) -> tuple[Sample, list[_Row]]:
    """Check the files of some annotators and put their answers in the study, all or none.

    An annotator's earlier answers are replaced; those of others stay.

    Returns:
        The sample, and of each annotator: ``annotator``, the name; ``num_answers`` in the study
        now; ``num_missing``, questions without an answer; ``always``, the one answer that was
        given to every item, else None.

    Raises:
        InputError: A file that cannot be read, is of another sample, or has an annotator that
            another file has too, an unknown or doubled item, or a label that is not on the scale.
    """
    study = open_study(config.study)
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
        rows += _checked(answers, items, sample, path)
    with changed_study(study.path) as change:
        before = read_answers(study, sample)
        kept = [row for row in before.to_pylist() if row["annotator"] not in file_of] + rows
        kept.sort(key=lambda row: (row["annotator"], row["item_id"], row.get("question", "")))
        table = pa.Table.from_pylist(kept, schema=before.schema)
        pq.write_table(table, change.path(sample.path(ANSWERS_FILE)), compression="zstd")
    return sample, [_imported(sample, rows, one) for one in file_of]


def _sample_of(study: Study, files: Sequence[tuple[Path, list[Answer]]]) -> Sample:
    """The one sample that all files are of."""
    known = {sample.key: sample for sample in read_samples(study)}
    file_of = {answer.sample: path for path, answers in files for answer in answers}
    if len(file_of) > 1 or not file_of.keys() <= known.keys():
        raise InputError(
            f"answers of {', '.join(f'sample {key} ({path})' for key, path in file_of.items())}; "
            f"expected one that study {study.path} has ({', '.join(known) or 'none'}): import one "
            "sample at a time, into its study"
        )
    return known[next(iter(file_of))]


def _checked(
    answers: Sequence[Answer], items: Mapping[str, _Row], sample: Sample, path: Path
) -> Iterator[_Row]:
    """The answers of a file as rows of the sample's schema."""
    questions = {question.name: question for question in questions_of(sample.kind, sample.scale)}
    seen: set[Answer] = set()
    for answer in answers:
        where = f"{path}, annotator {answer.annotator!r}: item {answer.item_id!r}"
        item, question = items.get(answer.item_id), questions.get(answer.question)
        if item is None or question is None:
            raise InputError(
                f"{where}, question {answer.question!r} is not in sample {sample.key}; leave it "
                "out, or export the sample again"
            )
        if (place := answer._replace(value="")) in seen:
            raise InputError(f"{where} is answered more than once; keep one answer")
        seen.add(place)
        value = _value(answer.value, question)
        if value is None:
            raise InputError(
                f"{where} has {question.name} {answer.value!r}; expected one of "
                f"{', '.join(dict(question.choices))}, or nothing"
            )
        row = {**item, "annotator": answer.annotator}
        if sample.kind == "responses":
            response_id = f"{item['pair_id']}:{item['response']}"
            yield {**row, "response_id": response_id, "label": float(value)}
        else:
            yield {**row, "question": question.name, "choice": value}


def _value(said: str, question: Question) -> str | None:
    """The choice that a text means; spreadsheets write 0.50 or 0,5 for 0.5."""
    said = said.strip().removeprefix("'").casefold()
    for value, text in question.choices:
        if said in (value, text.casefold()) or _number(said) == _number(value) is not None:
            return value
    return None


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _imported(sample: Sample, rows: Sequence[_Row], annotator: str) -> _Row:
    said = [row.get("choice", row.get("label")) for row in rows if row["annotator"] == annotator]
    is_constant = len(said) >= _MANY_ALIKE and len(set(said)) == 1
    return {
        "annotator": annotator,
        "num_answers": len(said),
        "num_missing": sample.num_items * len(questions_of(sample.kind, sample.scale)) - len(said),
        "always": str(said[0]) if is_constant else None,
    }
