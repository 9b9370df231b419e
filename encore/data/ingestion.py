"""Ingest: preference pairs from any source into a study, with every record accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from encore.core.errors import EncoreError, InputError
from encore.core.reporting import SILENT, Reporter
from encore.data.pairs import PairWriter, data_digest, pair_writer, verified_path, write_manifest
from encore.data.pairs_manifest import Origin, PairsManifest, pair_files, read_pairs_manifest
from encore.data.sources import load_parser
from encore.data.sources.locate import Source, resolve_sources
from encore.data.sources.pku import Prefer
from encore.data.sources.raw_records import MalformedRecordError
from encore.data.study import Change, Study, changed_study, open_study

_RECORDS_PER_REPORT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """What happened to the records of one label; `PairsManifest` explains the counts."""

    status: Literal["new", "unchanged", "replaced"]
    manifest: PairsManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What an ingest did, label by label; ``data_digest`` is the whole study's."""

    study: Path
    sources: tuple[SourceReport, ...]
    data_digest: str

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "study": str(self.study),
            "data_digest": self.data_digest,
            "sources": [
                {
                    "status": source.status,
                    **source.manifest.model_dump(mode="json", exclude={"synthetic"}),
                }
                for source in self.sources
            ],
        }


def ingest(
    sources: Sequence[str],
    *,
    out: Path,
    prefer: Prefer | None = None,
    split: str | None = None,
    replace: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
    reporter: Reporter = SILENT,
) -> IngestReport:
    """Read pairs from every source into the study at ``out``, which is made if it is not there.

    Sources with the same label become one. Within a label the first of several equal pairs is
    kept; records that are no pair go to ``<label>.set-aside.jsonl`` with their reasons. Either all
    sources are ingested or, after any error, the study is as it was.

    Args:
        sources: ``[LABEL=][FORMAT:]WHERE[@REVISION]`` each (`encore.data.sources.locate.locate`).
        out: The study's directory.
        prefer: Which label of raw PKU-SafeRLHF says what is chosen (default: safer).
        split: Of the sources on the hub (default: train).
        replace: Put other content in the place of a label's pairs.
        on_note: Called with what was decided for the user, such as a format.
        reporter: Told about records that were read.

    Raises:
        InputError: bad sources or options; a source without a single pair; a label that is there
            with other content.
        EncoreError: writing failed; another process is changing the study.
    """
    found = resolve_sources(sources, prefer=prefer, split=split, on_note=on_note)
    labels = sorted({str(one.label) for one in found})
    by_label = {label: [one for one in found if one.label == label] for label in labels}
    try:
        with changed_study(out) as change:
            _refuse_near_labels(by_label, change.study)
            reports = [
                _ingest_label(label, group, change, replace=replace, reporter=reporter)
                for label, group in by_label.items()
            ]
    except OSError as error:
        raise EncoreError(
            f"study {out}: writing failed ({error}); the study is as it was before; "
            "make room or give permission, then run the command again"
        ) from error
    reporter.finished()
    return IngestReport(study=out, sources=tuple(reports), data_digest=data_digest(open_study(out)))


def _refuse_near_labels(labels: Iterable[str], study: Study | None) -> None:
    """Labels that differ only in case would be one file on some file systems."""
    folded = {label.casefold(): label for label in (study.labels if study else ())}
    for label in labels:
        if (other := folded.setdefault(label.casefold(), label)) != label:
            raise InputError(
                f"labels {other!r} and {label!r} differ only in case; give another LABEL=SOURCE"
            )


def _ingest_label(
    label: str, sources: Sequence[Source], change: Change, *, replace: bool, reporter: Reporter
) -> SourceReport:
    reporter.started(label)
    with pair_writer(change, label) as writer:
        origins = [_read_source(one, writer, reporter=reporter) for one in sources]
    manifest = write_manifest(change, writer, origins=origins)
    study = change.study
    if study is None or label not in study.labels:
        return SourceReport(status="new", manifest=manifest)
    try:
        existing = read_pairs_manifest(study.pairs_dir, label)
        verified_path(study, existing)
        if _content(existing) == _content(manifest):
            for relative in pair_files(label):
                change.staged.remove(relative)
            return SourceReport(status="unchanged", manifest=existing)
        raise InputError(
            f"study {study.path}: it has other pairs labelled {label!r} already "
            f"({existing.num_kept:,}, now {manifest.num_kept:,}); put the new ones in their place "
            "with --replace, or give another label as LABEL=SOURCE, or another study"
        )
    except InputError:
        if not replace:
            raise
        return SourceReport(status="replaced", manifest=manifest)


def _content(manifest: PairsManifest) -> dict[str, Any]:
    """What must agree for two ingests to be the same: the pairs and every count."""
    return manifest.model_dump(exclude={"origins", "parquet_sha256", "encore_version", "synthetic"})


def _read_source(source: Source, writer: PairWriter, *, reporter: Reporter) -> Origin:
    assert source.format is not None
    parse = load_parser(source.format, source=writer.label, prefer=source.prefer)
    name = source.path.name if source.path is not None else str(source.repo_id)
    reasons, first_problem, number = Counter[str](), "", 0
    for number, record in enumerate(source.records(), start=1):
        try:
            if record.problem is not None:
                raise record.problem
            if not isinstance(record.value, Mapping):
                kind = type(record.value).__name__
                raise MalformedRecordError("not-an-object", f"a JSON {kind}, expected an object")
            writer.add(parse(record.value))
        except MalformedRecordError as error:
            writer.set_aside(record, error, file=name)
            reasons[error.reason] += 1
            first_problem = first_problem or f"record {record.number}: {error.detail}"
        if number % _RECORDS_PER_REPORT == 0:
            reporter.advanced(_RECORDS_PER_REPORT)
    reporter.advanced(number % _RECORDS_PER_REPORT)
    if not number:
        raise InputError(f"{source.path or name}: empty, it has no records")
    if number == reasons.total():
        common = ", ".join(f"{reason} ×{count}" for reason, count in reasons.most_common(3))
        raise InputError(
            f"{source.path or name}: not one of its {number:,} records is a preference pair "
            f"({common}); {first_problem}"
        )
    return Origin(
        kind="hub" if source.path is None else "local",
        name=name,
        format=source.format,
        revision=source.revision,
        split=source.split,
        subset=source.subset,
        prefer=source.prefer,
        num_read=number,
    )
