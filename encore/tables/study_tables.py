"""The tables of a study for SQL, as Arrow data.

They hold only pairs and shards whose digests match.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from encore.benchmarks.benchmark_table import RESULTS_FILE, read_table, table_folders
from encore.benchmarks.pair_results import PAIR_RESULTS
from encore.core.errors import InputError
from encore.data.pairs import verified_path
from encore.data.pairs_manifest import PairsManifest, kept_columns_file, pair_files
from encore.data.rating_runs import RatingStatus, status
from encore.data.schemas import PAIRS, RATINGS_EXPECTED, SET_ASIDE_FIELDS
from encore.data.study import Study
from encore.rating.rating_options import rating_settings
from encore.scoring.head_scores import (
    SYNTHETIC_MODEL,
    ScoreStatus,
    head_scores_schema,
    score_statuses,
)
from encore.tables.query_files import files_to_create
from encore.tables.study_database import FilePart, StudyTable, literal, quoted
from encore.warehouse.ratings import select_run


@dataclass(frozen=True, slots=True)
class TableDoc:
    """Description of a table.

    Attributes:
        description: Its content and its grain, for people.
        schema: Its columns.
    """

    description: str
    schema: pa.Schema


#: Tables that have the same columns as their files.
_FILE_SCHEMAS = {
    "pairs": PAIRS,
    "ratings": RATINGS_EXPECTED,
    "all_ratings": RATINGS_EXPECTED,
    "benchmark_pairs": pa.schema([("table_key", pa.string()), *PAIR_RESULTS]),
}


@cache
def table_docs() -> Mapping[str, TableDoc]:
    """Read the description of every table from `tables.toml`, in the order for people."""
    text = Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
    docs = {}
    for name, doc in tomllib.loads(text).items():
        columns = [column.partition(":") for column in doc.get("columns", "").split()]
        types = [(column, pa.type_for_alias(kind or "string")) for column, _, kind in columns]
        schema = _FILE_SCHEMAS.get(name) or pa.schema(types)
        docs[name] = TableDoc(" ".join(doc["description"].split()), schema)
    return docs


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTables:
    """Tables of one study.

    Attributes:
        study: The opened study.
        by_name: The tables of `table_docs` by name. ``ratings`` is absent if the study has several
            runs and none is chosen.
        statuses: Every rating run with its shards.
        scores: Every scoring with its shards.
        chosen: The run whose ratings are in ``ratings``. None if there is no run, or several and
            none is chosen.
    """

    study: Study
    by_name: Mapping[str, StudyTable]
    statuses: tuple[RatingStatus, ...]
    scores: tuple[ScoreStatus, ...]
    chosen: RatingStatus | None

    @property
    def views(self) -> tuple[str, ...]:
        """Return SQL definitions of the queries of `sql/` whose tables this study has."""
        files = (file for file in files_to_create() if set(file.reads) <= self.by_name.keys())
        return tuple(file.definition for file in files)

    @property
    def synthetic_parts(self) -> tuple[str, ...]:
        """Return the synthetic parts of the study, as phrases for people."""
        models = (
            f"scores {scoring.manifest.score_key}: {part}"
            for scoring in self.scores
            for part in scoring.manifest.synthetic
            if part.startswith(SYNTHETIC_MODEL)
        )
        runs = (part for status in self.statuses for part in status.manifest.synthetic)
        return (*self.study.synthetic, *runs, *models)

    def require_run(self) -> RatingStatus:
        """Return the chosen run.

        Raises:
            InputError: The study has no run, or two have most pairs and none is chosen.
        """
        return self.chosen or _chosen_run(self.study, self.statuses)


def study_tables(study: Study, *, run: str | None = None, judge: str | None = None) -> StudyTables:
    """Return the tables of a study. Files are checked now and read when a table is read.

    Args:
        study: The opened study.
        run: Unique prefix of the key of the run for ``ratings``. Without it and ``judge``, the run
            with most pairs, or none if two have most.
        judge: Judge of the run for ``ratings``, instead of ``run``.

    Raises:
        InputError: A pairs file has changed, a benchmark's table cannot be read, or the study has
            no such run or judge.
        EncoreError: A `run.json` or `score.json` is damaged.
    """
    statuses = status(study)
    scores = score_statuses(study.path)
    try:
        chosen = _chosen_run(study, statuses, run=run, judge=judge)
    except InputError:
        if run is not None or judge is not None:
            raise
        chosen = None
    benchmarks = table_folders(study.path)
    content: dict[str, Iterable[dict[str, Any]] | tuple[FilePart, ...]] = {
        "pairs": _part([verified_path(study, source) for source in study.sources], PAIRS),
        "all_ratings": _ratings_parts(statuses),
        "runs": map(_run_row, statuses),
        "rules": _rule_rows(statuses),
        "shards": _shard_rows(statuses),
        "head_scores": tuple(part for scoring in scores for part in _score_parts(scoring)),
        "benchmark_rows": _benchmark_rows(benchmarks),
        "benchmark_pairs": tuple(
            part for folder in benchmarks for part in _benchmark_parts(folder)
        ),
        "sources": map(_source_row, study.sources),
        "set_aside": _set_aside_rows(study),
        "kept_columns": tuple(part for label in study.labels for part in _kept_parts(study, label)),
    }
    if chosen is not None or not statuses:
        content["ratings"] = _ratings_parts(() if chosen is None else (chosen,))
    return StudyTables(
        study=study,
        by_name={name: _table(rows, table_docs()[name].schema) for name, rows in content.items()},
        statuses=statuses,
        scores=scores,
        chosen=chosen,
    )


def ratings_table(statuses: Sequence[RatingStatus]) -> StudyTable:
    """Return the ratings of these runs' finished shards. Files are read when the table is read."""
    return _table(_ratings_parts(statuses), RATINGS_EXPECTED)


