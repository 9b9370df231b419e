"""Publish rated pairs as a Hugging Face data set: Parquet files and a card, in one folder.

As in the paper's release, each row is a pair with the ratings of both responses under every rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.core.files import atomic_folder
from encore.data.rating_runs import DOES_NOT_APPLY
from encore.data.records import RESPONSES
from encore.data.schemas import PAIRS
from encore.tables.data_card import data_set_card
from encore.tables.publication import Publication, run_facts
from encore.tables.study_database import StudyDatabase, literal, open_database, quoted
from encore.tables.study_tables import StudyTables
from encore.warehouse.queries import load_query
from encore.warehouse.rating_layouts import NOT_APPLICABLE_COLUMNS

_CARD, _DATA, _RULES = "README.md", "data", "rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDataset(Publication):
    """A published data set.

    Attributes:
        num_rows: Number of rated pairs, each of which is a row.
        rule_ids: Ids of the rules, in head order.
        num_unrated_pairs: Number of pairs of the study that the run has not rated.
    """

    num_rows: int
    rule_ids: tuple[str, ...]
    num_unrated_pairs: int


def is_data_set(path: Path) -> bool:
    """Return True for a folder that has the entries of a published data set and no other."""
    return path.is_dir() and {entry.name for entry in path.iterdir()} == {_CARD, _DATA, _RULES}


def write_data_set(out: Path, tables: StudyTables) -> PublishedDataset:
    """Write the rated pairs of the chosen run as a folder that ``datasets.load_dataset`` reads.

    Raises:
        InputError: Rated pairs are no longer in the study.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        return _write(folder, tables, out=out)


def _write(folder: Path, tables: StudyTables, *, out: Path) -> PublishedDataset:
    """Write the data set into ``folder``, which is moved to ``out`` afterwards."""
    manifest = tables.require_run().manifest
    ratings = pa.struct([pa.field(rule_id, pa.float64()) for rule_id in manifest.rule_ids])
    rating_fields = [pa.field(f"{response}_ratings", ratings) for response in RESPONSES]
    is_asked = bool(manifest.settings.get("ask_applies"))
    if is_asked:
        rating_fields += [pa.field(name, pa.list_(pa.string())) for name in NOT_APPLICABLE_COLUMNS]
    schema = pa.schema([*PAIRS, *rating_fields])
    with open_database(tables.by_name) as database:
        num_pairs_of_source = _num_pairs_of_source(database, tables)
        num_pairs = sum(num_pairs_of_source.values())
        path = _new_file(folder / _DATA)
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            query = _rated_pairs_query(manifest.rule_ids, names_not_applicable=is_asked)
            for batch in database.select(query):
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))
        nulls = database.fetch(
            "select rule_id, coalesce(null_reason, 'unknown') as null_reason, "
            "count(*) as num_nulls from ratings where rating is null group by all order by all"
        )
    rules = tables.by_name["rules"]
    assert isinstance(rules, pa.Table)
    rules = rules.filter(pc.equal(rules["run_key"], manifest.run_key)).drop_columns("run_key")
    pq.write_table(rules, _new_file(folder / _RULES), compression="zstd")
    num_unrated_pairs = sum(source.num_kept for source in tables.study.sources) - num_pairs
    card = data_set_card(
        tables,
        name=out.name,
        num_pairs_of_source=num_pairs_of_source,
        num_unrated_pairs=num_unrated_pairs,
        nulls=nulls.to_pylist(),
    )
    (folder / _CARD).write_text(card, encoding="utf-8")
    return PublishedDataset(
        path=out,
        num_bytes=path.stat().st_size,
        num_rows=num_pairs,
        rule_ids=manifest.rule_ids,
        num_unrated_pairs=num_unrated_pairs,
        **run_facts(tables),
    )


def _num_pairs_of_source(database: StudyDatabase, tables: StudyTables) -> dict[str, int]:
    """Count the rated pairs of each source.

    Raises:
        InputError: The study no longer has the text of a rated pair.
    """
    rows = database.fetch(load_query("rated_pairs")).to_pylist()
    for row in rows:
        if row["num_found"] < row["num_rated"]:
            raise InputError(
                f"study {tables.study.path}: {row['num_rated'] - row['num_found']} rated pairs of "
                f"source {row['source']!r} are no longer in it, because its pairs were "
                f"replaced after run {tables.require_run().manifest.run_key}; rate them again, or "
                "choose another --run"
            )
    return {row["source"]: row["num_rated"] for row in rows}


def _rated_pairs_query(rule_ids: Sequence[str], *, names_not_applicable: bool) -> str:
    """Return the query for all rated pairs, sorted. Grain: one row per (source, pair_id).

    Args:
        rule_ids: Ids of the rules, in head order.
        names_not_applicable: Add the ids of the rules that do not apply, for each response.
    """
    columns = {f"{name}_ratings": _ratings_struct(name, rule_ids) for name in RESPONSES}
    if names_not_applicable:
        columns |= dict(zip(NOT_APPLICABLE_COLUMNS, map(_not_applicable, RESPONSES), strict=True))
    expressions = ", ".join(f"{expression} as {name}" for name, expression in columns.items())
    return (
        "select pairs.pair_id, pairs.source, pairs.prompt, pairs.chosen, pairs.rejected, "  # noqa: S608 - rule ids are quoted
        f"{', '.join(f'rated.{name}' for name in columns)} "
        "from pairs inner join ("
        f"select source, pair_id, {expressions} from ratings group by source, pair_id"
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


def _not_applicable(response: str) -> str:
    condition = f"response = {literal(response)} and null_reason = {literal(DOES_NOT_APPLY)}"
    return f"coalesce(list(rule_id order by rule_id) filter (where {condition}), [])"


def _new_file(folder: Path) -> Path:
    """Make the folder of a split and return the path of its one file, named as on the hub."""
    folder.mkdir()
    return folder / "train-00000-of-00001.parquet"
