"""From SOURCE arguments, ``[LABEL=][FORMAT:]WHERE[@REVISION]``, to sources that can be read."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from encore.core.errors import InputError, did_you_mean
from encore.data.sources import FORMATS, FormatName
from encore.data.sources.hh import is_transcript
from encore.data.sources.hub import resolve_commit, stream_records
from encore.data.sources.local import SUFFIXES, data_files, data_suffix, read_records
from encore.data.sources.pku import DEFAULT_PREFER, Prefer
from encore.data.sources.raw_records import RawRecord

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: `encore analyze` calls all sources together by this name.
_RESERVED_LABEL = "all"
_DEFAULT_SPLIT = "train"
#: How far to look for a readable record when the format is to be told from one.
_NUM_PROBED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source: either a local ``path`` or a ``repo_id`` on the hub.

    `locate` leaves ``label`` and ``format`` None where the argument does not name them, and
    ``revision`` None for the hub's main branch. `resolve_sources` settles all of them.
    """

    label: str | None = None
    format: FormatName | None = None
    path: Path | None = None
    repo_id: str | None = None
    revision: str | None = None
    subset: str | None = None
    split: str | None = None
    prefer: Prefer | None = None

    @property
    def default_label(self) -> str:
        """The label when neither the user nor the format gives one: the file's or repo's name."""
        if self.path is None:
            stem = str(self.repo_id).rpartition("/")[2]
        else:
            stem = self.path.resolve().name.removesuffix(data_suffix(self.path) or "")
        return _checked_label(re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64])

    def records(self) -> Iterator[RawRecord]:
        """Every record, from the beginning."""
        if self.path is not None:
            columns = FORMATS[self.format].columns if self.format else ()
            extra = (f"{self.prefer}_response_id",) if self.prefer else ()
            return read_records(self.path, columns=columns + extra)
        assert self.repo_id is not None
        return stream_records(
            self.repo_id,
            revision=self.revision,
            split=self.split or _DEFAULT_SPLIT,
            subset=self.subset,
        )


@cache
def hub_sources() -> dict[str, tuple[Source, ...]]:
    """Data sets on the hub under short names, of ``hub_sources.toml``."""
    text = Path(__file__).with_name("hub_sources.toml").read_text(encoding="utf-8")
    return {
        name: tuple(Source(**one) for one in some) for name, some in tomllib.loads(text).items()
    }


# --- what an argument names ---------------------------------------------------------------------


