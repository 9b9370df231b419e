"""Every table of a study as Arrow data, for SQL: only pairs and shards whose digests match."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from encore.benchmarks.stored_tables import table_folders
from encore.data.pairs import PairsManifest, labels_of, pair_files, read_manifest, verified_path
from encore.data.study import Study
from encore.errors import InputError
from encore.query.arrow_files import ArrowTable, table_of_files
from encore.query.benchmark_tables import (
    BENCHMARK_PAIRS,
    BENCHMARK_ROWS,
    benchmark_pairs_table,
    benchmark_rows_table,
)
from encore.query.head_scores import HEAD_SCORES, LongScores, head_scores_table
from encore.rating_runs import RatingStatus, describe_run, status
from encore.schemas import PAIRS, RATINGS, SET_ASIDE_FIELDS
from encore.scoring.score_files import SYNTHETIC_MODEL, ScoreStatus, list_scores, score_status
from encore.synthetic import is_synthetic_judge, is_synthetic_source, synthetic_parts

SOURCES = pa.schema(
    [
        *((name, pa.string()) for name in ("source", "data_digest", "parquet_sha256")),
        *(
            (name, pa.int64())
            for name in ("num_read", "num_kept", "num_duplicates", "num_set_aside")
        ),
        ("num_contradicting", pa.int64()),
        ("is_synthetic", pa.bool_()),
        ("encore_version", pa.string()),
        ("origins", pa.string()),
    ]
)
SET_ASIDE = pa.schema(
    [(name, pa.int64() if name == "record" else pa.string()) for name in SET_ASIDE_FIELDS]
)
RUNS = pa.schema(
    [
        *((name, pa.string()) for name in ("run_key", "judge", "judge_backend", "judge_revision")),
        ("rule_set", pa.string()),
        *((name, pa.int64()) for name in ("num_rules", "num_pairs", "num_shards", "num_done")),
        ("is_complete", pa.bool_()),
        ("is_synthetic_judge", pa.bool_()),
        ("overlong", pa.string()),
        *((name, pa.string()) for name in ("data_sha256", "rules_sha256", "prompt_sha256")),
        *((name, pa.string()) for name in ("identity", "versions")),
    ]
)
RULES = pa.schema(
    [
        ("run_key", pa.string()),
        ("place", pa.int64()),
        *((name, pa.string()) for name in ("rule_id", "title", "description")),
        *((name, pa.string()) for name in ("preference_rule", "rating_rule")),
    ]
)
SHARDS = pa.schema(
    [
        ("run_key", pa.string()),
        ("shard", pa.int64()),
        ("state", pa.string()),
        ("detail", pa.string()),
        *((name, pa.int64()) for name in ("num_pairs", "num_ratings", "num_nulls")),
        ("sha256", pa.string()),
    ]
)

#: What can be shown to SQL under a name.
StudyTable: TypeAlias = ArrowTable | LongScores


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDoc:
    """What a table holds: a sentence with its grain, and its columns."""

    about: str
    schema: pa.Schema


#: Every table, in the order to show them.
TABLE_DOCS: Mapping[str, TableDoc] = {
    "pairs": TableDoc(
        about="The preference pairs. One row per (source, pair_id).",
        schema=PAIRS,
    ),
    "ratings": TableDoc(
        about="The ratings of one run, which --run or --judge chooses where there are several. "
        "One row per (source, pair_id, response, rule_id); rating is null where there is none.",
        schema=RATINGS,
    ),
    "all_ratings": TableDoc(
        about="The ratings of all runs. One row per (run_key, source, pair_id, response, rule_id).",
        schema=RATINGS,
    ),
    "runs": TableDoc(
        about="Judge, plan and digests of every run; identity (JSON) is what its key is a hash of. "
        "One row per run_key.",
        schema=RUNS,
    ),
    "rules": TableDoc(
        about="The rules' texts as each run asked them, place being their order. "
        "One row per (run_key, rule_id).",
        schema=RULES,
    ),
    "shards": TableDoc(
        about="Every planned shard, checked now: done, missing, damaged or failed. Only the "
        "ratings of done ones are in the other tables. One row per (run_key, shard).",
        schema=SHARDS,
    ),
    "head_scores": TableDoc(
        about="What reward models score: raw, centred scores of every scoring (`encore score`). "
        "One row per (score_key, source, pair_id, response, head_id).",
        schema=HEAD_SCORES,
    ),
    "benchmark_rows": TableDoc(
        about="The tables of `encore benchmark`, shares in [0, 1]: a row's score with its 95 % "
        "interval, its difference to the reference on the same pairs, what is synthetic or "
        "partial. One row per (table_key, row).",
        schema=BENCHMARK_ROWS,
    ),
    "benchmark_pairs": TableDoc(
        about="What each of these rows gave every pair: credit, and rewards where it has them. "
        "One row per (table_key, row, subset, row_id, pair_id).",
        schema=BENCHMARK_PAIRS,
    ),
    "sources": TableDoc(
        about="What was read of each source, and from where (origins, JSON). One row per source.",
        schema=SOURCES,
    ),
    "set_aside": TableDoc(
        about="Input records that are no preference pair, with the reason. One row per record.",
        schema=SET_ASIDE,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTables:
    """The tables of one study.

    Attributes:
        study: The study.
        tables: By name, as in `TABLE_DOCS`; ``ratings`` only where one run is chosen.
        statuses: Every run with its shards.
        scores: Every scoring with its shards.
        sources: What was recorded of each source.
        chosen: The run of ``ratings``; None without a run, or with several and none chosen.
    """

    study: Study
    tables: Mapping[str, StudyTable]
    statuses: tuple[RatingStatus, ...]
    scores: tuple[ScoreStatus, ...]
    sources: tuple[PairsManifest, ...]
    chosen: RatingStatus | None

    @property
    def synthetic_parts(self) -> tuple[str, ...]:
        """What of it is synthetic, in words."""
        models = (
            f"scores {found.manifest.score_key}: {part}"
            for found in self.scores
            for part in found.manifest.synthetic
            if part.startswith(SYNTHETIC_MODEL)
        )
        runs = (found.manifest for found in self.statuses)
        return (*synthetic_parts(self.sources, runs), *models)

    @property
    def choice(self) -> str:
        """The runs to choose from, for a message."""
        return "; ".join(describe_run(found.run_dir) for found in self.statuses)

    def the_run(self) -> RatingStatus:
        """The chosen run.

        Raises:
            InputError: There is none, or several and none is chosen.
        """
        if self.chosen is not None:
            return self.chosen
        if not self.statuses:
            raise InputError(f"study {self.study.path}: no ratings yet; run `encore rate` first")
        raise InputError(
            f"study {self.study.path}: {len(self.statuses)} runs; choose one with --run KEY or "
            f"--judge NAME: {self.choice}"
        )


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
    statuses = status(study.path)
    scores = tuple(score_status(folder) for folder in list_scores(study.path))
    chosen = _chosen(study, statuses, run=run, judge=judge)
    labels = labels_of(study)
    benchmarks = table_folders(study.path)
    sources = tuple(read_manifest(study, label) for label in labels)
    tables: dict[str, StudyTable] = {
        "pairs": table_of_files([verified_path(study, label) for label in labels], PAIRS),
        "all_ratings": ratings_of(statuses),
        "runs": pa.Table.from_pylist([_run_row(found) for found in statuses], schema=RUNS),
        "rules": pa.Table.from_pylist(list(_rule_rows(statuses)), schema=RULES),
        "shards": pa.Table.from_pylist(list(_shard_rows(statuses)), schema=SHARDS),
        "head_scores": head_scores_table(scores),
        "benchmark_rows": benchmark_rows_table(benchmarks),
        "benchmark_pairs": benchmark_pairs_table(benchmarks),
        "sources": pa.Table.from_pylist([_source_row(one) for one in sources], schema=SOURCES),
        "set_aside": pa.Table.from_pylist(list(_aside_rows(study, labels)), schema=SET_ASIDE),
    }
    if chosen is not None or not statuses:
        tables["ratings"] = ratings_of(() if chosen is None else (chosen,))
    return StudyTables(
        study=study,
        tables=tables,
        statuses=statuses,
        scores=scores,
        sources=sources,
        chosen=chosen,
    )


def _chosen(
    study: Study, statuses: Sequence[RatingStatus], *, run: str | None, judge: str | None
) -> RatingStatus | None:
    found = [
        one
        for one in statuses
        if one.manifest.run_key.startswith(run or "") and judge in (None, one.manifest.judge)
    ]
    is_asked = run is not None or judge is not None
    if is_asked and len(found) != 1:
        listing = "; ".join(describe_run(one.run_dir) for one in statuses) or "none"
        asked = " ".join(
            f"--{name} {value!r}"
            for name, value in (("run", run), ("judge", judge))
            if value is not None
        )
        raise InputError(
            f"study {study.path}: {len(found) or 'no'} runs match {asked}; expected one of: "
            f"{listing}"
        )
    return found[0] if len(found) == 1 else None


def ratings_of(statuses: Sequence[RatingStatus]) -> ArrowTable:
    """The ratings of some runs, of the shards that are done; to be read when asked for."""
    return table_of_files([path for found in statuses for path in found.paths], RATINGS)


def _source_row(manifest: PairsManifest) -> dict[str, Any]:
    fields = manifest.model_dump(mode="json", exclude={"label", "origins", "set_aside_by_reason"})
    origins = [origin.model_dump(mode="json") for origin in manifest.origins]
    return fields | {
        "source": manifest.label,
        "is_synthetic": is_synthetic_source(manifest),
        "origins": json.dumps(origins, ensure_ascii=False),
    }


def _aside_rows(study: Study, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    for label in labels:
        path = study.path / pair_files(label).set_aside
        if path.is_file():  # what was counted stands in `sources` even where the file was deleted
            yield from _json_lines(path)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                yield {name: _storable(record[name]) for name in SET_ASIDE_FIELDS}
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path}: line {number} is no record that was set aside ({error}); ingest "
                    "again with --replace"
                ) from error


def _storable(value: Any) -> Any:
    """Half a surrogate pair, which an excerpt of broken input may hold, as an escape."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", errors="backslashreplace").decode()


