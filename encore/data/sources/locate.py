"""Turn SOURCE arguments, ``[LABEL=][FORMAT:]WHERE[@REVISION]``, into sources that can be read."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from encore.core.errors import InputError, did_you_mean
from encore.core.model_files import is_path
from encore.data.arrow_tables import arrow_table
from encore.data.sources import FORMATS, FormatName, columns_to_read, detect_format
from encore.data.sources.hub import resolve_commit, stream_records
from encore.data.sources.local import SUFFIXES_TEXT, data_files, data_suffix, read_records
from encore.data.sources.pku import DEFAULT_PREFER, Prefer
from encore.data.sources.raw_records import RawRecord

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: `encore analyze` gives this name to all sources together.
_RESERVED_LABEL = "all"
_DEFAULT_SPLIT = "train"
#: Name and default label of a data frame or a list of records.
_DATA_NAME = "table"
#: The format is detected from the first readable record among so many.
_MAX_PROBED_RECORDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data source: a local ``path``, a ``repo_id`` on the hub, or ``data`` in memory.

    `locate` sets the fields that the argument names; `resolve_sources` sets all of them.

    Attributes:
        label: Value of the pairs' ``source`` column.
        format: Name of the records' format.
        path: Local file; `locate` also takes a folder.
        repo_id: Id of a repository on the hub.
        data: Data frame, data set or list of records (`encore.data.arrow_tables`).
        revision: Commit of the repository; before resolving a branch, or None for the main branch.
        subset: Folder of the repository to read; None reads all of it.
        split: Split of the repository to read.
        prefer: Preference label that says which response is chosen; None for most formats.
    """

    label: str | None = None
    format: FormatName | None = None
    path: Path | None = None
    repo_id: str | None = None
    data: Any = field(default=None, compare=False)
    revision: str | None = None
    subset: str | None = None
    split: str | None = None
    prefer: Prefer | None = None

    @property
    def name(self) -> str:
        """Return the name of the file or the folder, of the repository, or of data in memory."""
        return self.path.name if self.path is not None else self.repo_id or _DATA_NAME

    @property
    def default_label(self) -> str:
        """Return a label made of the name of the file or repository."""
        if self.path is None:
            stem = self.name.rpartition("/")[2]
        else:
            stem = self.path.resolve().name.removesuffix(data_suffix(self.path) or "")
        return _checked_label(re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64])

    def records(self) -> Iterator[RawRecord]:
        """Yield every record from the beginning."""
        if self.path is not None:
            name = self.format
            columns = columns_to_read(name, prefer=self.prefer) if name else ()
            return read_records(self.path, columns=columns)
        if self.repo_id is None:
            return memory_records(self.data)
        return stream_records(
            self.repo_id,
            revision=self.revision,
            split=self.split or _DEFAULT_SPLIT,
            subset=self.subset,
        )


def memory_records(data: Any) -> Iterator[RawRecord]:
    """Yield every record of a data frame, a data set or a list of records, numbered from 1."""
    if isinstance(data, list):  # a column may hold texts in one record and messages in another
        records: Iterable[Any] = data
    else:
        records = (row for batch in arrow_table(data).to_batches() for row in batch.to_pylist())
    for number, value in enumerate(records, start=1):
        yield RawRecord(number=number, value=value)


@cache
def hub_sources() -> dict[str, tuple[Source, ...]]:
    """Return the data sets on the hub that have short names (``hub_sources.toml``)."""
    text = Path(__file__).with_name("hub_sources.toml").read_text(encoding="utf-8")
    return {
        name: tuple(Source(**fields) for fields in sources)
        for name, sources in tomllib.loads(text).items()
    }


# --- parsing ------------------------------------------------------------------------------------


