"""`encore compare`: benchmark tables of studies side by side, from their own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encore.cli.output import JsonOption, compact_table, out, print_json, visible, warn
from encore.errors import InputError

if TYPE_CHECKING:
    from encore.benchmarks.compare import ComparedRow, DataSet
    from encore.benchmarks.comparison import Comparison
    from encore.benchmarks.stored_tables import StoredRow, StoredTable

_NONE = "–"


def compare(
    studies: Annotated[
        list[Path],
        typer.Argument(metavar="STUDY...", help="Studies that `encore benchmark` was run on."),
    ],
    by: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE",
            help="Sort by this, the best first: safety (or what the benchmark's headline is "
            "called), or a subset. Default: the headline.",
        ),
    ] = None,
    benchmark: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only tables of this benchmark.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="The row that every other is compared with: its name, or its id where several "
            "tables have it (--json shows ids). Default: the first table's, uniform weights.",
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW",
            help="Given twice: compare only these two, the first with the second.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare the rows of benchmark tables: sorted, with intervals, on the same pairs only.

    Reads what `encore benchmark` left in the studies; no server, no model. Tables are put together
    by their benchmark's definition and the digest of its pairs: rows on other pairs, or counted in
    another way, stand in a table of their own, and comparing across is refused. Δ is the difference
    to the reference in points, with a 95 % interval of a paired bootstrap; p is McNemar's, exact,
    and – where one of the two rows has credits between 0 and 1, as means over draws and judges'
    half ties are.

    Examples: encore compare hh-study pku-study --by safety

    encore compare my-study --row "encore (τ 2)" --row top-5
    """
    from encore.benchmarks.compare import compare_tables, read_studies

    _check_rows(row, by=by, reference=reference)
    tables = read_studies(studies)
    if row:
        chosen = [table for table in tables if benchmark in (None, table.benchmark)]
        _two(chosen, row[0], row[1], seed=seed, as_json=as_json)
        return
    found = compare_tables(tables, by=by, reference=reference, benchmark=benchmark, seed=seed)
    if as_json:
        print_json({"datasets": [one.as_dict() for one in found]})
    else:
        for one in found:
            _print_table(one)
    for one in found:
        _warn(one)


def _check_rows(row: list[str] | None, *, by: str | None, reference: str | None) -> None:
    if row and len(row) != 2:
        raise InputError(f"--row: given {len(row)} times; name the two rows to compare")
    without = {"--by": by, "--reference": reference}
    for name in (name for name, value in without.items() if row and value is not None):
        raise InputError(
            f"{name} with --row: two rows are compared with each other, on the headline; leave "
            f"{name} out"
        )


def _print_table(found: DataSet) -> None:
    reference = next(one.row for one in found.rows if one.row.row_id == found.reference)
    name_of = _names(found)
    num_pairs = reference.figures[found.by][1].num_pairs
    partial = ", PARTIAL" if found.is_partial else ""
    out.print(
        visible(
            f"{found.benchmark} {found.version} ({found.digest[:12]}): {found.by} on "
            f"{num_pairs:,} pairs{partial}; Δ to {name_of[reference.row_id]}, in points, on the "
            "headline"
        ),
        soft_wrap=True,
    )
    columns = ("row", found.by, "95 %", "Δ", "95 % of Δ", "p")
    rows = [_cells(one, name=name_of[one.row.row_id], by=found.by) for one in found.rows]
    out.print(compact_table(columns, rows, title=""))


def _names(found: DataSet) -> dict[str, str]:
    """Rows by their name; by their id where another row has the same."""
    names = [one.row.name for one in found.rows]
    return {
        one.row.row_id: one.row.name if names.count(one.row.name) == 1 else one.row.row_id
        for one in found.rows
    }


def _cells(one: ComparedRow, *, name: str, by: str) -> tuple[str, ...]:
    score, figure = one.row.figures[by]
    interval = f"{_percent(figure.ci_low)} to {_percent(figure.ci_high)}"
    comparison = one.comparison
    if comparison is None:
        return (name, _percent(score), interval, _NONE, _NONE, _NONE)
    return (
        name,
        _percent(score),
        interval,
        _points(comparison.difference),
        _points_interval(comparison),
        _p_value(one.p_value),
    )


def _two(
    tables: Sequence[StoredTable], first: str, second: str, *, seed: int, as_json: bool
) -> None:
    from encore.benchmarks.compare import compare_two, is_partial, marks_of

    one, other, comparison = compare_two(tables, first, second, seed=seed)
    synthetic = marks_of((one, other), tables)
    is_a_part = is_partial(one, tables) or is_partial(other, tables)
    if as_json:
        print_json(
            {
                "first": one.row_id,
                "second": other.row_id,
                "comparison": asdict(comparison),
                "is_partial": is_a_part,
                "synthetic": list(synthetic),
                "notes": {row.row_id: list(row.notes) for row in (one, other)},
            }
        )
    else:
        _print_two(one, other, comparison, is_partial=is_a_part, is_synthetic=bool(synthetic))
    _warn_of_synthetic(synthetic)
    if is_a_part:
        warn("partial: not all pairs that the benchmark defines; no figure compares with others")


def _print_two(
    first: StoredRow,
    second: StoredRow,
    comparison: Comparison,
    *,
    is_partial: bool,
    is_synthetic: bool,
) -> None:
    partial, synthetic = ", PARTIAL" * is_partial, ", SYNTHETIC" * is_synthetic
    out.print(visible(f"{first.row_id} − {second.row_id}{partial}{synthetic}"), soft_wrap=True)
    out.print(
        f"{_points(comparison.difference)} points (95 % {_points_interval(comparison)}), "
        f"p {_p_value(comparison.mcnemar_p)}; of {comparison.num_pairs:,} pairs "
        f"{comparison.num_only_first:,} are better under the first and "
        f"{comparison.num_only_second:,} under the second",
        soft_wrap=True,
    )
    for row in (first, second):
        for note in row.notes:
            out.print(visible(f"{row.name}: {note}"), soft_wrap=True)


def _warn(found: DataSet) -> None:
    _warn_of_synthetic(found.synthetic)
    if found.is_partial:
        warn(
            f"{found.benchmark} {found.digest[:12]} is partial: not all pairs that the benchmark "
            "defines"
        )


def _warn_of_synthetic(parts: Sequence[str]) -> None:
    for part in parts:
        warn(f"synthetic: {part}; read these figures as an example, not as evidence")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _points(share: float) -> str:
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")


def _points_interval(comparison: Comparison) -> str:
    return f"{_points(comparison.ci_low)} to {_points(comparison.ci_high)}"


def _p_value(p_value: float | None) -> str:
    if p_value is None:
        return _NONE
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"