def locate(argument: str) -> tuple[Source, ...]:
    """What a SOURCE argument names: one source, or the several of a combination.

    A file or folder, else a name in `hub_sources`, or a hub id; in front of it optionally
    ``FORMAT:``, and in front of that ``LABEL=``, which all of a combination then have.

    Raises:
        InputError: unknown source or format (with near names); a bad name.
    """
    label, rest = _split_label(argument)
    format_name, where = _split_format(rest)
    path = Path(where)
    if bool(where) and path.exists():
        return (Source(label=label, format=format_name, path=path),)
    if format_name is None and (registered := hub_sources().get(where)):
        return tuple(replace(one, label=label or one.label) for one in registered)
    repo_id, _, revision = where.partition("@")
    is_hub_id = _HUB_ID.fullmatch(repo_id) and data_suffix(Path(repo_id)) is None
    if is_hub_id and Path(repo_id).parts[0] not in hub_sources():
        every = (source for sources in hub_sources().values() for source in sources)
        known = next((one for one in every if one.repo_id == repo_id), Source(repo_id=repo_id))
        source = replace(
            known,
            label=label or known.label,
            format=format_name or known.format,
            revision=revision or known.revision,
        )
        return (source,)
    near = [str(entry) for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    raise InputError(
        f"unknown source {argument!r}: expected {', '.join(hub_sources())}, a file that exists "
        f"({', '.join(SUFFIXES)}), a folder of such files, or a hub id OWNER/NAME, each also as "
        f"FORMAT:SOURCE{did_you_mean(where, [*hub_sources(), *near])}"
    )


def _checked_label(label: str) -> str:
    """The label, if it can be a file name and a ``source`` value."""
    if not _LABEL.fullmatch(label) or label == _RESERVED_LABEL:
        raise InputError(
            f"label {label!r}: expected letters, digits, '.', '_' and '-' (at most 64, the first "
            f"a letter or digit), and not {_RESERVED_LABEL!r}; give another one as LABEL=SOURCE"
        )
    return label


def _split_label(argument: str) -> tuple[str | None, str]:
    label, equals, rest = argument.partition("=")
    if not equals or Path(argument).exists() or "/" in label or ":" in label:
        return None, argument
    return _checked_label(label), rest


def _split_format(text: str) -> tuple[FormatName | None, str]:
    name, colon, where = text.partition(":")
    if not colon or Path(text).exists():
        return None, text
    if name not in FORMATS:
        raise InputError(
            f"unknown format {name!r} in {text!r}: expected one of {', '.join(FORMATS)}"
            f"{did_you_mean(name, list(FORMATS))}"
        )
    return cast(FormatName, name), where


# --- what can be read ---------------------------------------------------------------------------


def resolve_sources(
    arguments: Sequence[str],
    *,
    prefer: Prefer | None,
    split: str | None,
    on_note: Callable[[str], None],
) -> list[Source]:
    """The sources that the arguments name, in order; a folder gives one per file.

    Raises:
        InputError: unknown or unreadable source, a format that cannot be told, an option that
            fits none of the sources, the same input twice.
    """
    located = [found for argument in arguments for found in locate(argument)]
    if not located:
        raise InputError("no source given; name one, for example hh or a JSON-lines file")
    if split is not None and all(one.repo_id is None for one in located):
        raise InputError(f"split {split!r}: no source is on the hub; leave out --split")
    sources = []
    for one in located:
        if one.path is not None:
            parts = [replace(one, path=file) for file in data_files(one.path)]
        else:
            commit = resolve_commit(str(one.repo_id), one.revision)
            parts = [replace(one, revision=commit, split=split or _DEFAULT_SPLIT)]
        for part in parts:
            name = part.format or _told_format(part, on_note=on_note)
            label = one.label or FORMATS[name].label or one.default_label
            by = (prefer or DEFAULT_PREFER) if FORMATS[name].has_prefer else None
            sources.append(replace(part, format=name, label=label, prefer=by))
    if prefer is not None and all(one.prefer is None for one in sources):
        raise InputError(f"prefer {prefer!r}: no source has format pku; leave out --prefer")
    places = [one.path.resolve() if one.path else (one.repo_id, one.subset) for one in sources]
    for one, place in zip(sources, places, strict=True):
        if places.count(place) > 1:
            raise InputError(f"{one.path or one.repo_id}: given twice; name every source once")
    return sources


def _told_format(source: Source, *, on_note: Callable[[str], None]) -> FormatName:
    """The format of the first readable record; any where none is, as reading says what is wrong."""
    name = source.path or source.repo_id
    probed = itertools.islice(source.records(), _NUM_PROBED)
    first = next((record.value for record in probed if isinstance(record.value, Mapping)), None)
    if first is None:
        return "pairs"
    columns = ", ".join(map(str, first))
    format_name = detect_format(first)
    if format_name is None:
        expected = (f"{one} has {', '.join(form.columns)}" for one, form in FORMATS.items())
        raise InputError(
            f"{name}: cannot tell the format from the columns {columns or '(none)'} and the types "
            f"of their values: {'; '.join(expected)}; rename the columns, or name the format as "
            "FORMAT:SOURCE"
        )
    on_note(f"{name}: format {format_name}, told from its columns ({columns})")
    return format_name


def detect_format(record: Mapping[str, Any]) -> FormatName | None:
    """The format of a record by its columns and types; None where it is none of ours."""
    fitting = [name for name, form in FORMATS.items() if record.keys() >= set(form.columns)]
    for name in ("pku", "pairs"):
        if name in fitting:
            return name
    if not fitting:
        return None
    chosen = record["chosen"]  # hh and rlhflow have the same columns
    if isinstance(chosen, list):
        return "rlhflow"
    return "hh" if is_transcript(chosen) else None
