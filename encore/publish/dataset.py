"""Publish rated pairs as a Hugging Face data set: Parquet files and a card, in one folder.

The paper releases pairs with the ratings of both responses under every rule. So does this: one row
per pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from encore.data.study import open_study
from encore.errors import InputError
from encore.files import atomic_folder
from encore.publish.card import CardFacts, data_set_card
from encore.publish.folder import refuse_occupied
from encore.query.query_files import query_file
from encore.query.study_database import StudyDatabase, literal, open_database, quoted
from encore.query.study_tables import StudyTables, study_tables
from encore.schemas import MESSAGE

DEFAULT_ROWS_PER_FILE = 100_000

_CARD, _DATA, _RULES = "README.md", "data", "rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDataset:
    """A written data set folder.

    Attributes:
        path: The folder.
        num_rows: Pairs.
        num_files: Parquet files of pairs.
        num_bytes: Their size.
        rule_ids: The rules, in order: the fields of both rating columns.
        run_key: The run the ratings are of.
        synthetic_parts: What of it is synthetic, in words.
        num_unrated_pairs: Pairs of the study that the run has not rated; they are not in it.
        num_shards: Shards of the run's plan.
        num_missing_shards: Those that are not in it.
    """

    path: Path
    num_rows: int
    num_files: int
    num_bytes: int
    rule_ids: tuple[str, ...]
    run_key: str
    synthetic_parts: tuple[str, ...]
    num_unrated_pairs: int
    num_shards: int
    num_missing_shards: int

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore publish --json``, part ``dataset``."""
        return {
            "path": str(self.path),
            "num_rows": self.num_rows,
            "num_files": self.num_files,
            "num_bytes": self.num_bytes,
            "rule_ids": list(self.rule_ids),
            "run_key": self.run_key,
            "is_synthetic": bool(self.synthetic_parts),
            "synthetic_parts": list(self.synthetic_parts),
            "num_unrated_pairs": self.num_unrated_pairs,
            "num_shards": self.num_shards,
            "num_missing_shards": self.num_missing_shards,
        }


def publish_dataset(
    study: Path,
    *,
    out: Path,
    run: str | None = None,
    judge: str | None = None,
    force: bool = False,
    rows_per_file: int = DEFAULT_ROWS_PER_FILE,
) -> PublishedDataset:
    """Write the rated pairs of one run as a folder that ``datasets.load_dataset`` reads.

    The folder appears whole or not at all. Columns: ``pair_id, source, prompt`` (messages),
    ``chosen, rejected`` (text), ``chosen_ratings, rejected_ratings`` (one field per rule; null
    where there is no valid rating). Rows are sorted by source and pair_id.

    Args:
        study: The study's directory.
        out: The folder to make.
        run: Which run, by a unique prefix of its key, where there are several.
        judge: The same by its judge.
        force: Replace a folder that an earlier call wrote.
        rows_per_file: Pairs in each Parquet file.

    Raises:
        InputError: Not a study, no ratings, no run chosen, ratings of pairs that the study no
            longer has; something else at ``out``.
        EncoreError: A damaged `run.json`.
    """
    refuse_occupied(out, ours=(_CARD, _DATA, _RULES), force=force)
    found = study_tables(open_study(study), run=run, judge=judge)
    status = found.the_run()
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        paths, facts = _write(folder, found, name=out.name, rows_per_file=rows_per_file)
    return PublishedDataset(
        path=out,
        num_rows=facts.num_pairs,
        num_files=len(paths),
        num_bytes=facts.num_file_bytes,
        rule_ids=status.manifest.rule_ids,
        run_key=status.manifest.run_key,
        synthetic_parts=found.synthetic_parts,
        num_unrated_pairs=facts.num_unrated_pairs,
        num_shards=len(status.shards),
        num_missing_shards=len(status.shards) - status.count("done"),
    )


def pair_schema(rule_ids: Sequence[str]) -> pa.Schema:
    """Schema of the data set's rows under some rules."""
    ratings = pa.struct([pa.field(rule_id, pa.float64()) for rule_id in rule_ids])
    return pa.schema(
        [
            pa.field("pair_id", pa.string()),
            pa.field("source", pa.string()),
            pa.field("prompt", pa.list_(MESSAGE)),
            pa.field("chosen", pa.string()),
            pa.field("rejected", pa.string()),
            pa.field("chosen_ratings", ratings),
            pa.field("rejected_ratings", ratings),
        ]
    )


