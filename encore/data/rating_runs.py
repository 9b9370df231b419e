"""Rating runs on disk: their manifest, which runs a study has, and how far each is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import model_validator

from encore.core.files import write_json
from encore.core.model_files import is_demo_judge
from encore.data.records import RESPONSES
from encore.data.rule_sets import rules_digest
from encore.data.study import open_study
from encore.runs import run_files as runs
from encore.runs.run_files import JudgedManifest, RunStatus

RUN_FILE = "run.json"
_ENOUGH_FILE = "enough.json"


class RatingManifest(JudgedManifest):
    """The manifest of a rating run: what its key is a hash of, and the rules with their texts.

    ``rule_set`` (a name) is for people; the key does not cover it.
    """

    FILE: ClassVar[str] = RUN_FILE
    KEY_FIELD: ClassVar[str] = "run_key"
    COMMAND: ClassVar[str] = "encore rate"
    DOING: ClassVar[str] = "rating"
    DONE: ClassVar[str] = "rated"
    UNIT: ClassVar[str] = "ratings"
    PARQUET: ClassVar[Mapping[str, Any]] = {
        **JudgedManifest.PARQUET,
        "write_statistics": ["rating"],
    }

    run_key: str
    rule_set: str
    rules: tuple[dict[str, str], ...]

    @model_validator(mode="after")
    def _knows_the_demos_judge(self) -> Self:
        """By the content of its folder; also in manifests that do not say it."""
        if is_demo_judge((self.identity.get("judge") or {}).get("revision")):
            object.__setattr__(self, "synthetic", (f"judge of run {self.run_key}",))
        return self

    @property
    def title(self) -> str:
        """The judge, and how it was asked if not as the paper does."""
        return ", ".join((super().title, *self.deviations))

    @property
    def deviations(self) -> tuple[str, ...]:
        """Layout and decoding, each where it is not the paper's."""
        found = (self.identity.get("layout"), self.identity["decoding"].get("kind"))
        return tuple(way for way in found if way)

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """Rule ids in head order."""
        return tuple(rule["rule_id"] for rule in self.rules)

    @property
    def rows_per_pair(self) -> int:
        """Every rule's rating of both responses, or of those that the run rates."""
        return len(self.identity.get("responses", RESPONSES)) * len(self.rules)

    def check(self, folder: Path, /) -> None:
        """Refuse a manifest whose key, folder or rules do not fit its identity."""
        super().check(folder)
        if self.run_key != folder.name:
            raise ValueError(f"it belongs to run {self.run_key}")
        if rules_digest(self.rules) != self.identity["rules_sha256"]:
            raise ValueError("its rules are not those of its identity")

    def check_values(self, file: pq.ParquetFile, /) -> None:
        """Refuse a rating that is no number in [0, 1]; null is none."""
        rating = file.read(columns=["rating"], use_threads=False)["rating"]
        is_valid = pc.and_(pc.greater_equal(rating, 0), pc.less_equal(rating, 1))  # false for NaN
        if len(bad := rating.filter(pc.invert(is_valid))):  # a null is neither
            raise ValueError(f"it has a rating of {bad[0]}, expected a number in [0, 1]")


RatingStatus = RunStatus[RatingManifest]

#: `encore.runs.run_files` on rating runs: of a study's folder of ratings, or of one run's folder.
list_runs = partial(runs.list_runs, kind=RatingManifest)
choose_run = partial(runs.choose_run, kind=RatingManifest)
describe_run = partial(runs.describe_run, kind=RatingManifest)
read_run = partial(runs.read_manifest, kind=RatingManifest)
run_status = partial(runs.run_status, kind=RatingManifest)


def chosen_runs(ratings_dir: Path, run: str | None) -> tuple[Path, ...]:
    """All rating runs of a study, or the one whose key begins with ``run``."""
    return list_runs(ratings_dir) if run is None else (choose_run(ratings_dir, key=run),)


def ratings_of(
    status: RatingStatus, columns: Sequence[str], *, filters: Any = None
) -> dict[tuple[str, ...], float | None]:
    """The ratings of a run's finished shards by the values of some columns.

    Args:
        status: The run.
        columns: What tells ratings apart.
        filters: Which rows, as for `pyarrow.parquet.read_table`; None: all.
    """
    read = partial(pq.read_table, columns=[*columns, "rating"], filters=filters, partitioning=None)
    rows = (row for path in status.paths for row in read(path).to_pylist())
    return {tuple(row[name] for name in columns): row["rating"] for row in rows}


def status(study: Path) -> tuple[RatingStatus, ...]:
    """Every rating run of a study, every shard checked."""
    return tuple(run_status(run_dir) for run_dir in list_runs(open_study(study).ratings_dir))


def record_precision_reached(run_dir: Path, *, num_shards: int, error: float) -> None:
    """Say in a run's folder that it has ended because its weights were sure enough.

    Args:
        run_dir: The folder.
        num_shards: So many shards, from the plan's first on, are enough.
        error: Their weights are within this share of those of the whole plan, 95 % confidence.
    """
    write_json(run_dir / _ENOUGH_FILE, {"num_shards": num_shards, "error": error})


def sufficiency_note(status: RatingStatus) -> str:
    """Why a run needs no more shards than it has, as a sentence; empty: it does, or has all."""
    try:
        enough = json.loads((status.run_dir / _ENOUGH_FILE).read_bytes())
        num_enough, error = int(enough["num_shards"]), float(enough["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if status.is_complete or any(one.index < num_enough for one in status.unfinished):
        return ""
    return (
        f"run {status.manifest.run_key} has {status.count('done')} of {len(status.shards)} shards "
        f"and needs no more: {num_enough} give every weight within {error:.2%} of "
        "what all would give (95% confidence)"
    )


def null_reasons(status: RatingStatus) -> dict[str, int]:
    """Null ratings of a run's finished shards by reason, the most frequent first.

    Only shards that have nulls are opened, and of these one column of few values.
    """
    reasons: Counter[str] = Counter()
    for shard in status.shards:
        if shard.path is not None and shard.footer.get("num_nulls"):
            column = pq.read_table(shard.path, columns=["null_reason"], partitioning=None)
            reasons.update(column["null_reason"].drop_null().to_pylist())
    return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
