"""The benchmark tables that a study keeps: read back, each row with its results of every pair.

Needs neither a model nor its packages: what `encore benchmark` left is enough.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from encore.benchmarks.metrics import unit_credits, unit_weights, units_of
from encore.benchmarks.results import StoredResults, read_pair_results
from encore.data.study import open_study
from encore.errors import InputError

#: In a study: a folder for each model's head scores of a benchmark, and one for each table.
BENCHMARKS_DIR = "benchmarks"
RESULTS_FILE, TABLE_JSON, TABLE_MARKDOWN = "results.parquet", "table.json", "table.md"
#: What a table is made of: its key, and the model behind each row.
EVALUATION_JSON = "evaluation.json"
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A mean credit with its 95 % interval, on so many units; shares in [0, 1]."""

    num_pairs: int
    ci_low: float
    ci_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """To the table's reference on the same units, a share; ``mcnemar_p`` is None for a mean."""

    difference: float
    ci_low: float
    ci_high: float
    mcnemar_p: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRow:
    """One row of a stored table.

    Attributes:
        row_id: ``STUDY/KEY/NAME``: its own among all tables that were read together.
        study: The study, as it is called here.
        model: The backbone's name; None where no heads were weighed.
        name: As in its table.
        kind: ``scheme``, ``model`` or ``judge``.
        method: The paper's row of the same method; None where it has none.
        params: Of its scheme.
        uses_labels: Whether its weights were learnt from people's preferences.
        is_mean: Whether it is a mean over draws, whose pairs are neither right nor wrong.
        synthetic: What of it is synthetic, in words.
        notes: What a reader of its figures should know, a sentence each.
        figures: Score and interval of the headline, then of each subset, by name.
        difference: To the table's reference; None for the reference itself.
        results: What it gave every pair; None where they were not asked for, and for a mean over
            draws whose score does not follow from that
            (`encore.benchmarks.rows.TableRow.pair_results`).
    """

    row_id: str
    study: str
    model: str | None
    name: str
    kind: str
    method: str | None
    params: Mapping[str, float | str]
    uses_labels: bool
    is_mean: bool
    synthetic: tuple[str, ...]
    notes: tuple[str, ...]
    figures: Mapping[str, tuple[float, Figure]]
    difference: Difference | None
    results: StoredResults | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTable:
    """A table of one study: all rows on the same pairs.

    Attributes:
        folder: Where it lies.
        study: The study, as it is called here.
        benchmark: Name of the benchmark.
        version: Of its definition.
        headline: What its one figure is called.
        ties: What a tie was worth to the row that others are compared with.
        weighting: How subsets add up to the headline.
        digest: Of its pairs.
        is_partial: Whether pairs of the benchmark were missing.
        reference: The row that others are compared with; None without rows.
        synthetic: What of it is synthetic, in words.
        notes: What a reader should know of it as a whole, a sentence each.
        rows: In the table's order; the first is what others are compared with.
    """

    folder: Path
    study: str
    benchmark: str
    version: str
    headline: str
    ties: str
    weighting: str
    digest: str
    is_partial: bool
    reference: str | None
    synthetic: tuple[str, ...]
    notes: tuple[str, ...]
    rows: tuple[StoredRow, ...]

    @property
    def definition(self) -> tuple[str, ...]:
        """What has to be the same for rows of two tables to be compared."""
        return (
            *(self.benchmark, self.version, self.headline),
            *(self.ties, self.weighting, self.digest),
        )

    @property
    def synthetic_parts(self) -> tuple[str, ...]:
        """What is synthetic of the table or of any of its rows, each said once."""
        of_rows = (part for row in self.rows for part in row.synthetic)
        return tuple(dict.fromkeys((*self.synthetic, *of_rows)))


def read_tables(study: Path, *, label: str | None = None) -> tuple[StoredTable, ...]:
    """Every benchmark table of a study, by folder name.

    Args:
        study: Its directory.
        label: What to call it; default: its directory's name.

    Raises:
        InputError: No study, a study without a table, a table that is not that of its results.
    """
    found = table_folders(open_study(study).path)
    if not found:
        raise InputError(
            f"study {study}: no benchmark table in it; make one with `encore benchmark {study}`"
        )
    name = label or study.resolve().name
    return tuple(read_table(path, study=name) for path in found)


