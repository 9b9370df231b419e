"""Ingest: preference pairs from any source into a study, with every record accounted for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from encore.data.pair_writer import PairWriter, pair_writer
from encore.data.pairs import (
    Origin,
    PairsManifest,
    data_digest,
    digest_of_ids,
    iter_pairs,
    labels_of,
    pair_files,
    read_manifest,
    read_pairs,
    verified_path,
)
from encore.data.records import PreferencePair
from encore.data.sources import Parser, load_parser
from encore.data.sources.inputs import Input, Note, Options, resolve_inputs
from encore.data.sources.malformed import MalformedRecordError
from encore.data.sources.pku import Prefer
from encore.data.sources.raw import RawRecord
from encore.data.study import Change, changed_study, open_study
from encore.errors import EncoreError, InputError
from encore.files import file_sha256
from encore.versions import installed_version

__all__ = [
    "IngestReport",
    "Progress",
    "SourceReport",
    "data_digest",
    "ingest",
    "iter_pairs",
    "read_pairs",
]

Status = Literal["new", "unchanged", "replaced"]
_RECORDS_PER_PROGRESS = 500
_NUM_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one label is."""

    label: str
    num_read: int
    num_kept: int
    num_set_aside: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """What happened to the records of one label; `PairsManifest` explains the counts."""

    status: Status
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
                {"status": source.status, **source.manifest.model_dump(mode="json")}
                for source in self.sources
            ],
        }


