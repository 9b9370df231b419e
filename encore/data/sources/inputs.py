"""From SOURCE arguments to inputs that can be read: files found, commits and formats settled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from encore.data.sources import FORMATS, FormatName
from encore.data.sources.detect import detect_format
from encore.data.sources.hub import resolve_commit, stream_records
from encore.data.sources.local import data_files, read_records
from encore.data.sources.locate import Located, locate
from encore.data.sources.pku import DEFAULT_PREFER, Prefer
from encore.data.sources.raw import RawRecord
from encore.errors import InputError

_DEFAULT_SPLIT = "train"
#: How far to look for a readable record when the format is to be told from one.
_NUM_PROBED = 100

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One file, or one data set on the hub, whose records have one format and one label.

    ``name`` is a file's name or a hub id; ``records`` starts reading from the beginning.
    """

    label: str
    format: FormatName
    name: str
    records: Callable[[], Iterator[RawRecord]]
    path: Path | None = None
    revision: str | None = None
    split: str | None = None
    subset: str | None = None
    prefer: Prefer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What holds for all sources of one ingest; None where the user said nothing."""

    prefer: Prefer | None = None
    revision: str | None = None
    split: str | None = None


def resolve_inputs(
    arguments: Sequence[str], *, options: Options, on_note: Note
) -> tuple[Input, ...]:
    """The inputs that SOURCE arguments name, in order; a folder gives one per file.

    Raises:
        InputError: unknown or unreadable source, a format that cannot be told, an option that
            fits none of the sources, the same input twice.
    """
    located = [found for argument in arguments for found in locate(argument)]
    if not located:
        raise InputError("no source given; name one, for example hh or a JSON-lines file")
    located = _with_revision(located, options)
    inputs = tuple(
        found
        for one in located
        for found in (
            _hub_inputs(one, options, on_note)
            if one.path is None
            else _local_inputs(one, one.path, options, on_note)
        )
    )
    _refuse_unused_prefer(inputs, options)
    _refuse_repeats(inputs)
    _refuse_two_revisions(inputs)
    return inputs


def _with_revision(located: Sequence[Located], options: Options) -> list[Located]:
    hubs = [one for one in located if one.repo_id is not None]
    if options.split is not None and not hubs:
        raise InputError(f"split {options.split!r}: no source is on the hub; leave out --split")
    if options.revision is None:
        return list(located)
    if len(hubs) != 1:
        raise InputError(
            f"revision {options.revision!r}: {len(hubs)} sources are on the hub, expected one; "
            "write OWNER/NAME@REVISION for each instead"
        )
    return [replace(one, revision=options.revision) if one in hubs else one for one in located]


def _local_inputs(located: Located, path: Path, options: Options, on_note: Note) -> Iterator[Input]:
    for file in data_files(path):
        open_file = partial(read_records, file)
        format_name = located.format or _told(open_file, name=str(file), on_note=on_note)
        prefer = _prefer(format_name, options)
        columns = FORMATS[format_name].columns + ((f"{prefer}_response_id",) if prefer else ())
        yield Input(
            label=located.label or FORMATS[format_name].label or located.default_label,
            format=format_name,
            name=file.name,
            path=file,
            prefer=prefer,
            records=partial(open_file, columns=columns),
        )


def _hub_inputs(located: Located, options: Options, on_note: Note) -> Iterator[Input]:
    assert located.repo_id is not None
    commit = resolve_commit(located.repo_id, located.revision)
    split = options.split or _DEFAULT_SPLIT
    records = partial(
        stream_records, located.repo_id, revision=commit, split=split, subset=located.subset
    )
    format_name = located.format or _told(records, name=located.repo_id, on_note=on_note)
    yield Input(
        label=located.label or FORMATS[format_name].label or located.default_label,
        format=format_name,
        name=located.repo_id,
        revision=commit,
        split=split,
        subset=located.subset,
        prefer=_prefer(format_name, options),
        records=records,
    )


def _prefer(format_name: FormatName, options: Options) -> Prefer | None:
    return (options.prefer or DEFAULT_PREFER) if FORMATS[format_name].has_prefer else None


def _told(records: Callable[[], Iterator[RawRecord]], *, name: str, on_note: Note) -> FormatName:
    """The format of the first readable record."""
    probed = list(itertools.islice(records(), _NUM_PROBED))
    first = next((record.value for record in probed if isinstance(record.value, Mapping)), None)
    if first is None:
        raise InputError(f"{name}: {_nothing_readable(probed)}")
    format_name = detect_format(first, name=name)
    on_note(f"{name}: format {format_name}, told from its columns ({', '.join(map(str, first))})")
    return format_name


def _nothing_readable(probed: Sequence[RawRecord]) -> str:
    if not probed:
        return "empty, it has no records"
    reason: Any = probed[0].problem or "no JSON object"
    return (
        f"none of the first {len(probed)} records is a JSON object with columns "
        f"(record {probed[0].number}: {reason})"
    )


def _refuse_unused_prefer(inputs: Sequence[Input], options: Options) -> None:
    if options.prefer is not None and all(one.prefer is None for one in inputs):
        raise InputError(f"prefer {options.prefer!r}: no source has format pku; leave out --prefer")


def _refuse_repeats(inputs: Sequence[Input]) -> None:
    seen = set[object]()
    for one in inputs:
        place: object
        if one.path is not None:
            status = one.path.stat()
            place = (status.st_dev, status.st_ino)  # the same through links, too
        else:
            place = (one.name, one.revision, one.split, one.subset)
        if place in seen:
            raise InputError(f"{one.path or one.name}: given twice; name every source once")
        seen.add(place)


def _refuse_two_revisions(inputs: Sequence[Input]) -> None:
    revisions: dict[tuple[str, str], str] = {}
    for one in inputs:
        if one.revision is None:
            continue
        first = revisions.setdefault((one.label, one.name), one.revision)
        if first != one.revision:
            raise InputError(
                f"{one.name}: revisions {first[:12]} and {one.revision[:12]} under one label "
                f"{one.label!r}; ingest one of them, or give each its own LABEL=SOURCE"
            )