def table_folders(study: Path) -> tuple[Path, ...]:
    """The folders of a study's benchmark tables, by name; none where there is none."""
    return tuple(sorted(path.parent for path in (study / BENCHMARKS_DIR).glob(f"*/{TABLE_JSON}")))


def read_table(folder: Path, *, study: str, has_pairs: bool = True) -> StoredTable:
    """One table.

    Args:
        folder: Where it lies.
        study: What to call its study.
        has_pairs: Whether every row's results of every pair are read and checked too.

    Raises:
        InputError: No table, or one that is not that of its results.
    """
    found = read_pair_results(folder / RESULTS_FILE) if has_pairs else ()
    results = {one.results.name: one for one in found}
    path = folder / TABLE_JSON
    try:
        content = json.loads(path.read_bytes())
        benchmark = content["benchmark"]
        lines = [line for line in content["rows"] if line["ours"] is not None]
        called = partial(_row, content=content, study=study, key=folder.name, results=results)
        table = StoredTable(
            folder=folder,
            study=study,
            benchmark=benchmark["name"],
            ties=lines[0]["ours"]["ties"] if lines else "",
            **{name: benchmark[name] for name in ("version", "headline", "weighting", "digest")},
            is_partial=benchmark["is_partial"],
            reference=content["reference"],
            synthetic=tuple(content["synthetic"]),
            notes=tuple(content["notes"]),
            rows=tuple(map(called, lines)),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: no table of a benchmark ({type(error).__name__}); run `encore benchmark` "
            "again"
        ) from error
    if has_pairs:
        _check(table, results)
    return table


def _row(
    line: Mapping[str, Any],
    *,
    content: Mapping[str, Any],
    study: str,
    key: str,
    results: Mapping[str, StoredResults],
) -> StoredRow:
    ours = line["ours"]
    difference = ours["comparison"]
    return StoredRow(
        row_id=f"{study}/{key}/{line['name']}",
        study=study,
        model=content["model"],
        name=line["name"],
        kind=line["kind"],
        **{name: ours[name] for name in ("method", "uses_labels", "is_mean")},
        params={
            name: value if isinstance(value, str) else float(value)
            for name, value in ours["params"].items()
        },
        synthetic=tuple(ours["synthetic"]),
        notes=tuple(ours["notes"]),
        figures={
            ours["headline"]["name"]: (ours["headline"]["score"], _taken(Figure, ours["headline"])),
            **{one["subset"]: (one["accuracy"], _taken(Figure, one)) for one in ours["subsets"]},
        },
        difference=None if difference is None else _taken(Difference, difference),
        results=results.get(line["name"]),
    )


def _taken(record: Any, content: Mapping[str, Any]) -> Any:
    """A record of those of its fields that JSON has; what else stands there is for others."""
    return record(**{name: content[name] for name in record.__dataclass_fields__})


def _check(table: StoredTable, results: Mapping[str, StoredResults]) -> None:
    """Table and results are two files: a process may have died between them."""
    own = {row.name for row in table.rows}
    is_same = results.keys() <= own and all(
        row.is_mean
        if row.results is None
        else row.results.data_digest == table.digest
        and abs(_headline(row.results) - row.figures[table.headline][0]) < _ROUNDING
        for row in table.rows
    )
    if not is_same:
        raise InputError(
            f"{table.folder}: {TABLE_JSON} is not the table of {RESULTS_FILE}; run the same "
            "`encore benchmark` again, it scores nothing twice"
        )


def _headline(one: StoredResults) -> float:
    """The headline's score, recomputed from the credits."""
    units = units_of(one.subset_P, one.row_id_P)
    weight_U = unit_weights(units.subset_U, weighting=one.weighting)
    return float(weight_U @ unit_credits(one.results.credit_P, units=units))