def _write(
    folder: Path, found: StudyTables, *, name: str, rows_per_file: int
) -> tuple[list[Path], CardFacts]:
    manifest = found.the_run().manifest
    schema = pair_schema(manifest.rule_ids)
    with open_database(found.tables) as database:
        num_pairs_of_source = _num_pairs_of_source(database, found)
        num_files = max(1, -(-sum(num_pairs_of_source.values()) // rows_per_file))
        paths = _file_paths(folder / _DATA, num_files)
        batches = database.select(_rated_pairs_query(manifest.rule_ids))
        num_memory_bytes = _write_files(batches, paths, schema, rows_per_file=rows_per_file)
        nulls = _nulls(database, manifest.run_key)
    _write_rules(_file_paths(folder / _RULES, 1)[0], found)
    facts = CardFacts(
        name=name,
        found=found,
        schema=schema,
        num_pairs_of_source=num_pairs_of_source,
        num_file_bytes=sum(path.stat().st_size for path in paths),
        num_memory_bytes=num_memory_bytes,
        nulls=nulls,
    )
    (folder / _CARD).write_text(str(data_set_card(facts)), encoding="utf-8")
    return paths, facts


def _num_pairs_of_source(database: StudyDatabase, found: StudyTables) -> dict[str, int]:
    """Rated pairs of each source.

    Raises:
        InputError: The study no longer has the text of some.
    """
    rows = database.fetch(
        "select rated.source, count(*) as num_rated, count(pairs.pair_id) as num_found "
        "from (select distinct source, pair_id from ratings) as rated "
        "left join pairs on pairs.source = rated.source and pairs.pair_id = rated.pair_id "
        "group by rated.source order by rated.source"
    ).to_pylist()
    for row in rows:
        if row["num_found"] < row["num_rated"]:
            raise InputError(
                f"study {found.study.path}: {row['num_rated'] - row['num_found']} rated pairs of "
                f"source {row['source']!r} are no longer in it, the pairs were replaced after run "
                f"{found.the_run().manifest.run_key}; rate them again, or choose another --run"
            )
    return {row["source"]: row["num_rated"] for row in rows}


def _rated_pairs_query(rule_ids: Sequence[str]) -> str:
    """Every rated pair with its ratings side by side; one row per (source, pair_id), sorted."""
    return (
        "select pairs.pair_id, pairs.source, pairs.prompt, pairs.chosen, pairs.rejected, "  # noqa: S608 - rule ids are quoted
        "rated.chosen_ratings, rated.rejected_ratings "
        "from pairs inner join ("
        "select source, pair_id, "
        f"{_ratings_struct('chosen', rule_ids)} as chosen_ratings, "
        f"{_ratings_struct('rejected', rule_ids)} as rejected_ratings "
        "from ratings group by source, pair_id"
        ") as rated on pairs.source = rated.source and pairs.pair_id = rated.pair_id "
        "order by pairs.source, pairs.pair_id"
    )


def _ratings_struct(response: str, rule_ids: Sequence[str]) -> str:
    fields = (
        f"{quoted(rule_id)} := max(rating) filter "
        f"(where response = {literal(response)} and rule_id = {literal(rule_id)})"
        for rule_id in rule_ids
    )
    return f"struct_pack({', '.join(fields)})"


def _file_paths(folder: Path, num_files: int) -> list[Path]:
    folder.mkdir()
    return [folder / f"train-{index:05d}-of-{num_files:05d}.parquet" for index in range(num_files)]


def _write_files(
    batches: Iterator[pa.RecordBatch],
    paths: Sequence[Path],
    schema: pa.Schema,
    *,
    rows_per_file: int,
) -> int:
    """Fill files one after another; returns the bytes that the rows take in memory."""
    num_bytes = 0
    rest: pa.Table = schema.empty_table()
    for path in paths:
        num_left = rows_per_file
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            while num_left:
                if rest.num_rows == 0:
                    batch = next(batches, None)
                    if batch is None:
                        break
                    rest = pa.Table.from_batches([batch]).cast(schema)
                    num_bytes += rest.nbytes
                head = rest.slice(0, num_left)
                rest = rest.slice(head.num_rows)
                num_left -= head.num_rows
                writer.write_table(head)
    return num_bytes


def _write_rules(path: Path, found: StudyTables) -> None:
    run_key = found.the_run().manifest.run_key
    rules = found.tables["rules"]
    assert isinstance(rules, pa.Table)
    rows = [row for row in rules.to_pylist() if row["run_key"] == run_key]
    schema = rules.schema.remove(rules.schema.get_field_index("run_key"))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")


def _nulls(database: StudyDatabase, run_key: str) -> tuple[tuple[str, str, int], ...]:
    rows = database.fetch(
        "select rule_id, null_reason, sum(num_nulls)::bigint as num_nulls "  # noqa: S608 - our own text
        f"from ({query_file('null_ratings').text}) where run_key = {literal(run_key)} "
        "group by rule_id, null_reason order by rule_id, null_reason"
    ).to_pylist()
    return tuple(
        (row["rule_id"], row["null_reason"] or "unknown", row["num_nulls"]) for row in rows
    )
