"""`encore compare`: benchmark tables of studies side by side, from their own files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from encore.benchmarks.benchmark_options import CompareConfig
from encore.cli.output import (
    Renderable,
    TableColumns,
    compact_table,
    percent,
    percent_of,
    record_table,
    rule_legend,
    show_result,
    span,
)
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.number_text import p_value, points
from encore.core.terminal import say_next

if TYPE_CHECKING:
    from encore.benchmarks.compare_tables import ComparedTable


@command
def compare(config: CompareConfig, *, json: JsonOption = False) -> None:
    """Compare the rows of benchmark tables: sorted, with intervals, on the same pairs only.

    It reads the files that `encore benchmark` wrote to the studies, and needs no server and no
    model. Rows on the same pairs and by the same definition of the benchmark share a table; rows
    of different tables are not compared. Δ is the difference to the reference in points, with the
    95 % interval (Bonett and Price). p is from McNemar's exact test; it is – if one of the two
    rows has credits between 0 and 1 (means over draws, a judge's half ties).

    With --scores twice, two reward models that scored the study are compared rule by rule, on the
    same pairs: a model is right if it prefers the response that the judge rates higher.

    Examples: encore compare hh-study pku-study --by safety

    encore compare my-study --reference top-5

    encore compare my-study --scores 3f --scores 9a
    """
    if config.scores:
        _show_models(config, as_json=json)
        return
    from encore.benchmarks.compare_tables import compare as compare_studies

    tables = compare_studies(**config.model_dump(exclude={"scores", "run"}))
    synthetic = list(dict.fromkeys(label for table in tables for label in table.synthetic))
    parts = chain.from_iterable(map(_table_parts, tables))
    show_result({"datasets": tables}, parts, synthetic=synthetic, as_json=json)
    weights = ("--scheme", "encore", "--ratings", config.studies[0])
    say_next("export", "MODEL", "--out", "DIR", *weights)


def _show_models(config: CompareConfig, *, as_json: bool) -> None:
    """Compare two reward models by rule, and show a row for each rule."""
    from encore.scoring.model_comparison import compare_models

    if len(config.studies) != 1:
        raise UsageError("--scores compares models on one STUDY")
    comparison = compare_models(config.studies[0], config.scores, run=config.run)
    columns: TableColumns = {
        "rule": "rule_id",
        "pairs": "num_pairs",
        "first": percent_of("first"),
        "second": percent_of("second"),
        "Δ": lambda row: points(row.difference.value),
        "95 % of Δ": lambda row: span(row.difference.low, row.difference.high, points),
        "first right": "num_first_pairs",
        "second right": "num_second_pairs",
    }
    title = f"Agreement with the judge: {comparison.models[0]}, then {comparison.models[1]}"
    table = record_table(comparison.rows, columns, title=title)
    parts = (table, f"{comparison.sentence}\n")
    show_result(comparison, parts, synthetic=comparison.synthetic, as_json=as_json)


def _table_parts(table: ComparedTable) -> Iterator[Renderable]:
    """Yield a line on the benchmark, then its rows, then the names of rules by number."""
    names = [row.name for row in table.rows]
    label_by_id = {
        row.row_id: row.name if names.count(row.name) == 1 else row.row_id for row in table.rows
    }
    for row in table.rows:
        if (rule := row.params.get("rule")) in table.rule_ids:
            label = label_by_id[row.row_id]
            position = table.rule_ids.index(rule) + 1
            label_by_id[row.row_id] = label.replace(f": {rule}", f": rule {position}")
    cells = []
    for row in table.rows:
        figure, comparison = row.figures[table.by], row.comparison
        interval = span(figure.ci_low, figure.ci_high, percent)
        difference: tuple[str | None, ...] = (None, None, None)
        if comparison is not None:
            difference = (
                points(comparison.difference),
                span(comparison.ci_low, comparison.ci_high, points),
                p_value(comparison.mcnemar_p),
            )
        cells.append((label_by_id[row.row_id], percent(figure.score), interval, *difference))
    yield (
        f"{table.benchmark} {table.version} ({table.digest[:12]}): {table.by} on "
        f"{table.rows[0].figures[table.by].num_pairs:,} pairs{', PARTIAL' * table.is_partial}; "
        f"Δ to {label_by_id[table.reference]}, in points, on the headline"
    )
    yield compact_table(("row", table.by, "95 %", "Δ", "95 % of Δ", "p"), cells)
    yield rule_legend(table.rule_ids)