def ingest(
    sources: Sequence[str],
    *,
    out: Path,
    prefer: Prefer | None = None,
    revision: str | None = None,
    split: str | None = None,
    replace: bool = False,
    on_note: Note = lambda _: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> IngestReport:
    """Read pairs from every source into the study at ``out``, which is made if it is not there.

    Sources with the same label become one. Within a label the first of several equal pairs is
    kept; records that are no pair go to ``<label>.set-aside.jsonl`` with their reasons. Either all
    sources are ingested or, after any error, the study is as it was.

    Args:
        sources: ``[LABEL=][FORMAT:]WHERE[@REVISION]`` each (`encore.data.sources.locate.locate`).
        out: The study's directory.
        prefer: Which label of raw PKU-SafeRLHF says what is chosen (default: safer).
        revision: Of the one source on the hub (default: the pinned one, else main's commit).
        split: Of the sources on the hub (default: train).
        replace: Put other content in the place of a label's pairs.
        on_note: Called with what was decided for the user, such as a format.
        on_progress: Called now and then while records are read.

    Raises:
        InputError: bad sources or options; a source without a single pair; a label that is there
            with other content.
        EncoreError: writing failed; another process is changing the study.
    """
    options = Options(prefer=prefer, revision=revision, split=split)
    inputs = resolve_inputs(sources, options=options, on_note=on_note)
    try:
        with changed_study(out) as change:
            _refuse_near_labels(inputs, change)
            reports = [
                _ingest_label(label, list(group), change, replace=replace, on_progress=on_progress)
                for label, group in itertools.groupby(
                    sorted(inputs, key=lambda one: one.label), key=lambda one: one.label
                )
            ]
    except OSError as error:
        raise EncoreError(
            f"study {out}: writing failed ({error}); the study is as it was before; "
            "make room or give permission, then run the command again"
        ) from error
    return IngestReport(study=out, sources=tuple(reports), data_digest=data_digest(open_study(out)))


def _refuse_near_labels(inputs: Sequence[Input], change: Change) -> None:
    """Labels that differ only in case would be one file on some file systems."""
    existing = labels_of(change.study) if change.study else ()
    by_folded: dict[str, str] = {}
    for label in (*existing, *(one.label for one in inputs)):
        other = by_folded.setdefault(label.casefold(), label)
        if other != label:
            raise InputError(
                f"labels {other!r} and {label!r} differ only in case; give another LABEL=SOURCE"
            )


def _ingest_label(
    label: str,
    inputs: Sequence[Input],
    change: Change,
    *,
    replace: bool,
    on_progress: Callable[[Progress], None],
) -> SourceReport:
    files = pair_files(label)
    aside_path, pairs_path = change.path(files.set_aside), change.path(files.pairs)
    with pair_writer(pairs=pairs_path, set_aside=aside_path, label=label) as writer:
        origins = tuple(_read_input(one, writer, on_progress=on_progress) for one in inputs)
    counts = writer.counts
    counts.check()
    manifest = PairsManifest(
        label=label,
        origins=origins,
        num_read=counts.num_read,
        num_kept=counts.num_kept,
        num_duplicates=counts.num_duplicates,
        num_set_aside=counts.num_set_aside,
        set_aside_by_reason=dict(sorted(counts.set_aside.items())),
        num_contradicting=counts.num_contradicting,
        data_digest=digest_of_ids(writer.pair_ids),
        parquet_sha256=file_sha256(pairs_path),
        encore_version=installed_version("encore-reward") or "unknown",
    )
    # Asked for last, so that it takes its place last: pairs without a manifest are not there.
    manifest_path = change.path(files.manifest)
    manifest_path.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return _settle(label, manifest, change, replace=replace)


def _read_input(
    source: Input, writer: PairWriter, *, on_progress: Callable[[Progress], None]
) -> Origin:
    parse = load_parser(source.format, source=writer.label, prefer=source.prefer)
    num_read_before, aside_before = writer.counts.num_read, writer.counts.set_aside.copy()
    first_problem: tuple[RawRecord, MalformedRecordError] | None = None
    for record in source.records():
        try:
            writer.add(_parsed(record, parse))
        except MalformedRecordError as error:
            writer.set_aside(record, error, file=source.name)
            first_problem = first_problem or (record, error)
        if writer.counts.num_read % _RECORDS_PER_PROGRESS == 0:
            on_progress(_progress(writer))
    on_progress(_progress(writer))
    num_read = writer.counts.num_read - num_read_before
    set_aside = writer.counts.set_aside - aside_before
    if num_read == set_aside.total():
        raise InputError(f"{source.path or source.name}: {_no_pair(set_aside, first_problem)}")
    return Origin(
        kind="hub" if source.path is None else "local",
        name=source.name,
        format=source.format,
        revision=source.revision,
        split=source.split,
        subset=source.subset,
        prefer=source.prefer,
        num_read=num_read,
    )


def _parsed(record: RawRecord, parse: Parser) -> PreferencePair:
    if record.problem is not None:
        raise record.problem
    if not isinstance(record.value, Mapping):
        kind = type(record.value).__name__
        raise MalformedRecordError("not-an-object", f"a JSON {kind}, expected an object")
    return parse(record.value)


def _progress(writer: PairWriter) -> Progress:
    counts = writer.counts
    return Progress(
        label=writer.label,
        num_read=counts.num_read,
        num_kept=counts.num_kept,
        num_set_aside=counts.num_set_aside,
    )


def _no_pair(
    set_aside: Counter[str], first_problem: tuple[RawRecord, MalformedRecordError] | None
) -> str:
    if first_problem is None:
        return "empty, it has no records"
    record, error = first_problem
    reasons = ", ".join(
        f"{reason} ×{count}" for reason, count in set_aside.most_common(_NUM_REASONS_SHOWN)
    )
    return (
        f"not one of its {set_aside.total():,} records is a preference pair ({reasons}); "
        f"record {record.number}: {error.detail}"
    )


def _settle(label: str, manifest: PairsManifest, change: Change, *, replace: bool) -> SourceReport:
    """Decide between the label's pairs in the study, if any, and the new ones."""
    study = change.study
    if study is None or label not in labels_of(study):
        return SourceReport(status="new", manifest=manifest)
    try:
        existing = read_manifest(study, label)
        verified_path(study, label)
    except InputError:
        if not replace:
            raise
        return SourceReport(status="replaced", manifest=manifest)
    if _content(existing) == _content(manifest):
        files = pair_files(label)
        for relative in (files.set_aside, files.pairs, files.manifest):
            change.discard(relative)
        return SourceReport(status="unchanged", manifest=existing)
    if not replace:
        raise InputError(
            f"study {study.path}: it has other pairs labelled {label!r} already "
            f"({existing.num_kept:,}, now {manifest.num_kept:,}); put the new ones in their place "
            "with --replace, or give another label as LABEL=SOURCE, or another study"
        )
    return SourceReport(status="replaced", manifest=manifest)


def _content(manifest: PairsManifest) -> dict[str, Any]:
    """What must agree for two ingests to be the same: the pairs and every count."""
    return manifest.model_dump(exclude={"origins", "parquet_sha256", "encore_version"})
