"""Every table of a study as Arrow data, for SQL: only pairs and shards whose digests match."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from encore.benchmarks.benchmark_table import RESULTS_FILE, read_table, table_folders
from encore.benchmarks.pair_results import PAIR_RESULTS
from encore.core.errors import InputError
from encore.data.pairs import verified_path
from encore.data.pairs_manifest import PairsManifest, pair_files
from encore.data.rating_runs import RatingStatus, status
from encore.data.schemas import PAIRS, RATINGS_EXPECTED, SET_ASIDE_FIELDS
from encore.data.study import Study
from encore.scoring.head_scores import (
    SYNTHETIC_MODEL,
    ScoreStatus,
    head_scores_schema,
    score_statuses,
)
from encore.tables.query_files import query_files
from encore.tables.study_database import FilePart, StudyTable, literal, quoted
from encore.warehouse.ratings import select_run


@dataclass(frozen=True, slots=True)
class TableDoc:
    """What a table holds: a sentence with its grain, and its columns."""

    about: str
    schema: pa.Schema


#: Tables that stand in files as they are shown.
_FILE_SCHEMAS = {
    "pairs": PAIRS,
    "ratings": RATINGS_EXPECTED,
    "all_ratings": RATINGS_EXPECTED,
    "benchmark_pairs": pa.schema([("table_key", pa.string()), *PAIR_RESULTS]),
}


@cache
def table_docs() -> Mapping[str, TableDoc]:
    """Every table of `tables.toml`, in the order to show them."""
    text = Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
    docs = {}
    for name, doc in tomllib.loads(text).items():
        columns = [column.partition(":") for column in doc.get("columns", "").split()]
        types = [(column, pa.type_for_alias(kind or "string")) for column, _, kind in columns]
        schema = _FILE_SCHEMAS.get(name) or pa.schema(types)
        docs[name] = TableDoc(" ".join(doc["about"].split()), schema)
    return docs


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTables:
    """The tables of one study.

    Attributes:
        study: The study.
        tables: By name, as in `table_docs`; ``ratings`` only where one run is chosen.
        statuses: Every run with its shards.
        scores: Every scoring with its shards.
        chosen: The run of ``ratings``; None without a run, or with several and none chosen.
    """

    study: Study
    tables: Mapping[str, StudyTable]
    statuses: tuple[RatingStatus, ...]
    scores: tuple[ScoreStatus, ...]
    chosen: RatingStatus | None

    @property
    def views(self) -> tuple[str, ...]:
        """The definition of every query of `sql/` that these tables are enough for."""
        files = (file for file in query_files() if set(file.reads) <= self.tables.keys())
        return tuple(file.definition for file in files)

    @property
    def synthetic_parts(self) -> tuple[str, ...]:
        """What of it is synthetic, in words."""
        models = (
            f"scores {found.manifest.score_key}: {part}"
            for found in self.scores
            for part in found.manifest.synthetic
            if part.startswith(SYNTHETIC_MODEL)
        )
        runs = (part for status in self.statuses for part in status.manifest.synthetic)
        return (*self.study.synthetic, *runs, *models)

    def the_run(self) -> RatingStatus:
        """The chosen run.

        Raises:
            InputError: There is none, or several and none is chosen.
        """
        return self.chosen or _chosen(self.study, self.statuses)


def study_tables(study: Study, *, run: str | None = None, judge: str | None = None) -> StudyTables:
    """The tables of a study; files are checked now and read when the tables are.

    Args:
        study: The study.
        run: The run of ``ratings``, by a unique prefix of its key, where there are several.
        judge: The same by its judge.

    Raises:
        InputError: A changed pairs file; a benchmark's table that is none; a run or judge that is
            not there.
        EncoreError: A damaged `run.json` or `score.json`.
    """
    statuses = status(study)
    scores = score_statuses(study.path)
    is_chosen = len(statuses) == 1 or run is not None or judge is not None
    chosen = _chosen(study, statuses, run=run, judge=judge) if is_chosen else None
    benchmarks = table_folders(study.path)
    content: dict[str, Iterable[dict[str, Any]] | tuple[FilePart, ...]] = {
        "pairs": _part([verified_path(study, source) for source in study.sources], PAIRS),
        "all_ratings": _ratings_parts(statuses),
        "runs": map(_run_row, statuses),
        "rules": _rule_rows(statuses),
        "shards": _shard_rows(statuses),
        "head_scores": tuple(part for found in scores for part in _score_parts(found)),
        "benchmark_rows": _benchmark_rows(benchmarks),
        "benchmark_pairs": tuple(part for one in benchmarks for part in _benchmark_parts(one)),
        "sources": map(_source_row, study.sources),
        "set_aside": _aside_rows(study),
    }
    if chosen is not None or not statuses:
        content["ratings"] = _ratings_parts(() if chosen is None else (chosen,))
    return StudyTables(
        study=study,
        tables={name: _table(rows, table_docs()[name].schema) for name, rows in content.items()},
        statuses=statuses,
        scores=scores,
        chosen=chosen,
    )


def ratings_of(statuses: Sequence[RatingStatus]) -> StudyTable:
    """The ratings of some runs, of the shards that are done; to be read when asked for."""
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
    """One part of these files; none without files."""
    names = tuple(str(path.absolute()) for path in paths)
    return (FilePart(paths=names, schema=schema, select=select),) if names else ()


def _ratings_parts(statuses: Sequence[RatingStatus]) -> tuple[FilePart, ...]:
    return _part([path for found in statuses for path in found.paths], RATINGS_EXPECTED)


def _score_parts(found: ScoreStatus) -> tuple[FilePart, ...]:
    """A row for each head, though files have a column for each."""
    manifest = found.manifest
    return _part(
        found.paths,
        head_scores_schema(manifest.head_ids),
        f"select {literal(manifest.score_key)} as score_key, {literal(manifest.model)} as model, "
        f"source, pair_id, subset, response, "
        f"unnest([{', '.join(map(literal, manifest.head_ids))}]) as head_id, "
        f"unnest([{', '.join(map(quoted, manifest.head_ids))}]) as score",
    )


def _benchmark_parts(folder: Path) -> tuple[FilePart, ...]:
    path, select = folder / RESULTS_FILE, f"select {literal(folder.name)} as table_key, *"
    return _part([path] if path.is_file() else [], PAIR_RESULTS, select)


def _chosen(study: Study, statuses: Sequence[RatingStatus], **by: str | None) -> RatingStatus:
    of_folder = {found.run_dir: found for found in statuses}
    return of_folder[select_run(study.path, tuple(of_folder), **by)]


# --- rows: a table takes the columns of its schema and passes over other keys ---------------------


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _source_row(manifest: PairsManifest) -> dict[str, Any]:
    fields = manifest.model_dump(mode="json")
    return fields | {
        "source": manifest.label,
        "is_synthetic": manifest.synthetic,
        "origins": json.dumps(fields["origins"], ensure_ascii=False),
    }


def _aside_rows(study: Study) -> Iterator[dict[str, Any]]:
    for label in study.labels:
        path = study.path / pair_files(label).set_aside
        if not path.is_file():  # `sources` counts them even where the file was deleted
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                record = json.loads(line)
                values = {name: _escaped(record[name]) for name in SET_ASIDE_FIELDS}
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path}: line {number} is no record that was set aside ({error}); ingest "
                    "again with --replace"
                ) from error
            yield values


def _escaped(value: Any) -> Any:
    """Half a surrogate pair, which an excerpt of broken input may hold, as an escape."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _run_row(found: RatingStatus) -> dict[str, Any]:
    manifest, identity = found.manifest, found.manifest.identity
    return {
        **identity,  # the digests
        "run_key": manifest.run_key,
        "judge": manifest.judge,
        "rule_set": manifest.rule_set,
        "num_pairs": manifest.num_pairs,
        "judge_backend": identity["judge"].get("backend"),
        "judge_revision": identity["judge"].get("revision"),
        "num_rules": len(manifest.rules),
        "num_shards": len(found.shards),
        "num_done": found.count("done"),
        "is_complete": found.is_complete,
        "is_synthetic_judge": bool(manifest.synthetic),
        "layout": identity.get("layout", "paper"),
        "decode": identity["decoding"].get("kind", "text"),
        "overlong": identity["plan"].get("overlong"),
        "identity": _json(identity),
        "versions": _json(dict(manifest.versions)),
    }


