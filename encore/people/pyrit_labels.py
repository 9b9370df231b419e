"""Read people's scores of responses that the Python package PyRIT has; it need not be installed.

They are in the tables of two of its folders: ``harm`` (how harmful a response is, from 0 to 1, by
one rater or three) and ``refusal_scorer`` (0 or 1). A category of harm is a rule here.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from encore.core.errors import InputError
from encore.data.records import slug
from encore.data.sources.file_streams import MAX_RECORD_BYTES, readable

_FOLDERS = ("harm", "refusal_scorer")
#: Tables of this name repeat rows of the others.
_SAMPLE = "mini_"
#: Rule of the tables without a category.
_REFUSAL = "refusal"


def is_pyrit(path: Path) -> bool:
    """Return True for what may hold PyRIT's tables: a wheel or a folder."""
    return path.is_dir() or path.suffix == ".whl"


def pyrit_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield position and record of each scored text, with the columns of a table of labels.

    The label of several raters is the middle one of their scores, the lower of two.

    Args:
        path: Wheel of PyRIT, or a folder with its unpacked tables.

    Raises:
        InputError: There is no such table, or one cannot be read.
    """
    num_tables = 0
    for name, content in _tables(path):
        num_tables += 1
        try:
            lines = [*io.StringIO(content.decode("utf-8-sig"), newline="")]
            num_comments = next((n for n, line in enumerate(lines) if line[0] != "#"), len(lines))
            rows = csv.DictReader(lines[num_comments:], restval="", strict=True)
            for row in rows:
                if row.get("data_type", "text") == "text":
                    last_line = num_comments + rows.line_num
                    yield f"{name}, row that ends in line {last_line}", _record(row, name)
        except (csv.Error, KeyError, ValueError) as error:
            raise InputError(
                f"labels {path}, {name}: {type(error).__name__} {error}; expected the columns "
                "objective, assistant_response and human_score… with numbers"
            ) from error
    if not num_tables:
        raise InputError(
            f"labels {path}: no table in a folder {' or '.join(_FOLDERS)}; expected the wheel of "
            "pyrit, or its unpacked files"
        )


def _record(row: dict[str, str], name: str) -> dict[str, Any]:
    scores = sorted(
        float(value) for column, value in row.items() if column.startswith("human_score") and value
    )
    return {
        "source": PurePosixPath(name).stem,
        "prompt": row["objective"],
        "response": row["assistant_response"],
        "rule": slug(row.get("harm_category") or _REFUSAL),
        "label": scores[(len(scores) - 1) // 2] if scores else None,
    }


def _tables(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each table with scores in a wheel or folder, sorted by name."""
    with readable(path):
        if path.is_dir():
            for file in sorted(path.rglob("*.csv")):
                if _has_scores(PurePosixPath(file.resolve().as_posix())):
                    yield file.relative_to(path).as_posix(), file.read_bytes()
            return
        try:
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    if _has_scores(PurePosixPath(name)):
                        yield name, _unpacked(archive, name)
        except zipfile.BadZipFile as error:
            raise InputError(f"labels {path}: {error}; get the wheel again") from error


def _unpacked(archive: zipfile.ZipFile, name: str) -> bytes:
    if (num_bytes := archive.getinfo(name).file_size) > MAX_RECORD_BYTES:
        raise InputError(f"labels {archive.filename}, {name}: {num_bytes:,} bytes are too many")
    return archive.read(name)


def _has_scores(path: PurePosixPath) -> bool:
    is_table = path.suffix == ".csv" and path.parent.name in _FOLDERS
    return is_table and not path.name.startswith(_SAMPLE)
