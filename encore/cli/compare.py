"""`encore compare`: benchmark tables of studies side by side, from their own files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from encore.benchmarks.benchmark_config import CompareConfig
from encore.cli.output import compact_table
from encore.errors import InputError
from encore.options import JsonOption, command
from encore.terminal import out, print_json, visible, warn

if TYPE_CHECKING:
    from encore.benchmarks.compare import ComparedRow, DataSet, TwoRows
    from encore.benchmarks.comparison import Comparison


@command
def compare(config: CompareConfig, *, json: JsonOption = False) -> None:
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
    from encore.benchmarks.compare import compare_tables, compare_two, read_studies

    _check_rows(config)
    tables = read_studies(config.studies)
    if config.row:
        chosen = [table for table in tables if config.benchmark in (None, table.benchmark)]
        two = compare_two(chosen, *config.row, seed=config.seed)
        print_json(two.as_dict()) if json else _print_two(two)
        _warn_of_synthetic(two.synthetic)
        if two.is_partial:
            warn("partial: not all pairs that the benchmark defines; no figure compares")
        return
    found = compare_tables(
        tables,
        by=config.by,
        reference=config.reference,
        benchmark=config.benchmark,
        seed=config.seed,
    )
    if json:
        print_json({"datasets": [one.as_dict() for one in found]})
    for one in found:
        if not json:
            _print_table(one)
    for one in found:
        _warn_of_synthetic(one.synthetic)
        if one.is_partial:
            name = f"{one.table.benchmark} {one.table.digest[:12]}"
            warn(f"{name} is partial: not all pairs that the benchmark defines")


def _check_rows(config: CompareConfig) -> None:
    if config.row and len(config.row) != 2:
        raise InputError(f"--row: given {len(config.row)} times; name the two rows to compare")
    for name in ("by", "reference"):
        if config.row and getattr(config, name) is not None:
            raise InputError(
                f"--{name} with --row: two rows are compared with each other, on the headline; "
                f"leave --{name} out"
            )


def _print_table(found: DataSet) -> None:
    from encore.benchmarks.render import NONE, p_value, percent, points

    names = [one.row.name for one in found.rows]

    def name_of(one: ComparedRow) -> str:
        return one.row.name if names.count(one.row.name) == 1 else one.row.row_id

    def cells(one: ComparedRow) -> tuple[str, ...]:
        score, figure = one.row.figures[found.by]
        interval = f"{percent(figure.ci_low)} to {percent(figure.ci_high)}"
        other = one.comparison
        differs = (NONE, NONE, NONE)
        if other is not None:
            differs = (points(other.difference), _interval(other), p_value(one.p_value))
        return (name_of(one), percent(score), interval, *differs)

    table = found.table
    reference = next(one for one in found.rows if one.row.row_id == found.reference)
    num_pairs = reference.row.figures[found.by][1].num_pairs
    partial = ", PARTIAL" if found.is_partial else ""
    title = (
        f"{table.benchmark} {table.version} ({table.digest[:12]}): {found.by} on "
        f"{num_pairs:,} pairs{partial}; Δ to {name_of(reference)}, in points, on the headline"
    )
    out.print(visible(title), soft_wrap=True)
    columns = ("row", found.by, "95 %", "Δ", "95 % of Δ", "p")
    out.print(compact_table(columns, [cells(one) for one in found.rows], title=""))


def _print_two(two: TwoRows) -> None:
    from encore.benchmarks.render import p_value, points

    found = two.comparison
    marks = ", PARTIAL" * two.is_partial + ", SYNTHETIC" * bool(two.synthetic)
    out.print(visible(f"{two.first.row_id} − {two.second.row_id}{marks}"), soft_wrap=True)
    out.print(
        f"{points(found.difference)} points (95 % {_interval(found)}), "
        f"p {p_value(found.mcnemar_p)}; of {found.num_pairs:,} pairs "
        f"{found.num_only_first:,} are better under the first and "
        f"{found.num_only_second:,} under the second",
        soft_wrap=True,
    )
    for row in (two.first, two.second):
        for note in row.notes:
            out.print(visible(f"{row.name}: {note}"), soft_wrap=True)


def _interval(found: Comparison) -> str:
    from encore.benchmarks.render import points

    return f"{points(found.ci_low)} to {points(found.ci_high)}"


def _warn_of_synthetic(parts: Sequence[str]) -> None:
    for part in parts:
        warn(f"synthetic: {part}; read these figures as an example, not as evidence")
