"""Small rated studies for tests of SQL over a whole study."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from encore.data.study import open_study
from encore.tables.study_database import StudyDatabase, open_database
from encore.tables.study_tables import StudyTables, study_tables
from encore.tables.verdict_rows import with_rule_verdicts
from tests.worlds import studies
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import study_of

NUM_RULES = 10
#: Number of pairs of each source.
NUM_PAIRS = {"hh": 7, "pku": 5}
SHARD_SIZE = 5


def make_pairs(folder: Path, *, prefix: str = "") -> Path:
    """Make a study of two sources; a third record of "pku" is no pair and is set aside."""
    rows_by_label = {
        f"{prefix}{label}": [
            {
                "prompt": f"{label} question {index}?",
                "chosen": f"Good “answer” {index}, 它\n-- ok",
                "rejected": f"Bad answer {index};",
            }
            for index in range(num_pairs)
        ]
        for label, num_pairs in NUM_PAIRS.items()
    }
    rows_by_label[f"{prefix}pku"].insert(
        2, {"prompt": "Alike?", "chosen": "same", "rejected": "same"}
    )
    return study_of(rows_by_label, folder / "study")


def rate_study(study: Path, *, judge: str = "one", limit: int | None = None) -> str:
    """Rate a study with five scores and a few nulls, by the prompt alone; return the run key."""

    def reply(prompt: str) -> str:
        byte = hashlib.sha256((judge + prompt).encode()).digest()[0]
        return "no idea" if byte % 13 == 0 else f"{byte % 5 / 4:.2f}"

    scripted = ScriptedJudge(reply, name=judge)
    run = studies.rate_study(study, scripted, shard_size=SHARD_SIZE, limit=limit)
    return run.manifest.run_key


def digest_of_tree(folder: Path) -> str:
    """Return the SHA-256 of every path below a folder and of every file's content."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0{path.is_file()}\0".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def comparable(rows: Iterable[Any]) -> list[str]:
    """Sort rows and round floats to nine digits: the last digits of sums depend on their order."""
    return sorted(repr(_rounded(row)) for row in rows)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _rounded(field) for key, field in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(element) for element in value]
    return value


@contextmanager
def locked(tables: StudyTables) -> Iterator[StudyDatabase]:
    """Open the tables and views of a study in this process."""
    with open_database(tables.by_name, views=tables.views) as database:
        yield database


def query(study: Path, sql: str, *, judge: str | None = None) -> pa.Table:
    """Run a query over a study in this process."""
    tables = with_rule_verdicts(study_tables(open_study(study), judge=judge), sql)
    with locked(tables) as database:
        return database.select(sql).read_all()


def ask(study: Path, sql: str, *, judge: str | None = None) -> list[tuple[Any, ...]]:
    """Return the rows of a query over a study as tuples."""
    columns = query(study, sql, judge=judge).columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def ask_records(study: Path, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query over a study as records."""
    return list(query(study, sql).to_pylist())
