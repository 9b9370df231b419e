"""Small rated studies for tests of SQL over a whole study."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from encore.data.ingestion import ingest
from encore.data.study import open_study
from encore.judges.judge_config import JudgeConfig
from encore.rating.rating_config import RatingConfig
from encore.rating.rating_run import open_run
from encore.runs.shard_runner import work_through
from encore.tables.study_database import StudyDatabase, open_database
from encore.tables.study_tables import StudyTables, study_tables
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import write_lines

NUM_RULES = 10
#: Pairs of each source; a third record of "pku" is no pair and is set aside.
NUM_PAIRS = {"hh": 7, "pku": 5}
SHARD_SIZE = 5


def coarse_score(salt: str) -> Callable[[str], str]:
    """A judge's replies: one of five scores, or now and then no score, by the prompt alone."""

    def reply(prompt: str) -> str:
        byte = hashlib.sha256((salt + prompt).encode()).digest()[0]
        return "no idea" if byte % 13 == 0 else f"{byte % 5 / 4:.2f}"

    return reply


def make_pairs(folder: Path, *, prefix: str = "") -> Path:
    """A study of two sources with pairs and one record that is none."""
    sources = []
    for label, num_pairs in NUM_PAIRS.items():
        records: list[dict[str, str]] = [
            {
                "prompt": f"{label} question {index}?",
                "chosen": f"Good “answer” {index}, 它\n-- ok",
                "rejected": f"Bad answer {index};",
            }
            for index in range(num_pairs)
        ]
        if label == "pku":
            records.insert(2, {"prompt": "Alike?", "chosen": "same", "rejected": "same"})
        path = write_lines(folder / f"{label}.jsonl", records)
        sources.append(f"{prefix}{label}={path}")
    ingest(sources, out=folder / "study")
    return folder / "study"


def rate_study(study: Path, *, judge: str = "one", limit: int | None = None) -> str:
    """Have a scripted judge rate a study; returns the run key."""
    config = RatingConfig(judge=JudgeConfig(model=judge), shard_size=SHARD_SIZE, limit=limit)
    run = open_run(
        open_study(study), config, judge=ScriptedJudge(name=judge, script=coarse_score(judge))
    )
    work_through(run.job())
    return run.manifest.run_key


def digest_of_tree(folder: Path) -> str:
    """SHA-256 over every path below a folder and every file's content."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0{path.is_file()}\0".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def comparable(rows: Iterable[Any]) -> list[str]:
    """Rows in an order of their own, floats to nine digits: sums differ in the last ones."""
    return sorted(repr(_rounded(row)) for row in rows)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


@contextmanager
def locked(found: StudyTables) -> Iterator[StudyDatabase]:
    """The tables and views of a study in this process."""
    with open_database(found.by_name, views=found.views) as database:
        yield database


def ask(study: Path, sql: str, *, judge: str | None = None) -> list[tuple[Any, ...]]:
    """The rows of a query over a study, asked in this process."""
    with locked(study_tables(open_study(study), judge=judge)) as database:
        table = database.select(sql).read_all()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def ask_records(study: Path, sql: str) -> list[dict[str, Any]]:
    """The same as a record a row."""
    with locked(study_tables(open_study(study))) as database:
        return list(database.select(sql).read_all().to_pylist())
