"""Rate labelled responses, write the table, and compare judge and people (`encore labels`)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.core.files import atomic_path, check_writable
from encore.core.reporting import SILENT, Reporter
from encore.data.pairs import planned_pairs
from encore.data.rating_runs import RatingManifest, ratings_of
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
from encore.rating.rating_run import run_over
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

    A judge rates every response under every rule of the table, also those without a label;
    finished shards are reused. A table with ratings needs no judge.

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
    labelled_rows = [row for row in rows if not math.isnan(row.label)]
    records = list(map(dataclasses.asdict, labelled_rows))
    table = pa.Table.from_pylist(records, schema=LABELS_SCHEMA)
    path = folder / TABLE_NAME if folder else None
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            pq.write_table(table, temporary, compression="zstd")
    return replace(
        label_agreement(table),
        rates=tuple(rates_of_rows(rows)),
        judge=manifest.judge if manifest else None,
        table=str(path) if path else None,
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
    """Rate the responses. Return the rows with ratings, the run's folder and its manifest."""
    if study is None:
        raise InputError(
            "--judge: its ratings are written to a study; name the STUDY before the files"
        )
    record_of = {}
    for row in rows:
        if row.pair is None:
            raise InputError(
                f"--judge: response {row.response_id!r} has no text to rate; give the column "
                "response"
            )
        record_of[row.content_id] = dataclasses.asdict(row.pair)
    rule_set = rules_of_labels(config.rules, (row.rule_id for row in rows))
    pairs = pa.Table.from_pylist([*record_of.values()], schema=PAIRS)
    check_writable(study)
    assert config.judge is not None, "judge_labels has checked this"
    with contextlib.closing(judge or open_judge(config.judge, replies)) as opened:
        run = run_over(
            planned_pairs(pairs, limit=config.limit),
            config,
            RatingRunOptions(**dict(replies)),
            rule_set=rule_set,
            data_sha256=_labels_key(rows),
            folder=_labels_dir(study),
            judge=opened,
            responses=("chosen",),
            kind=LabelManifest,
        )
        report = work_through(run.job(reporter=reporter), reporter=reporter)
        reporter.finished()
    raise_for_failed_shards(run.run_dir, report.failures, num_shards=len(run.manifest.shards))
    rating_of = ratings_of(run_status(run.run_dir, LabelManifest), ("pair_id", "rule_id"))
    rated_rows = [replace(row, rating=rating_of.get((row.content_id, row.rule_id))) for row in rows]
    return rated_rows, run.run_dir, run.manifest


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
