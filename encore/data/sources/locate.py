"""Read a SOURCE argument: ``[LABEL=][FORMAT:]WHERE[@REVISION]``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from encore.data.sources import FORMATS, HUB_SOURCES, FormatName, known_repo
from encore.data.sources.local import SUFFIXES, data_suffix
from encore.errors import InputError, did_you_mean

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: `encore analyze` calls all sources together by this name.
_RESERVED_LABEL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Where one source is: either a local ``path`` or a ``repo_id`` on the hub.

    ``format`` is None when it is to be told from the first record, ``revision`` when it is the
    hub's main branch.
    """

    label: str | None
    format: FormatName | None
    path: Path | None = None
    repo_id: str | None = None
    revision: str | None = None
    subset: str | None = None

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.repo_id or str(self.path)

    @property
    def default_label(self) -> str:
        """The label when neither the user nor the format gives one: the file's or repo's name."""
        if self.path is None:
            stem = self.name.rpartition("/")[2]
        else:
            resolved_name = self.path.resolve().name
            stem = resolved_name.removesuffix(data_suffix(self.path) or "")
        return checked_label(re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64])


def locate(argument: str) -> tuple[Located, ...]:
    """What a SOURCE argument names: one source, or the several of a combination.

    A registered name (``hh``, ``hh/harmless-base``, ``pku``, ``hh-pku``), a file or folder, or a
    hub id; in front of it optionally ``FORMAT:``, and in front of that ``LABEL=``.

    Raises:
        InputError: unknown source or format (with near names); a bad or doubtful name.
    """
    label, rest = _split_label(argument)
    format_name, where = _split_format(rest)
    if format_name is None and (registered := _registered(where, label=label)):
        return registered
    if where and Path(where).exists():
        return (Located(label=label, format=format_name, path=Path(where)),)
    repo_id, _, revision = where.partition("@")
    if _HUB_ID.fullmatch(repo_id) and data_suffix(Path(repo_id)) is None:
        return (_hub(repo_id, revision=revision, label=label, format_name=format_name),)
    if data_suffix(Path(where)) or Path(where).suffix in {".csv", ".tsv"}:
        near = did_you_mean(where, [str(entry) for entry in _entries(Path(where).parent)])
        raise InputError(f"{where}: no such file{near}")
    raise InputError(f"unknown source {argument!r}: {_expected(where)}")


def checked_label(label: str) -> str:
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
    return checked_label(label), rest


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


def _registered(where: str, *, label: str | None) -> tuple[Located, ...] | None:
    name, _, subset = where.partition("/")
    sources = HUB_SOURCES.get(name)
    if sources is None:
        return None
    is_path, is_known = Path(where).exists(), not subset or subset in sources[0].subsets
    if is_path and not is_known:
        return None  # a file in a folder that happens to be called hh
    if is_path:
        raise InputError(
            f"source {where!r} is a registered name and also a path here; write './{where}' for "
            f"the path, or '{sources[0].format}:{sources[0].repo_id}' for the data set"
        )
    if not is_known:
        known = ", ".join(sources[0].subsets) or "none"
        raise InputError(
            f"source {where!r}: {name} has no subset {subset!r} (subsets: {known})"
            f"{did_you_mean(subset, list(sources[0].subsets))}"
        )
    if label is not None and len(sources) > 1:
        raise InputError(
            f"source {where!r} stands for {len(sources)} data sets with labels of their own "
            f"({', '.join(source.label for source in sources)}); leave out {label + '='!r}"
        )
    return tuple(
        Located(
            label=label or source.label,
            format=source.format,
            repo_id=source.repo_id,
            revision=source.revision,
            subset=subset or None,
        )
        for source in sources
    )


def _hub(
    repo_id: str, *, revision: str, label: str | None, format_name: FormatName | None
) -> Located:
    known = known_repo(repo_id)
    return Located(
        label=label or (known.label if known else None),
        format=format_name or (known.format if known else None),
        repo_id=repo_id,
        revision=revision or (known.revision if known else None),
    )


def _expected(where: str) -> str:
    if where in FORMATS:
        return f"{where} is a format; say of what, as {where}:PATH or {where}:HUB_ID"
    siblings = [str(entry) for entry in _entries(Path(where).parent)]
    return (
        f"expected {', '.join(HUB_SOURCES)}, a file ({', '.join(SUFFIXES)}), a folder of such "
        f"files, or a hub id OWNER/NAME{did_you_mean(where, [*HUB_SOURCES, *siblings])}"
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
