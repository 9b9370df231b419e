"""Rate labelled responses, write the table, and compare judge and people (`encore labels`)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.core.files import atomic_path, check_writable
from encore.core.reporting import SILENT, Reporter
from encore.data.pairs import planned_pairs
from encore.data.rating_runs import RatingManifest, ratings_of
from encore.data.records import RuleSet
from encore.data.schemas import LABELS as LABELS_SCHEMA
from encore.data.schemas import PAIRS
from encore.data.study import LABELS_DIR, changed_study, is_new_study, open_study
from encore.judges import open_judge
from encore.judges.base import Judge
from encore.people.labelled_responses import LabelledRow, read_labels
from encore.people.people_options import LabelsConfig
from encore.people.propositions import rules_of_labels
from encore.people.rates_by_rule import rates_of_rows
from encore.people.rule_agreement import LabelAgreement, label_agreement
from encore.rating.rating_options import RatingRunOptions, ReplyOptions
from encore.rating.rating_run import RatingRun, run_over
from encore.runs.identity import run_key_of
from encore.runs.shard_files import run_status
from encore.runs.worker import raise_for_failed_shards, work_through

TABLE_NAME = "labels.parquet"


class LabelManifest(RatingManifest):
    """The manifest of a judge's ratings of labelled responses."""

    COMMAND: ClassVar[str] = "encore labels"


def judge_labels(
    study: Path | None,
    config: LabelsConfig,
    replies: ReplyOptions = ReplyOptions(),
    *,
    judge: Judge | None = None,
    reporter: Reporter = SILENT,
) -> LabelAgreement:
    """Compare a judge with people, rule by rule, on labelled responses.

    A judge rates every response under every rule of the table, also those without a label; rules
    that share no response are rated apart, each with its own responses. Finished shards are reused.
    A table with ratings needs no judge.

    Args:
        study: Study for labels and ratings, which need not exist; None if a table has ratings.
        config: Tables of labels, judge and rules.
        replies: The judge's server, and how long its replies are waited for.
        judge: Opened judge, which is closed at the end. Default: the judge of the config.
        reporter: Receives the progress of the judge, in ratings.

    Raises:
        InputError: A table is malformed, there are neither ratings nor a judge, a judge has no
            study to write to, or the rule set lacks a rule.
        StudyIncompleteError: Shards failed; the same call rates only these shards.
        EncoreError: The judge does not load.
    """
    rows = read_labels(config.files, unlabelled=True)
    folder: Path | None = None
    manifest: RatingManifest | None = None
    if config.judge is not None:
        rows, folder, manifest = _rated(study, rows, config, replies, judge, reporter)
    elif all(row.rating is None for row in rows):
        raise InputError(
            f"labels {config.files[0]}: no ratings in it; give --judge and, before the "
            "files, a STUDY, or give a column rating"
        )
    elif study is not None:
        folder = _labels_dir(study) / _labels_key(rows)
    table = _write_labels(rows, folder) if folder else _labels_table(rows)
    return replace(
        label_agreement(table),
        rates=tuple(rates_of_rows(rows)),
        judge=manifest.judge if manifest else None,
        table=str(folder / TABLE_NAME) if folder else None,
        synthetic=manifest.synthetic if manifest else (),
    )


