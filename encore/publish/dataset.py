"""Publish rated pairs as a Hugging Face data set: Parquet files and a card, in one folder.

The paper releases pairs with the ratings of both responses under every rule. So does this: one row
per pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.data.records import RESPONSES
from encore.data.study import open_study
from encore.errors import InputError
from encore.files import atomic_folder
from encore.publish.data_card import CardFacts, data_set_card
from encore.publish.publication import Publication, run_facts
from encore.query.query_files import query_file
from encore.query.study_database import StudyDatabase, literal, open_database, quoted
from encore.query.study_tables import StudyTables, study_tables
from encore.schemas import PAIRS

DEFAULT_ROWS_PER_FILE = 100_000

_CARD, _DATA, _RULES = "README.md", "data", "rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDataset(Publication):
    """A written data set folder.

    Attributes:
        num_rows: Pairs.
        num_files: Parquet files of pairs.
        rule_ids: The rules, in order: the fields of both rating columns.
        num_unrated_pairs: Pairs of the study that the run has not rated; they are not in it.
    """

    num_rows: int
    num_files: int
    rule_ids: tuple[str, ...]
    num_unrated_pairs: int


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
    _refuse_occupied(out, force=force)
    found = study_tables(open_study(study), run=run, judge=judge)
    of_run = run_facts(found)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        num_files, facts = _write(folder, found, name=out.name, rows_per_file=rows_per_file)
    return PublishedDataset(
        path=out,
        num_rows=facts.num_pairs,
        num_files=num_files,
        num_bytes=facts.num_file_bytes,
        rule_ids=found.the_run().manifest.rule_ids,
        num_unrated_pairs=facts.num_unrated_pairs,
        **of_run,
    )


def _refuse_occupied(out: Path, *, force: bool) -> None:
    """Refuse a place that holds anything but a folder that an earlier call wrote."""
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"--dataset {out}: there is a file of this name; name a new folder")
    names = {path.name for path in out.iterdir()}
    if names and names != {_CARD, _DATA, _RULES}:
        raise InputError(
            f"--dataset {out}: this folder has other things in it; name a new or empty one"
        )
    if names and not force:
        raise InputError(
            f"--dataset {out}: there is a data set already; name another folder, or give --force"
        )


def _write(
    folder: Path, found: StudyTables, *, name: str, rows_per_file: int
) -> tuple[int, CardFacts]:
    """Write everything; returns the number of files of pairs, and what the card says."""
    manifest = found.the_run().manifest
    ratings = pa.struct([pa.field(rule_id, pa.float64()) for rule_id in manifest.rule_ids])
    rated = [pa.field(f"{response}_ratings", ratings) for response in RESPONSES]
    schema = pa.schema([*PAIRS, *rated])
    with open_database(found.tables) as database:
        num_pairs_of_source = _num_pairs_of_source(database, found)
        num_files = max(1, -(-sum(num_pairs_of_source.values()) // rows_per_file))
        paths = _file_paths(folder / _DATA, num_files)
        batches = database.select(_rated_pairs_query(manifest.rule_ids))
        num_memory_bytes = _write_files(batches, paths, schema, rows_per_file=rows_per_file)
        nulls = database.fetch(
            "select rule_id, coalesce(null_reason, 'unknown'), sum(num_nulls)::bigint "  # noqa: S608 - our own text
            f"from ({query_file('null_ratings').text}) where run_key = $run_key "
            "group by all order by all",
            run_key=manifest.run_key,
        )
    rules = found.tables["rules"]
    assert isinstance(rules, pa.Table)
    rules = rules.filter(pc.equal(rules["run_key"], manifest.run_key)).drop_columns("run_key")
    [path] = _file_paths(folder / _RULES, 1)
    pq.write_table(rules, path, compression="zstd")
    facts = CardFacts(
        name=name,
        found=found,
        schema=schema,
        num_pairs_of_source=num_pairs_of_source,
        num_file_bytes=sum(path.stat().st_size for path in paths),
        num_memory_bytes=num_memory_bytes,
        nulls=tuple(tuple(row.values()) for row in nulls.to_pylist()),
    )
    (folder / _CARD).write_text(str(data_set_card(facts)), encoding="utf-8")
    return num_files, facts


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
    batches: Iterable[pa.RecordBatch],
    paths: Sequence[Path],
    schema: pa.Schema,
    *,
    rows_per_file: int,
) -> int:
    """Fill files one after another; returns the bytes that the rows take in memory."""
    num_bytes = 0
    rest = iter(batches)
    batch = next(rest, None)
    for path in paths:
        num_left = rows_per_file
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            while batch is not None and num_left:
                piece = pa.Table.from_batches([batch.slice(0, num_left)]).cast(schema)
                writer.write_table(piece)
                num_bytes += piece.nbytes
                num_left -= piece.num_rows
                batch = batch.slice(piece.num_rows)
                if not batch.num_rows:
                    batch = next(rest, None)
    return num_bytes