def locate(argument: str) -> tuple[Source, ...]:
    """Return the sources that a SOURCE argument names; some short names stand for several.

    The argument is a file, a folder, a name in `hub_sources`, or a hub id. ``FORMAT:`` may stand
    before it, and ``LABEL=``, which labels all its sources, before that.

    Raises:
        InputError: The source or format is unknown (the message has similar names), or the label
            is not valid.
    """
    label, unlabelled = _split_label(argument)
    format_name, name = _split_format(unlabelled)
    path = Path(name)
    if bool(name) and path.exists():
        return (Source(label=label, format=format_name, path=path),)
    if format_name is None and (registered := hub_sources().get(name)):
        return tuple(replace(source, label=label or source.label) for source in registered)
    repo_id, _, revision = name.partition("@")
    is_file = data_suffix(Path(repo_id)) is not None or is_path(repo_id)
    if _HUB_ID.fullmatch(repo_id) and not is_file and Path(repo_id).parts[0] not in hub_sources():
        every_source = itertools.chain(*hub_sources().values())
        defaults = (source for source in every_source if source.repo_id == repo_id)
        default = next(defaults, Source(repo_id=repo_id))
        source = replace(
            default,
            label=label or default.label,
            format=format_name or default.format,
            revision=revision or default.revision,
        )
        return (source,)
    siblings = [str(entry) for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    if is_file or data_suffix(path):
        reason = "no such file or folder"
        if _HUB_ID.fullmatch(repo_id) and path.parent.is_dir():
            reason += f" (a path, since there is a folder {str(path.parent)!r} here)"
        raise InputError(f"{name}: {reason}{did_you_mean(name, siblings)}")
    raise InputError(
        f"unknown source {argument!r}: expected {', '.join(hub_sources())}, a file that exists "
        f"({SUFFIXES_TEXT}), a folder of such files, or a hub id OWNER/NAME, each also as "
        f"FORMAT:SOURCE{did_you_mean(name, [*hub_sources(), *siblings])}"
    )


def _checked_label(label: str) -> str:
    """Return a label if it is valid as a file name and as a ``source`` value."""
    if not _LABEL.fullmatch(label) or label == _RESERVED_LABEL:
        raise InputError(
            f"label {label!r}: expected letters, digits, '.', '_' and '-' (at most 64, the first "
            f"a letter or digit), and not {_RESERVED_LABEL!r}; give another one as LABEL=SOURCE"
        )
    return label


def _split_label(argument: str) -> tuple[str | None, str]:
    """Split ``LABEL=`` off an argument, unless the argument as a whole is a file."""
    label, equals, unlabelled = argument.partition("=")
    if not equals or Path(argument).exists() or "/" in label or ":" in label:
        return None, argument
    return _checked_label(label), unlabelled


def _split_format(text: str) -> tuple[FormatName | None, str]:
    """Split ``FORMAT:`` off an argument, unless the argument as a whole is a file."""
    name, colon, unprefixed = text.partition(":")
    if not colon or Path(text).exists():
        return None, text
    if name not in FORMATS:
        raise InputError(
            f"unknown format {name!r} in {text!r}: expected one of {', '.join(FORMATS)}"
            f"{did_you_mean(name, list(FORMATS))}"
        )
    return cast(FormatName, name), unprefixed


# --- resolving ----------------------------------------------------------------------------------


def located_sources(sources: Any) -> list[Source]:
    """Return the sources of an argument of `encore.data.ingestion.ingest`, in order.

    Args:
        sources: A SOURCE argument (`locate`), a path, or data in memory; several of these as a
            list, or labelled as a dict. A list of dicts is data.
    """
    if isinstance(sources, Mapping):
        return [
            replace(source, label=_checked_label(label))
            for label, unlabelled in sources.items()
            for source in located_sources(unlabelled)
        ]
    if isinstance(sources, list | tuple) and not any(isinstance(s, Mapping) for s in sources):
        return [located for source in sources for located in located_sources(source)]
    if isinstance(sources, Path):
        if not sources.exists():
            raise InputError(f"{sources}: no such file or folder")
        return [Source(path=sources)]
    if isinstance(sources, str):
        return list(locate(sources))
    return [Source(data=sources)]


def resolve_sources(
    sources: Any, *, prefer: Prefer | None, split: str | None, on_note: Callable[[str], None]
) -> list[Source]:
    """Return the sources that an argument names, in order, with every field set.

    A folder becomes a source per file.

    Args:
        sources: Sources as `located_sources` takes them.
        prefer: Preference label for sources of format pku; None takes the default.
        split: Split for sources on the hub; None takes the default.
        on_note: Receives a sentence for each detected format.

    Raises:
        InputError: A source is unknown, cannot be read or is named twice, its format cannot be
            detected, or an option applies to none of the sources.
    """
    located = located_sources(sources)
    if not located:
        raise InputError("no source given; name one, for example hh or a JSON-lines file")
    if split is not None and all(source.repo_id is None for source in located):
        raise InputError(f"split {split!r}: no source is on the hub; leave out --split")
    resolved = []
    for source in located:
        if source.path is not None:
            parts = [replace(source, path=file) for file in data_files(source.path)]
        elif source.repo_id is None:
            parts = [source]
        else:
            commit = resolve_commit(str(source.repo_id), source.revision)
            parts = [replace(source, revision=commit, split=split or _DEFAULT_SPLIT)]
        for part in parts:
            name = part.format or _detect_source_format(part, on_note=on_note)
            label = source.label or FORMATS[name].label or source.default_label
            part_prefer = (prefer or DEFAULT_PREFER) if FORMATS[name].has_prefer else None
            resolved.append(replace(part, format=name, label=label, prefer=part_prefer))
    if prefer is not None and all(source.prefer is None for source in resolved):
        raise InputError(f"prefer {prefer!r}: no source has format pku; leave out --prefer")
    inputs = [
        source.path.resolve() if source.path else (source.repo_id, source.subset, id(source.data))
        for source in resolved
    ]
    for source, input_id in zip(resolved, inputs, strict=True):
        if inputs.count(input_id) > 1:
            raise InputError(f"{source.path or source.name}: given twice; name every source once")
    return resolved


def _detect_source_format(source: Source, *, on_note: Callable[[str], None]) -> FormatName:
    """Return the format of the first readable record.

    Without a readable record any format does: reading then reports the problem.
    """
    name = source.path or source.name
    probed = itertools.islice(source.records(), _MAX_PROBED_RECORDS)
    first = next((record.value for record in probed if isinstance(record.value, Mapping)), None)
    if first is None:
        return "pairs"
    columns = ", ".join(map(str, first))
    format_name = detect_format(first)
    if format_name is None:
        expected = (
            f"{format_id} has {', '.join(form.columns)}" for format_id, form in FORMATS.items()
        )
        raise InputError(
            f"{name}: cannot tell the format from the columns {columns or '(none)'} and the types "
            f"of their values: {'; '.join(expected)}; rename the columns, add a column prompt to "
            "texts without one, or name the format as FORMAT:SOURCE"
        )
    on_note(f"{name}: format {format_name}, detected from its columns ({columns})")
    return format_name