def _rated(
    study: Path | None,
    rows: Sequence[LabelledRow],
    config: LabelsConfig,
    replies: ReplyOptions,
    judge: Judge | None,
    reporter: Reporter,
) -> tuple[list[LabelledRow], Path, RatingManifest]:
    """Rate the responses, in one run or in one for each group of rules that share responses.

    Return the rows with ratings, the folder for their table, and the manifest of a run.
    """
    if study is None:
        raise InputError(
            "--judge: its ratings are written to a study; name the STUDY before the files"
        )
    for row in rows:
        if row.pair is None:
            raise InputError(
                f"--judge: response {row.response_id!r} has no text to rate; give the column "
                "response"
            )
    groups = _linked_rows(rows)
    rule_sets = [
        rules_of_labels(config.rules, (row.rule_id for row in group_rows)) for group_rows in groups
    ]
    check_writable(study)
    assert config.judge is not None, "judge_labels has checked this"
    rating_of: dict[tuple[str, ...], float | None] = {}
    with contextlib.closing(judge or open_judge(config.judge, replies)) as opened:
        for group_rows, rule_set in zip(groups, rule_sets, strict=True):
            run = _finished_run(study, group_rows, config, replies, opened, rule_set, reporter)
            rating_of |= ratings_of(run_status(run.run_dir, LabelManifest), ("pair_id", "rule_id"))
            if len(groups) > 1:  # the report reads the labels of a run in the run's folder
                _write_labels(_with_ratings(group_rows, rating_of), run.run_dir)
    is_one = len(groups) == 1
    folder = run.run_dir if is_one else _labels_dir(study) / _labels_key(rows)
    return _with_ratings(rows, rating_of), folder, run.manifest


def _with_ratings(
    rows: Sequence[LabelledRow], rating_of: Mapping[tuple[str, ...], float | None]
) -> list[LabelledRow]:
    return [replace(row, rating=rating_of.get((row.content_id, row.rule_id))) for row in rows]


def _linked_rows(rows: Sequence[LabelledRow]) -> list[list[LabelledRow]]:
    """Split rows into the fewest groups that share neither a response nor a rule."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    response_I = np.unique([row.content_id for row in rows], return_inverse=True)[1]
    rule_I = np.unique([row.rule_id for row in rows], return_inverse=True)[1] + len(rows)
    links = csr_array(
        (np.ones(len(rows)), (response_I, rule_I)), shape=(2 * len(rows), 2 * len(rows))
    )
    component_I = connected_components(links, directed=False)[1][response_I].tolist()
    rows_of: dict[int, list[LabelledRow]] = {}
    for row, component in zip(rows, component_I, strict=True):
        rows_of.setdefault(component, []).append(row)
    return [*rows_of.values()]


def _finished_run(
    study: Path,
    rows: Sequence[LabelledRow],
    config: LabelsConfig,
    replies: ReplyOptions,
    judge: Judge,
    rule_set: RuleSet,
    reporter: Reporter,
) -> RatingRun:
    """Rate the responses of some rows under the rules of these rows. Return the finished run."""
    record_of = {row.content_id: dataclasses.asdict(row.pair) for row in rows if row.pair}
    pairs = pa.Table.from_pylist([*record_of.values()], schema=PAIRS)
    run = run_over(
        planned_pairs(pairs, limit=config.limit),
        config,
        RatingRunOptions(**dict(replies)),
        rule_set=rule_set,
        data_sha256=_labels_key(rows),
        folder=_labels_dir(study),
        judge=judge,
        responses=("chosen",),
        kind=LabelManifest,
    )
    report = work_through(run.job(reporter=reporter), reporter=reporter)
    reporter.finished()
    raise_for_failed_shards(run.run_dir, report.failures, num_shards=len(run.manifest.shards))
    return run


def _write_labels(rows: Sequence[LabelledRow], folder: Path) -> pa.Table:
    """Write the rows that have a label into a folder. Return their table."""
    table = _labels_table(rows)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / TABLE_NAME) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return table


def _labels_table(rows: Sequence[LabelledRow]) -> pa.Table:
    labelled_rows = [row for row in rows if not math.isnan(row.label)]
    return pa.Table.from_pylist([*map(dataclasses.asdict, labelled_rows)], schema=LABELS_SCHEMA)


def _labels_dir(study_path: Path) -> Path:
    """Return the folder of labels in a study. Create the study if it does not exist."""
    if is_new_study(study_path):
        with changed_study(study_path):
            pass
    return open_study(study_path).path / LABELS_DIR


def _labels_key(rows: Sequence[LabelledRow]) -> str:
    """Return a digest of all labels and texts, the same for every order of the rows."""
    # JSON has no NaN: a response without a label has -1.
    labels = sorted(
        (row.source, row.content_id, row.rule_id, -1.0 if math.isnan(row.label) else row.label)
        for row in rows
    )
    return run_key_of({"labels": labels})