def _table(
    content: Iterable[dict[str, Any]] | tuple[FilePart, ...], schema: pa.Schema
) -> StudyTable:
    if content and isinstance(content, tuple):
        return content
    return pa.Table.from_pylist(list(content), schema=schema)


def _part(
    paths: Sequence[Path], schema: pa.Schema, select: str = "select *"
) -> tuple[FilePart, ...]:
    """Return one part with all of the files, or no part if there are no files."""
    names = tuple(str(path.absolute()) for path in paths)
    return (FilePart(paths=names, schema=schema, select=select),) if names else ()


def _ratings_parts(statuses: Sequence[RatingStatus]) -> tuple[FilePart, ...]:
    return _part([path for status in statuses for path in status.paths], RATINGS_EXPECTED)


def _score_parts(scoring: ScoreStatus) -> tuple[FilePart, ...]:
    """Return the scores with one row per head; the files have one column per head."""
    manifest = scoring.manifest
    return _part(
        scoring.paths,
        head_scores_schema(manifest.head_ids),
        f"select {literal(manifest.score_key)} as score_key, {literal(manifest.model)} as model, "
        f"source, pair_id, subset, response, "
        f"unnest([{', '.join(map(literal, manifest.head_ids))}]) as head_id, "
        f"unnest([{', '.join(map(quoted, manifest.head_ids))}]) as score",
    )


def _kept_parts(study: Study, label: str) -> tuple[FilePart, ...]:
    """Return the further columns of a label with one row per column; the file has them beside."""
    path = study.path / kept_columns_file(label)
    if not path.is_file():
        return ()
    schema = pq.read_schema(path)
    names = schema.names[1:]
    return _part(
        [path],
        schema,
        f"select {literal(label)} as source, pair_id, "
        f"unnest([{', '.join(map(literal, names))}]) as name, "
        f"unnest([{', '.join(map(quoted, names))}]) as value",
    )


def _benchmark_parts(folder: Path) -> tuple[FilePart, ...]:
    path, select = folder / RESULTS_FILE, f"select {literal(folder.name)} as table_key, *"
    return _part([path] if path.is_file() else [], PAIR_RESULTS, select)