def _rule_rows(statuses: Sequence[RatingStatus]) -> Iterator[dict[str, Any]]:
    for found in statuses:
        for place, rule in enumerate(found.manifest.rules):
            yield {"run_key": found.manifest.run_key, "place": place, **rule}


def _shard_rows(statuses: Sequence[RatingStatus]) -> Iterator[dict[str, Any]]:
    for found in statuses:
        for planned, state in zip(found.manifest.shards, found.shards, strict=True):
            yield {
                **state.footer,  # counts
                "run_key": found.manifest.run_key,
                "shard": state.index,
                "state": state.state,
                "detail": state.detail or None,
                "num_pairs": planned.num_pairs,
                "sha256": state.sha256 or None,
            }


def _benchmark_rows(folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for folder in folders:
        table = read_table(folder)
        for place, line in enumerate(table.rows_with_figures):
            own, found = line.our_figures, line.our_figures.comparison
            synthetic = own.synthetic or table.synthetic
            yield {
                **dict(own),
                **asdict(own.headline),
                **dict(table.benchmark),
                **dict(table),
                "table_key": folder.name,
                "benchmark": table.benchmark.name,
                "data_digest": table.benchmark.digest,
                "place": place,
                "row": line.name,
                "kind": line.kind,
                "params": _json(dict(own.params)),
                "tau": own.params.get("tau"),
                "k": own.params.get("k"),
                "num_units": own.headline.num_pairs,
                "difference": found and found.difference,  # null for the reference
                "difference_ci_low": found and found.ci_low,
                "difference_ci_high": found and found.ci_high,
                "mcnemar_p": found and found.mcnemar_p,
                "is_synthetic": bool(synthetic),
                "synthetic": "; ".join(synthetic) or None,
                "notes": "; ".join(own.notes) or None,
            }
