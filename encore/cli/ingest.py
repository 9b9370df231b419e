"""`encore ingest`: fill a study with preference pairs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from encore.cli.output import JsonOption, compact_table, out, print_json, progress_bar, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress as ProgressBar
    from rich.progress import TaskID

    from encore.data.ingestion import IngestReport, Progress, SourceReport

_SOURCES_HELP = (
    "What to read, each as [LABEL=][FORMAT:]WHERE. WHERE is hh, hh/harmless-base, pku or hh-pku "
    "(the paper's data, from the Hugging Face hub at a pinned commit), a hub id "
    "OWNER/NAME or OWNER/NAME@REVISION, or a local .jsonl, .json (both also .gz) or .parquet file "
    "or a folder of such files. FORMAT is hh, pku, rlhflow or pairs; without it, it is told from "
    "the first record. LABEL becomes the `source` column."
)


def ingest(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help=_SOURCES_HELP)],
    study: Annotated[
        Path,
        typer.Option(
            "--out", metavar="STUDY", help="The study directory; made if it is not there."
        ),
    ],
    prefer: Annotated[
        Literal["safer", "better"] | None,
        typer.Option(
            help="Which label of raw PKU-SafeRLHF says what is chosen: safer (harmlessness, the "
            "default) or better (helpfulness).",
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            help="Commit, branch or tag of the one hub source, instead of the pinned one."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split of the hub sources: train (the default), test or train+test."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put other pairs in the place of a label's.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read preference pairs into a study; nothing is dropped without being counted.

    Exact duplicates within a label are merged. Malformed records and pairs with identical
    responses are set aside in STUDY/pairs/LABEL.set-aside.jsonl with their reasons. After an
    error the study is as it was before.

    In the table, merged counts exact duplicates, and swapped counts pairs that are also there
    with chosen and rejected the other way round (both are kept).

    Examples: `encore ingest hh-pku --out study`,
    `encore ingest mine=my-pairs.jsonl.gz --out study`.
    """
    from encore.data.ingestion import ingest as ingest_sources

    with progress_bar() as bar:
        report = ingest_sources(
            sources,
            out=study,
            prefer=prefer,
            revision=revision,
            split=split,
            replace=replace,
            on_note=say,
            on_progress=_shown_on(bar),
        )
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)


def _shown_on(bar: ProgressBar) -> Callable[[Progress], None]:
    """Count and rate per label; how many records there will be is not known."""
    tasks: dict[str, tuple[TaskID, float]] = {}

    def show(progress: Progress) -> None:
        if progress.label not in tasks:
            tasks[progress.label] = (
                bar.add_task(progress.label, total=None, rate=""),
                time.monotonic(),
            )
        task, started = tasks[progress.label]
        seconds = max(time.monotonic() - started, 1e-3)
        bar.update(task, completed=progress.num_read, rate=f"{progress.num_read / seconds:,.0f}/s")

    return show


_COLUMNS = ("label", "read", "kept", "merged", "set aside", "swapped", "status", "from")


def _print(report: IngestReport) -> None:
    rows = [_row(source) for source in report.sources]
    out.print(compact_table(_COLUMNS, rows, title=f"Preference pairs in {report.study}"))
    for source in report.sources:
        manifest = source.manifest
        if manifest.num_set_aside:
            reasons = ", ".join(f"{name} {n:,}" for name, n in manifest.set_aside_by_reason.items())
            say(
                f"{manifest.label}: set aside {reasons}; "
                f"see {report.study / 'pairs' / manifest.label}.set-aside.jsonl"
            )


def _row(source: SourceReport) -> tuple[str, ...]:
    manifest = source.manifest
    origins = ", ".join(
        origin.name + (f"@{origin.revision[:7]}" if origin.revision else "")
        for origin in manifest.origins
    )
    counts = (
        manifest.num_read,
        manifest.num_kept,
        manifest.num_duplicates,
        manifest.num_set_aside,
        manifest.num_contradicting,
    )
    return (manifest.label, *(f"{count:,}" for count in counts), source.status, origins)
