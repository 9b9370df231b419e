"""`encore compare`: benchmark tables of studies side by side, from their own files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encore.benchmarks.benchmark_config import CompareConfig
from encore.cli.output import compact_table, warn_of
from encore.errors import InputError
from encore.options import JsonOption, command
from encore.terminal import out, print_json, visible


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

    if config.row and (len(config.row) != 2 or config.by or config.reference):
        raise InputError(
            f"--row given {len(config.row)} times: give two rows to compare, and neither --by nor "
            "--reference: they are compared with each other, on the headline"
        )
    rows = read_studies(config.studies, benchmark=config.benchmark)
    if config.row:
        found = [compare_two(rows, *config.row, seed=config.seed)]
    else:
        found = compare_tables(rows, by=config.by, reference=config.reference, seed=config.seed)
    if json:
        print_json(found[0] if config.row else {"datasets": found})
    for one in () if json else found:
        _print_two(one) if config.row else _print_table(one)
    for one in found:
        warn_of(synthetic=one["synthetic"])


def _print_table(found: Mapping[str, Any]) -> None:
    from encore.benchmarks.render import p_value, percent, points

    by, rows = found["by"], found["rows"]
    names = [row["name"] for row in rows]
    name_of = {
        row["row_id"]: row["name"] if names.count(row["name"]) == 1 else row["row_id"]
        for row in rows
    }
    cells = []
    for row in rows:
        figure, other = row["figures"][by], row["comparison"]
        own = f"{percent(figure['ci_low'])} to {percent(figure['ci_high'])}"
        differs: tuple[str | None, ...] = (None, None, None)
        if other is not None:
            differs = (points(other["difference"]), _interval(other), p_value(other["mcnemar_p"]))
        cells.append((name_of[row["row_id"]], percent(figure["score"]), own, *differs))
    title = (
        f"{found['benchmark']} {found['version']} ({found['digest'][:12]}): {by} on "
        f"{rows[0]['figures'][by]['num_pairs']:,} pairs{', PARTIAL' * found['is_partial']}; Δ to "
        f"{name_of[found['reference']]}, in points, on the headline"
    )
    out.print(visible(title), soft_wrap=True)
    out.print(compact_table(("row", by, "95 %", "Δ", "95 % of Δ", "p"), cells))


def _print_two(two: Mapping[str, Any]) -> None:
    from encore.benchmarks.render import p_value, points

    found = two["comparison"]
    marks = ", PARTIAL" * two["is_partial"] + ", SYNTHETIC" * bool(two["synthetic"])
    out.print(visible(f"{two['first']} − {two['second']}{marks}"), soft_wrap=True)
    out.print(
        f"{points(found['difference'])} points (95 % {_interval(found)}), p "
        f"{p_value(found['mcnemar_p'])}; of {found['num_pairs']:,} pairs "
        f"{found['num_only_first']:,} are better under the first and "
        f"{found['num_only_second']:,} under the second",
        soft_wrap=True,
    )
    for row_id, notes in two["notes"].items():
        for note in notes:
            out.print(visible(f"{row_id}: {note}"), soft_wrap=True)


def _interval(found: Mapping[str, Any]) -> str:
    from encore.benchmarks.render import points

    return f"{points(found['ci_low'])} to {points(found['ci_high'])}"
