"""`encore ingest`: fill a study with preference pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from encore.cli.output import TableColumns, record_table, show_result
from encore.core.command_parser import JsonOption, command
from encore.core.terminal import say, say_next, terminal_reporter
from encore.data.ingest_options import IngestConfig

if TYPE_CHECKING:
    from rich.table import Table

    from encore.data.ingestion import IngestReport


@command
def ingest(config: IngestConfig, *, json: JsonOption = False) -> None:
    """Read preference pairs into a study; nothing is dropped without being counted.

    Exact duplicates within a label are merged. Malformed records and pairs with identical
    responses are set aside in STUDY/pairs/LABEL.set-aside.jsonl with their reasons. After an
    error the study is as it was before.

    In the table, merged counts exact duplicates, and swapped counts pairs that are also there
    with chosen and rejected the other way round (both are kept).

    Examples: `encore ingest study hh-pku`,
    `encore ingest study mine=my-pairs.jsonl.gz`.
    """
    from encore.data.ingestion import ingest as ingest_sources

    with terminal_reporter() as reporter:
        report = ingest_sources(**dict(config), on_note=say, reporter=reporter)
    show_result(report.as_dict(), [ingest_table(report)], _notes(report), as_json=json)
    say_next("rate", config.out, "--judge", "JUDGE")


def ingest_table(report: IngestReport) -> Table:
    """Return a table with the counts of each label."""
    columns: TableColumns = {
        "label": "manifest.label",
        "read": "manifest.num_read",
        "kept": "manifest.num_kept",
        "merged": "manifest.num_duplicates",
        "set aside": "manifest.num_set_aside",
        "swapped": "manifest.num_contradicting",
        "status": "status",
        "from": lambda source: ", ".join(origin.name for origin in source.manifest.origins),
    }
    return record_table(report.sources, columns, title=f"Preference pairs in {report.study}")


def _notes(report: IngestReport) -> Iterator[str]:
    for manifest in (source.manifest for source in report.sources):
        if manifest.num_set_aside:
            reasons = ", ".join(f"{name} {n:,}" for name, n in manifest.set_aside_by_reason.items())
            yield (
                f"{manifest.label}: set aside {reasons}; "
                f"see {report.study / 'pairs' / manifest.label}.set-aside.jsonl"
            )
