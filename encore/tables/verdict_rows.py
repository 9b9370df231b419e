"""The verdicts of `encore analyze` as the table ``rule_verdicts`` for SQL.

Python computes them, so they are made only for a query that names the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from encore.data.study import Study
from encore.tables.study_tables import StudyTables, table_docs

#: Name of the table.
RULE_VERDICTS = "rule_verdicts"


def with_rule_verdicts(tables: StudyTables, sql: str = RULE_VERDICTS) -> StudyTables:
    """Return the tables with the verdicts of the chosen run, if a query names them.

    They are those of `encore analyze --by-source`, with its defaults. Without a choice among
    several runs there are none.

    Args:
        tables: Tables of the study.
        sql: Text of the query.
    """
    is_named = RULE_VERDICTS in re.findall(r"\w+", sql.casefold())
    if not is_named or "ratings" not in tables.by_name:
        return tables
    rows: list[dict[str, Any]] = []
    if tables.chosen is not None and tables.chosen.paths:
        rows = [*_verdict_rows(tables.study, tables.chosen.manifest.run_key)]
    table = pa.Table.from_pylist(rows, schema=table_docs()[RULE_VERDICTS].schema)
    return replace(tables, by_name={**tables.by_name, RULE_VERDICTS: table})


def _verdict_rows(study: Study, run_key: str) -> Iterator[dict[str, Any]]:
    """Yield the verdicts of a run; the source is null for all sources together."""
    from encore.analysis.analyze import analyze
    from encore.analysis.statistics import POOLED
    from encore.warehouse import open_ratings

    by_source = POOLED not in study.labels  # such a source has no verdicts of its own
    analysis = analyze(open_ratings(study, run=run_key), by_source=by_source)
    for answer in analysis.answers:
        for row in answer.rows:
            yield row.as_dict() | {
                "run_key": run_key,
                "source": None if row.source == POOLED else row.source,
                "untied": row.untied.value,
                "untied_low": row.untied.low,
                "untied_high": row.untied.high,
            }
