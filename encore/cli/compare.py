"""`encore compare`: benchmark tables of studies side by side, from their own files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from encore.benchmarks.benchmark_config import CompareConfig
from encore.cli.output import Shown, compact_table, percent, show_result, span
from encore.core.options import JsonOption, command


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

    encore compare my-study --reference top-5
    """
    from encore.benchmarks.compare_tables import compare_tables, read_studies

    rows = read_studies(config.studies, benchmark=config.benchmark)
    found = compare_tables(rows, by=config.by, reference=config.reference, seed=config.seed)
    synthetic = list(dict.fromkeys(part for one in found for part in one["synthetic"]))
    shown = chain.from_iterable(map(_table, found))
    show_result({"datasets": found}, shown, synthetic=synthetic, as_json=json)


def _table(found: Mapping[str, Any]) -> Iterator[Shown]:
    from encore.core.number_text import p_value, points

    by, rows = found["by"], found["rows"]
    names = [row["name"] for row in rows]
    name_of = {
        row["row_id"]: row["name"] if names.count(row["name"]) == 1 else row["row_id"]
        for row in rows
    }
    cells = []
    for row in rows:
        figure, other = row["figures"][by], row["comparison"]
        own = span(figure["ci_low"], figure["ci_high"], percent)
        differs: tuple[str | None, ...] = (None, None, None)
        if other is not None:
            of_difference = span(other["ci_low"], other["ci_high"], points)
            differs = (points(other["difference"]), of_difference, p_value(other["mcnemar_p"]))
        cells.append((name_of[row["row_id"]], percent(figure["score"]), own, *differs))
    yield (
        f"{found['benchmark']} {found['version']} ({found['digest'][:12]}): {by} on "
        f"{rows[0]['figures'][by]['num_pairs']:,} pairs{', PARTIAL' * found['is_partial']}; Δ to "
        f"{name_of[found['reference']]}, in points, on the headline"
    )
    yield compact_table(("row", by, "95 %", "Δ", "95 % of Δ", "p"), cells)
