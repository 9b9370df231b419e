"""Task: preference pairs from their sources into the study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from encore.data.ingestion import ingest
from encore.data.sources.pku import Prefer
from tasks.errors import is_worth_retrying


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestManifest:
    """What an ingest did: pairs kept per label, and the digest of all of the study's pairs."""

    study: Path
    num_pairs: dict[str, int]
    data_digest: str


@task(
    name="ingest",
    retries=2,  # for the hub's network; a malformed source is not read twice
    retry_delay_seconds=[5, 30],
    retry_condition_fn=is_worth_retrying,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def ingest_pairs(
    sources: Sequence[str], study: Path, *, prefer: Prefer | None = None, replace: bool = False
) -> IngestManifest:
    """Read the sources into the study; a label that is there with the same content stays as it is.

    Args:
        sources: What to read.
        study: Its directory.
        prefer: Label of raw PKU-SafeRLHF.
        replace: Put other content in the place of a label's pairs.

    Raises:
        EncoreError: As `encore.data.ingestion.ingest`; the study is then as it was.
    """
    log = get_run_logger()
    report = ingest(sources, out=study, prefer=prefer, replace=replace, on_note=log.info)
    for source in report.sources:
        manifest = source.manifest
        log.info(
            "%s: %s, %d records = %d pairs + %d duplicates + %d set aside",
            manifest.label,
            source.status,
            manifest.num_read,
            manifest.num_kept,
            manifest.num_duplicates,
            manifest.num_set_aside,
        )
    return IngestManifest(
        study=study,
        num_pairs={source.manifest.label: source.manifest.num_kept for source in report.sources},
        data_digest=report.data_digest,
    )
