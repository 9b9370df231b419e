"""Publish rated pairs as a Hugging Face data set: Parquet files and a card, in one folder.

The paper releases pairs with the ratings of both responses under every rule. So does this: one row
per pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.core.files import atomic_folder
from encore.data.records import RESPONSES
from encore.data.schemas import PAIRS
from encore.data.study import open_study
from encore.tables.data_card import data_set_card
from encore.tables.publication import refuse_occupied, run_facts
from encore.tables.study_database import StudyDatabase, literal, open_database, quoted
from encore.tables.study_tables import StudyTables, study_tables

_CARD, _DATA, _RULES = "README.md", "data", "rules"


def publish_dataset(
    study: Path, *, out: Path, run: str | None = None, judge: str | None = None, force: bool = False
) -> dict[str, Any]:
    """Write the rated pairs of one run as a folder that ``datasets.load_dataset`` reads.

    The folder appears whole or not at all. Columns: ``pair_id, source, prompt`` (messages),
    ``chosen, rejected`` (text), ``chosen_ratings, rejected_ratings`` (one field per rule; null
    where there is no valid rating). Rows are sorted by source and pair_id. Returns what `encore
    publish --json` says of it.

    Args:
        study: The study's directory.
        out: The folder to make.
        run: Which run, by a unique prefix of its key, where there are several.
        judge: The same by its judge.
        force: Replace a folder that an earlier call wrote.

    Raises:
        InputError: Not a study, no ratings, no run chosen, ratings of pairs that the study no
            longer has; something else at ``out``.
        EncoreError: A damaged `run.json`.
    """
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names or out.is_file():
        refuse_occupied("--dataset", out, is_ours=names == {_CARD, _DATA, _RULES}, force=force)
    found = study_tables(open_study(study), run=run, judge=judge)
    found.the_run()  # refused before anything is made
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        return _write(folder, found, out=out)


def _write(folder: Path, found: StudyTables, *, out: Path) -> dict[str, Any]:
    """Write into ``folder`` what is to be at ``out``."""
    manifest = found.the_run().manifest
    ratings = pa.struct([pa.field(rule_id, pa.float64()) for rule_id in manifest.rule_ids])
    rated = [pa.field(f"{response}_ratings", ratings) for response in RESPONSES]
    schema = pa.schema([*PAIRS, *rated])
    with open_database(found.tables) as database:
        num_pairs_of_source = _num_pairs_of_source(database, found)
        num_pairs = sum(num_pairs_of_source.values())
        path = _new_file(folder / _DATA)
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in database.select(_rated_pairs_query(manifest.rule_ids)):
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))
        nulls = database.fetch(
            "select rule_id, coalesce(null_reason, 'unknown') as null_reason, "
            "count(*) as num_nulls from ratings where rating is null group by all order by all"
        )
    rules = found.tables["rules"]
    assert isinstance(rules, pa.Table)
    rules = rules.filter(pc.equal(rules["run_key"], manifest.run_key)).drop_columns("run_key")
    pq.write_table(rules, _new_file(folder / _RULES), compression="zstd")
    num_unrated_pairs = sum(source.num_kept for source in found.study.sources) - num_pairs
    card = data_set_card(
        found,
        name=out.name,
        num_pairs_of_source=num_pairs_of_source,
        num_unrated_pairs=num_unrated_pairs,
        nulls=nulls.to_pylist(),
    )
    (folder / _CARD).write_text(card, encoding="utf-8")
    return {
        "path": out,
        "num_rows": num_pairs,
        "num_bytes": path.stat().st_size,
        "rule_ids": manifest.rule_ids,
        "num_unrated_pairs": num_unrated_pairs,
        **run_facts(found),
    }


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


def _new_file(folder: Path) -> Path:
    """The one file of a split, named as the hub names files."""
    folder.mkdir()
    return folder / "train-00000-of-00001.parquet"