def _run_row(found: RatingStatus) -> dict[str, Any]:
    manifest, identity = found.manifest, found.manifest.identity
    judge = identity["judge"]
    return {
        "run_key": manifest.run_key,
        "judge": manifest.judge,
        "judge_backend": judge.get("backend"),
        "judge_revision": judge.get("revision"),
        "rule_set": manifest.rule_set,
        "num_rules": len(manifest.rules),
        "num_pairs": manifest.num_pairs,
        "num_shards": len(found.shards),
        "num_done": found.count("done"),
        "is_complete": found.is_complete,
        "is_synthetic_judge": is_synthetic_judge(manifest),
        "overlong": identity["plan"].get("overlong"),
        "data_sha256": identity.get("data_sha256"),
        "rules_sha256": identity["rules_sha256"],
        "prompt_sha256": identity.get("prompt_sha256"),
        "identity": json.dumps(identity, ensure_ascii=False, sort_keys=True),
        "versions": json.dumps(dict(manifest.versions), ensure_ascii=False, sort_keys=True),
    }


def _rule_rows(statuses: Sequence[RatingStatus]) -> Iterator[dict[str, Any]]:
    for found in statuses:
        for place, rule in enumerate(found.manifest.rules):
            yield {"run_key": found.manifest.run_key, "place": place, **rule}


def _shard_rows(statuses: Sequence[RatingStatus]) -> Iterator[dict[str, Any]]:
    for found in statuses:
        for planned, state in zip(found.manifest.shards, found.shards, strict=True):
            is_done = state.state == "done"
            yield {
                "run_key": found.manifest.run_key,
                "shard": state.index,
                "state": state.state,
                "detail": state.detail or None,
                "num_pairs": planned.num_pairs,
                "num_ratings": state.num_ratings if is_done else None,
                "num_nulls": state.num_nulls if is_done else None,
                "sha256": state.sha256 or None,
            }
