"""`encore ingest`: fill a study with preference pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from encore.cli.output import TableColumns, compact_table, record_table, show_result
from encore.core.command_parser import JsonOption, command
from encore.core.terminal import say, say_next, terminal_reporter
from encore.data.ingest_options import IngestConfig

#: What was done with records of another form (`encore.data.sources.messages.Reading`).
_READ_AS = {
    "prompt-column": "read as the prompt",
    "role-names": "read as system, user, assistant",
    "content-parts": "texts of a turn joined",
    "messages-as-text": "JSON in a text read",
    "turns-in-prompt": "transcript split into turns",
    "prompt-in-response": "prompt cut off both responses",
    "system-column": "read as the system turn",
    "history-column": "read as the first turns",
    "input-column": "added to the user's turn",
}
#: What to do with records that were set aside, where their reason alone does not say it.
_REMEDIES = {
    "tool-calls": "set aside; write calls as text",
    "reasoning": "set aside; write it into the text",
    "speaker-name": "set aside; write it into the text",
    "not-text": "set aside; describe it in the text",
    "turns-in-text": "set aside; write messages",
    "unread-text": "set aside; write it into the prompt",
    "unknown-role": "set aside; rename the role",
}

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
    with chosen and rejected the other way round (both are kept). A second table counts the records
    that were read from another form, and those set aside.

    Exit code 3: more records of a source than --max-set-aside-share were set aside; the study has
    the others.

    Examples: `encore ingest study hh-pku`,
    `encore ingest study mine=my-pairs.jsonl.gz`.
    """
    from encore.data.ingestion import ingest as ingest_sources

    with terminal_reporter() as reporter:
        report = ingest_sources(**dict(config), on_note=say, reporter=reporter)
    tables = [ingest_table(report), handling_table(report)]
    show_result(report.as_dict(), tables, _notes(report), as_json=json)
    report.raise_if_mostly_set_aside()
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


def handling_table(report: IngestReport) -> Table:
    """Return a table with the records that were read from another form or set aside, by kind."""
    columns = ("label", "what", "records", "what was done")
    rows = [
        (manifest.label, kind, num_records, texts.get(kind, default))
        for manifest in (source.manifest for source in report.sources)
        for counts, texts, default in (
            (manifest.read_by_form, _READ_AS, "read"),
            (manifest.set_aside_by_reason, _REMEDIES, "set aside"),
        )
        for kind, num_records in counts.items()
    ]
    return compact_table(columns, rows)


def _notes(report: IngestReport) -> Iterator[str]:
    for manifest in (source.manifest for source in report.sources):
        if manifest.num_set_aside:
            reasons = ", ".join(f"{name} {n:,}" for name, n in manifest.set_aside_by_reason.items())
            yield (
                f"{manifest.label}: set aside {reasons}; "
                f"see {report.study / 'pairs' / manifest.label}.set-aside.jsonl"
            )
