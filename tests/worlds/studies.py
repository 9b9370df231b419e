"""Make studies from rows for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from encore.data.ingestion import ingest
from encore.data.study import Study, changed_study, open_study


def create_study(path: Path) -> Study:
    """Make a study without pairs."""
    with changed_study(path):
        pass
    return open_study(path)


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    """Write one JSON object per line and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def study_of(
    rows: Iterable[object], path: Path, *, label: str = "mine", replace: bool = False
) -> Path:
    """Ingest rows into a study, from a file that is written beside it."""
    source = write_lines(path.with_name(f"{path.name}.jsonl"), rows)
    ingest([f"{label}={source}"], out=path, replace=replace)
    return path