def _chosen_run(
    study: Study,
    statuses: Sequence[RatingStatus],
    *,
    run: str | None = None,
    judge: str | None = None,
) -> RatingStatus:
    status_by_dir = {status.run_dir: status for status in statuses}
    return status_by_dir[select_run(study.path, tuple(status_by_dir), run=run, judge=judge)]


# --- rows: a table takes the columns of its schema and ignores other keys -------------------------


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _source_row(manifest: PairsManifest) -> dict[str, Any]:
    fields = manifest.model_dump(mode="json")
    return fields | {
        "source": manifest.label,
        "is_synthetic": manifest.synthetic,
        "origins": json.dumps(fields["origins"], ensure_ascii=False),
    }


def _set_aside_rows(study: Study) -> Iterator[dict[str, Any]]:
    for label in study.labels:
        path = study.path / pair_files(label).set_aside
        if not path.is_file():  # deleted; table `sources` still counts them
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                record = json.loads(line)
                values = {name: _escaped(record[name]) for name in SET_ASIDE_FIELDS}
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path}: line {number} is not a record that was set aside ({error}); ingest "
                    "again with --replace"
                ) from error
            yield values


def _escaped(value: Any) -> Any:
    """Return text with unpaired surrogates as escapes; excerpts of broken input may have them."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _run_row(status: RatingStatus) -> dict[str, Any]:
    manifest, identity = status.manifest, status.manifest.identity
    settings = rating_settings(manifest.settings)
    return {
        **identity,  # the digests
        "run_key": manifest.run_key,
        "judge": manifest.judge,
        "rule_set": manifest.rule_set,
        "num_pairs": manifest.num_pairs,
        "judge_backend": identity["judge"].get("backend"),
        "judge_revision": identity["judge"].get("revision"),
        "num_rules": len(manifest.rules),
        "num_shards": len(status.shards),
        "num_done": status.count("done"),
        "is_complete": status.is_complete,
        "is_synthetic_judge": bool(manifest.synthetic),
        **{name: settings[name] for name in ("layout", "decode", "overlong")},
        "identity": _json(identity),
        "versions": _json(dict(manifest.versions)),
    }


def _rule_rows(statuses: Sequence[RatingStatus]) -> Iterator[dict[str, Any]]:
    for run_status in statuses:
        manifest = run_status.manifest
        for rule_index, rule in enumerate(manifest.rules):
            yield {"run_key": manifest.run_key, "place": rule_index, **rule}


def _shard_rows(statuses: Sequence[RatingStatus]) -> Iterator[dict[str, Any]]:
    for run_status in statuses:
        manifest = run_status.manifest
        for planned, state in zip(manifest.shards, run_status.shards, strict=True):
            yield {
                **state.footer,  # counts
                "run_key": manifest.run_key,
                "shard": state.index,
                "state": state.state,
                "detail": state.detail or None,
                "num_pairs": planned.num_pairs,
                "sha256": state.sha256 or None,
            }


def _benchmark_rows(folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for folder in folders:
        table = read_table(folder)
        for row_index, row in enumerate(table.rows_with_figures):
            figures, comparison = row.our_figures, row.our_figures.comparison
            synthetic = figures.synthetic or table.synthetic
            yield {
                **dict(figures),
                **asdict(figures.headline),
                **dict(table.benchmark),
                **dict(table),
                "table_key": folder.name,
                "benchmark": table.benchmark.name,
                "data_digest": table.benchmark.digest,
                "place": row_index,
                "row": row.name,
                "kind": row.kind,
                "params": _json(dict(figures.params)),
                "tau": figures.params.get("tau"),
                "k": figures.params.get("k"),
                "num_units": figures.headline.num_pairs,
                "difference": comparison and comparison.difference,  # null for the reference
                "difference_ci_low": comparison and comparison.ci_low,
                "difference_ci_high": comparison and comparison.ci_high,
                "mcnemar_p": comparison and comparison.mcnemar_p,
                "is_synthetic": bool(synthetic),
                "synthetic": "; ".join(synthetic) or None,
                "notes": "; ".join(figures.notes) or None,
            }
