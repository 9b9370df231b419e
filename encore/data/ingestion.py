"""Ingest: read preference pairs from any source into a study, and count every record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from encore.buckets.study_mirror import study_path
from encore.core.errors import EncoreError, InputError, StudyIncompleteError
from encore.core.reporting import SILENT, Reporter
from encore.core.shown_record import ShownRecord
from encore.data.pair_columns import refuse_derived_names
from encore.data.pairs import (
    PairWriter,
    data_digest,
    pair_writer,
    verified_path,
    write_further_columns,
    write_manifest,
)
from encore.data.pairs_manifest import (
    MAX_SET_ASIDE_SHARE,
    Origin,
    PairsManifest,
    pair_files,
    read_pairs_manifest,
)
from encore.data.sources import load_parser
from encore.data.sources.locate import Source, resolve_sources
from encore.data.sources.pku import Prefer
from encore.data.sources.raw_records import MalformedRecordError
from encore.data.study import Change, Study, changed_study, open_study

_RECORDS_PER_REPORT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """Result of ingesting one label.

    Attributes:
        status: ``new``, or ``unchanged`` if the study had the same pairs, or ``replaced``.
        manifest: Counts and digests of the label's pairs.
    """

    status: Literal["new", "unchanged", "replaced"]
    manifest: PairsManifest


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IngestReport(ShownRecord):
    """Result of `ingest`.

    Attributes:
        study: Directory of the study.
        sources: Result of each ingested label, sorted by label.
        data_digest: SHA-256 that identifies all pairs of the study.
        mostly_set_aside: A sentence on each file or repository of which too many records were set
            aside.
    """

    study: Path
    sources: tuple[SourceReport, ...]
    data_digest: str
    mostly_set_aside: tuple[str, ...] = ()

    def raise_if_mostly_set_aside(self) -> None:
        """Raise an error if too many records of a source were set aside.

        Raises:
            StudyIncompleteError: The sentences of ``mostly_set_aside``.
        """
        if self.mostly_set_aside:
            raise StudyIncompleteError("; ".join(self.mostly_set_aside))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "study": str(self.study),
            "data_digest": self.data_digest,
            "mostly_set_aside": list(self.mostly_set_aside),
            "sources": [
                {
                    "status": source.status,
                    **source.manifest.model_dump(mode="json", exclude={"synthetic"}),
                }
                for source in self.sources
            ],
        }


def ingest(
    sources: str | Path | Sequence[str | Path] | Mapping[str, Any] | Any,
    *,
    out: str | Path,
    prefer: Prefer | None = None,
    split: str | None = None,
    keep: str | Sequence[str] | None = None,
    replace: bool = False,
    max_set_aside_share: float = MAX_SET_ASIDE_SHARE,
    on_note: Callable[[str], None] = lambda _: None,
    reporter: Reporter = SILENT,
) -> IngestReport:
    """Read pairs from every source into the study at ``out``; make the study if it does not exist.

    Sources with the same label are joined. Within a label the first of several equal pairs is
    kept; records that are not a pair go to ``<label>.set-aside.jsonl`` with their reasons. After
    an error the study is as before.

    >>> pairs = [{"prompt": "How do I pick a lock?", "chosen": "Ask a locksmith.", "rejected": "…"}]
    >>> report = ingest({"mine": pairs}, out="my-study")
    >>> report.sources[0].manifest.num_kept
    1

    Args:
        sources: A source, or several as a list, or as a dict from labels to sources. A source is a
            file, a folder, or text in the form ``[LABEL=][FORMAT:]WHERE[@REVISION]`` (see
            `encore.data.sources.locate.locate`); or it is data: a pandas or Polars data frame, an
            Arrow table, a Hugging Face data set, a list of dicts. Data without a label have the
            label ``table``.
        out: Directory of the study, or its address in a bucket.
        prefer: Label of raw PKU-SafeRLHF that says which response is chosen (default: safer).
        split: Split of the sources on the hub (default: train).
        keep: Names of further columns of the records to keep beside the pairs, as a list or as
            ``"language,category"``. They change no pair and no key of a run.
        replace: Replace a label's pairs if they differ.
        max_set_aside_share: Share of a source's records that may be set aside; above it the report
            says so. The study is written anyway.
        on_note: Receives choices made for the user, such as a detected format, as sentences.
        reporter: Receives the number of records read, label by label.

    Raises:
        InputError: A source or an option is wrong; a source has no pair; a label exists with
            other pairs.
        EncoreError: Writing failed, or another process is changing the study.
    """
    out = study_path(out)
    resolved = resolve_sources(sources, prefer=prefer, split=split, on_note=on_note)
    names = keep.split(",") if isinstance(keep, str) else keep or ()
    names = tuple(dict.fromkeys(filter(None, (name.strip() for name in names))))
    refuse_derived_names(names)
    ingested = _ingest_labels(resolved, out, keep=names, replace=replace, reporter=reporter)
    reporter.finished()
    origins = [origin for _, of_label in ingested for origin in of_label]
    return IngestReport(
        study=out,
        sources=tuple(report for report, _ in ingested),
        data_digest=data_digest(open_study(out)),
        mostly_set_aside=_mostly_set_aside(origins, max_set_aside_share),
    )


def _ingest_labels(
    resolved: Sequence[Source], out: Path, *, keep: Sequence[str], replace: bool, reporter: Reporter
) -> list[tuple[SourceReport, Sequence[Origin]]]:
    """Ingest sources, those of a label together, as one change of the study."""
    labels = sorted({str(source.label) for source in resolved})
    by_label = {label: [source for source in resolved if source.label == label] for label in labels}
    try:
        with changed_study(out) as change:
            _refuse_near_labels(by_label, change.study)
            return [
                _ingest_label(
                    label, of_label, change, keep=keep, replace=replace, reporter=reporter
                )
                for label, of_label in by_label.items()
            ]
    except OSError as error:
        raise EncoreError(
            f"study {out}: writing failed ({error}); the study is as it was before; "
            "make room or give permission, then run the command again"
        ) from error


def _mostly_set_aside(origins: Iterable[Origin], max_share: float) -> tuple[str, ...]:
    """Return a sentence for each source of which a larger share of records was set aside."""
    return tuple(
        f"{origin.name}: {origin.num_set_aside:,} of {origin.num_read:,} records were set "
        f"aside, more than the share of {max_share:g} that --max-set-aside-share "
        "accepts; the study has the others"
        for origin in origins
        if origin.num_set_aside > max_share * origin.num_read
    )


def _refuse_near_labels(labels: Iterable[str], study: Study | None) -> None:
    """Refuse labels that differ only in case: some file systems hold one file for them."""
    folded = {label.casefold(): label for label in (study.labels if study else ())}
    for label in labels:
        if (similar := folded.setdefault(label.casefold(), label)) != label:
            raise InputError(
                f"labels {similar!r} and {label!r} differ only in case; give another LABEL=SOURCE"
            )


def _ingest_label(
    label: str,
    sources: Sequence[Source],
    change: Change,
    *,
    keep: Sequence[str],
    replace: bool,
    reporter: Reporter,
) -> tuple[SourceReport, Sequence[Origin]]:
    """Write one label's files, and compare them with the study's; return what was read, too."""
    reporter.started(label)
    with pair_writer(change, label) as writer:
        origins = [_read_source(source, writer, keep=keep, reporter=reporter) for source in sources]
    if keep:
        write_further_columns(change, writer, keep)
    manifest = write_manifest(change, writer, origins=origins)
    study = change.study
    if study is None or label not in study.labels:
        return SourceReport(status="new", manifest=manifest), origins
    try:
        existing = read_pairs_manifest(study.pairs_dir, label)
        verified_path(study, existing)
        if _content(existing) == _content(manifest):
            for relative in pair_files(label):
                change.staged.remove(relative)
            return SourceReport(status="unchanged", manifest=existing), origins
        raise InputError(
            f"study {study.path}: it has other pairs labelled {label!r} already "
            f"({existing.num_kept:,}, now {manifest.num_kept:,}); put the new ones in their place "
            "with --replace, or give another label as LABEL=SOURCE, or another study"
        )
    except InputError:
        if not replace:
            raise
        return SourceReport(status="replaced", manifest=manifest), origins


def _content(manifest: PairsManifest) -> dict[str, Any]:
    """Return what two equal ingests have in common: the pairs' digest and every count."""
    return manifest.model_dump(exclude={"origins", "parquet_sha256", "encore_version", "synthetic"})


