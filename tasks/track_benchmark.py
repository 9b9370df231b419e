"""Log a benchmark table to MLflow: a run for the study; within it trainings and a run for each row.

What is there is found by its key and left alone, so the same command, after a crash or an outage,
logs only what is missing. All figures are in the study's own files; MLflow is a way to look at
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from encore.benchmarks.results import write_pair_results
from encore.benchmarks.rows import TableRow
from encore.benchmarks.rule_table import RuleLine, rule_csv, rule_lines
from encore.benchmarks.run import BenchmarkRun
from encore.benchmarks.stored_tables import read_table
from encore.benchmarks.table import TableLine
from encore.data.pairs import labels_of, read_manifest
from encore.data.study import open_study
from encore.shards import run_key_of
from tasks import evaluation_words as words
from tasks.outbox import Figures
from tasks.track import (
    KEY_TAG,
    MlflowStore,
    TrackedRun,
    TrackingRefusedError,
    TrackingUnavailableError,
    connect,
    is_refusal,
)
from tasks.track_nested import PARENT_TAG, track_training_within

RESULTS_ARTIFACT = "results.parquet"
_ROW_ARTIFACT, _RULES_ARTIFACT, _TABLES_ARTIFACT = "row.json", "rules.csv", "tables"
#: Of one call; MLflow refuses more than 1,000.
_MOST_VALUES = 900
_CHART_PACKAGE = "matplotlib"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTable:
    """Where a table was logged.

    Attributes:
        experiment: Its name: one for each set of pairs.
        run: The study's run.
        run_ids: Of the evaluations, by the name of their row.
        num_new: Evaluations logged now; 0 where all were logged before.
    """

    experiment: str
    run: TrackedRun
    run_ids: Mapping[str, str]
    num_new: int


def track_table(
    run: BenchmarkRun,
    *,
    study: Path,
    uri: str,
    experiment: str | None = None,
    trainings: Sequence[Path] = (),
    about: Mapping[str, str] | None = None,
) -> TrackedTable:
    """Log every training and every row of ours that is not logged yet, then the table as it is.

    Args:
        run: What `encore.benchmarks.run.run_benchmark` gave.
        study: The training study.
        uri: Of the tracking store, see `tasks.tracking_uri`.
        experiment: Its name; None: the benchmark's with the digest of its pairs.
        trainings: Folders of the finished training runs behind its rows.
        about: Further tags, such as a link to the Prefect run.

    Raises:
        TrackingUnavailableError: The store does not answer; what was logged so far stays.
    """
    name = experiment or words.experiment_of(run.table)
    meanwhile = f"the table is in {run.out}, and the same command logs what is missing"
    store = connect(uri, experiment=name, meanwhile=meanwhile)
    study_name = name_of_study(study)
    with answering(store, folder=run.out), TemporaryDirectory() as scratch:
        parent = _open_study_run(store, run, study_name, about=about or {})
        job = _Job(
            store=store,
            run=run,
            study=study_name,
            parent_id=parent.run_id,
            about=about or {},
            scratch=Path(scratch),
        )
        for folder in trainings:
            track_training_within(store, folder, parent_id=parent.run_id)
        there = job.finished()
        ids = {line.name: job.log(line, there) for line in run.table.lines if line.row is not None}
        job.log_table()
        store.client.set_terminated(parent.run_id, "FINISHED")
    return TrackedTable(
        experiment=name,
        run=parent,
        run_ids=ids,
        num_new=sum(run_id not in there.values() for run_id in ids.values()),
    )


def name_of_study(study: Path) -> words.StudyName:
    """Its directory's name, and the SHA-256 over the digests of its pairs."""
    opened = open_study(study)
    digests = [[label, read_manifest(opened, label).data_digest] for label in labels_of(opened)]
    digest = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
    return words.StudyName(name=study.resolve().name, sha256=digest)


@contextlib.contextmanager
def answering(store: MlflowStore, *, folder: Path) -> Iterator[None]:
    """Turn what MLflow raises into one clear error that says where the figures are.

    Raises:
        TrackingRefusedError: MLflow finds what it was sent wrong.
        TrackingUnavailableError: Whatever else MLflow or its connection raised.
    """
    try:
        yield
    except store.errors as error:
        if is_refusal(error):
            raise TrackingRefusedError(
                f"MLflow {store.shown_uri}: it refused the evaluation "
                f"({store.in_one_line(error)}); the table is in {folder}"
            ) from error
        raise TrackingUnavailableError(
            f"MLflow {store.shown_uri}: the evaluation could not be logged "
            f"({store.in_one_line(error)}); the table is in {folder}, and the same command logs "
            "what is missing once MLflow answers"
        ) from error