def _further_columns(record: Mapping[str, Any], names: Sequence[str]) -> dict[str, str | None]:
    """Return the values of these columns of a record as text; None where there is none."""
    values = ((name, record.get(name)) for name in names)
    return {
        name: value
        if value is None or isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in values
    }


def _read_source(
    source: Source, writer: PairWriter, *, keep: Sequence[str], reporter: Reporter
) -> Origin:
    """Read every record of a source into a writer, and return the source's origin."""
    assert source.format is not None, "resolve_sources sets it"
    forms = set[str]()
    parse = load_parser(
        source.format, source=writer.label, prefer=source.prefer, on_reading=forms.add
    )
    name = source.name
    reasons, first_problem, number = Counter[str](), "", 0
    for number, record in enumerate(source.records(), start=1):
        forms.clear()
        try:
            if record.problem is not None:
                raise record.problem
            if not isinstance(record.value, Mapping):
                kind = type(record.value).__name__
                raise MalformedRecordError("not-an-object", f"a JSON {kind}, expected an object")
            further = _further_columns(record.value, keep) if keep else None
            writer.add(parse(record.value), further)
            writer.num_by_form.update(forms)
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
        kind="hub" if source.repo_id is not None else "local",
        name=name,
        format=source.format,
        revision=source.revision,
        split=source.split,
        subset=source.subset,
        prefer=source.prefer,
        num_read=number,
        num_set_aside=reasons.total(),
    )