def _open_study_run(
    store: MlflowStore,
    run: BenchmarkRun,
    study: words.StudyName,
    *,
    about: Mapping[str, str],
) -> TrackedRun:
    params = words.study_params(run.table, study=study)
    store.open_run(
        run_key_of({words.KIND_TAG: words.STUDY_KIND, **params}),
        params=params,
        tags={
            "mlflow.runName": study.name,
            words.KIND_TAG: words.STUDY_KIND,
            "encore.study": study.name,
            **words.table_tags(run.table, about=about),
        },
        begins_anew=False,
        is_over=False,
    )
    return store.tracked(num_waiting=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One table on its way into a store."""

    store: MlflowStore
    run: BenchmarkRun
    study: words.StudyName
    parent_id: str
    about: Mapping[str, str]
    scratch: Path

    def finished(self) -> dict[str, str]:
        """Ids of the study's evaluations that are wholly logged, by key."""
        client = self.store.client
        experiment_id = client.get_run(self.parent_id).info.experiment_id
        found: dict[str, str] = {}
        token: str | None = None
        while True:
            page = client.search_runs(
                [experiment_id],
                filter_string=f"tags.`{PARENT_TAG}` = '{self.parent_id}'",
                page_token=token,
            )
            found |= {
                one.data.tags[KEY_TAG]: one.info.run_id
                for one in page
                if one.info.status == "FINISHED" and KEY_TAG in one.data.tags
            }
            token = page.token
            if not token:
                return found

    def log(self, line: TableLine, there: Mapping[str, str]) -> str:
        """The id of a row's evaluation run, logged now unless it is there."""
        row = line.row
        assert row is not None, "only rows of ours are logged"
        params = words.evaluation_params(row, self.run, study=self.study)
        key = words.evaluation_key(line, params, table=self.run.table, reference=self._reference())
        if key in there:
            return there[key]
        tags = words.evaluation_tags(row, self.run, about=self.about)
        self.store.open_run(
            key,
            params=params,
            tags={**tags, PARENT_TAG: self.parent_id},
            begins_anew=False,
            is_over=False,
        )
        run_id = self.store.tracked(num_waiting=0).run_id
        self._send_metrics(line, run_id)
        for path in (*self._results_file(row), self._row_file(line), *self._rule_file(row)):
            self.store.client.log_artifact(run_id, str(path))
        self.store.client.set_terminated(run_id, "FINISHED")
        return run_id

    def log_table(self) -> None:
        """The whole table and its figures, in place of those of an earlier call.

        Each table of the study has a folder: there is one for each model whose heads are weighed.
        """
        files = [self.run.json_path, self.run.markdown_path, self.run.results_path]
        folder = f"{_TABLES_ARTIFACT}/{self.run.out.resolve().name}"
        for path in (*files, *self._rule_file(None), *self._charts()):
            self.store.client.log_artifact(self.parent_id, str(path), folder)

    def _send_metrics(self, line: TableLine, run_id: str) -> None:
        """Those that a process that died did not log; MLflow cannot take one back."""
        there = self.store.client.get_run(run_id).data.metrics
        values = {
            name: value
            for name, value in words.evaluation_metrics(line, self.run.table).items()
            if name not in there
        }
        now_ms = time.time_ns() // 1_000_000
        items = list(values.items())
        for start in range(0, len(items), _MOST_VALUES):
            part = dict(items[start : start + _MOST_VALUES])
            self.store.send([Figures(step=0, timestamp_ms=now_ms, values=part)])

    def _reference(self) -> TableRow:
        return next(line.row for line in self.run.table.lines if line.row is not None)

    def _results_file(self, row: TableRow) -> Iterator[Path]:
        """Every pair under this row alone; nothing for a row that has no such results."""
        results = row.pair_results
        if results is not None:
            path = self.scratch / RESULTS_ARTIFACT
            yield write_pair_results(path, [results], pairs=self.run.table.pairs)

    def _row_file(self, line: TableLine) -> Path:
        """The row as the table's JSON has it: weights by rule, intervals, the paper's figures."""
        rows = {one["name"]: one for one in self.run.table.as_dict()["rows"] if one["ours"]}
        path = self.scratch / _ROW_ARTIFACT
        path.write_text(json.dumps(rows[line.name], indent=2, ensure_ascii=False), encoding="utf-8")
        return path

    def _rule_file(self, row: TableRow | None) -> Iterator[Path]:
        """Every rule with this row's weights, or with those of all; nothing without heads."""
        run = self.run
        if run.heads is None or (row is not None and row.vector is None):
            return
        rows = [line.row for line in run.table.lines if line.row is not None]
        found = {one.name: words.weights_of(one) for one in rows}
        weights = {f"weight: {name}": one for name, one in found.items() if one is not None}
        if row is not None:
            weights = {"weight": weights[f"weight: {row.name}"]}
        path = self.scratch / _RULES_ARTIFACT
        path.write_text(rule_csv(self._rule_lines(), weights=weights), encoding="utf-8")
        yield path

    def _rule_lines(self) -> tuple[RuleLine, ...]:
        heads = self.run.heads
        assert heads is not None, "a run without heads has no rules"
        return rule_lines(self.run.rules, scores=heads.scores, pairs=self.run.table.pairs)

    def _charts(self) -> Iterator[Path]:
        """Every row with its interval; nothing where there is no Matplotlib."""
        try:
            from encore.report.drawing import draw_chart
            from encore.report.interval_charts import interval_chart

            table = read_table(self.run.out, study="", has_pairs=False)
            mark = f"Synthetic: {', '.join(table.synthetic)}" if table.synthetic else None
            chart = interval_chart(table, name="benchmark-intervals")
            drawn = draw_chart(chart, mark=mark)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != _CHART_PACKAGE:
                raise
            return
        for suffix, content in (("png", drawn.png), ("svg", drawn.svg)):
            path = self.scratch / f"{chart.name}.{suffix}"
            path.write_bytes(content)
            yield path
