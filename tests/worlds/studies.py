"""Make studies from rows, and rate them with a scripted judge or with ratings that tests give."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from encore.core.files import file_sha256
from encore.data.ingestion import ingest
from encore.data.rating_runs import RatingManifest
from encore.data.records import slug
from encore.data.rule_sets import rules_digest
from encore.data.schemas import RATINGS
from encore.data.study import Study, as_study, changed_study, open_study
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig, RatingRunOptions
from encore.rating.rating_run import RatingRun, open_run
from encore.rules.pool import PoolRule, write_pool
from encore.runs import shard_files
from encore.runs.identity import run_key_of
from encore.runs.manifest import Shard, claim_folder
from encore.runs.shard_files import ShardState, ShardTable
from encore.runs.worker import work_through
from tests.worlds.judges import ScriptedJudge

# --- pairs --------------------------------------------------------------------------------------


def create_study(path: Path) -> Study:
    """Make a study without pairs."""
    with changed_study(path):
        pass
    return open_study(path)


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    """Write one JSON object per line and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def numbered_pairs(num_pairs: int, *, num_extra_words: int = 0) -> list[dict[str, str]]:
    """Return rows ``Question 0?``, ``Answer 0.``, ``No 0.``; extra words make prompts longer."""
    return [
        {
            "prompt": f"Question {index}?" + " please" * num_extra_words,
            "chosen": f"Answer {index}.",
            "rejected": f"No {index}.",
        }
        for index in range(num_pairs)
    ]


def study_of(
    rows: Iterable[object] | Mapping[str, Iterable[object]],
    path: Path,
    *,
    label: str = "mine",
    replace: bool = False,
) -> Path:
    """Ingest rows, or rows by label, into a study from files that are written beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows_by_label = rows if isinstance(rows, Mapping) else {label: rows}
    files = {
        name: write_lines(path.with_name(f"{path.name}-{name}.jsonl"), label_rows)
        for name, label_rows in rows_by_label.items()
    }
    ingest([f"{name}={file}" for name, file in files.items()], out=path, replace=replace)
    return path


# --- rules --------------------------------------------------------------------------------------


def rules_of(titles: Sequence[str], *, rating_rule: str = "Rule {}.") -> list[dict[str, str]]:
    """Return rules with these titles and one short text each; the rating rule has the title."""
    return [
        {
            "rule_id": slug(title) or f"rule-{index}",
            "title": title,
            "description": "d",
            "preference_rule": "p",
            "rating_rule": rating_rule.format(title),
        }
        for index, title in enumerate(titles)
    ]


def write_rules(path: Path, titles: Sequence[str], *, rating_rule: str = "Rule {}.") -> Path:
    """Write a rule set ``mine`` with the rules of `rules_of`."""
    rules = [PoolRule(**rule) for rule in rules_of(titles, rating_rule=rating_rule)]
    write_pool(path, rules, name="mine")
    return path


# --- ratings ------------------------------------------------------------------------------------


def without_run_options(options: dict[str, Any]) -> tuple[dict[str, Any], RatingRunOptions]:
    """Divide options of a call into those of `RatingConfig` and how the run is worked through."""
    how = {name: options[name] for name in options.keys() & RatingRunOptions.model_fields}
    return {name: options[name] for name in options if name not in how}, RatingRunOptions(**how)


def rate_study(
    study: Study | Path, judge: ScriptedJudge | None = None, **options: object
) -> RatingRun:
    """Rate a study with a scripted judge and return the finished run.

    Args:
        study: The study, opened or by its path.
        judge: The judge; without one, a judge that scores by the prompt.
        options: Fields of `RatingConfig`. Without ``shard_size`` a shard has ten pairs.
    """
    judge = judge or ScriptedJudge()
    config = RatingConfig(judge=JudgeConfig(model=judge.name), **{"shard_size": 10, **options})
    run = open_run(as_study(study), config, judge=judge)
    work_through(run.job())
    return run


def write_rating_run(
    study: Path,
    ratings: pa.Table,
    *,
    rules: Sequence[Mapping[str, str]],
    judge: str = "tiny-judge",
    shard_size: int = 100,
) -> Path:
    """Store a ratings table as a finished run of a study without pairs; return the run's folder.

    Null ratings get the reason ``empty_reply``.

    Args:
        study: Folder of the study, which is made if it does not exist.
        ratings: Ratings of the contract's columns, complete and in the order of the plan.
        rules: Rules of the run in the order of the plan, e.g. `rules_of` titles.
        judge: Name of the judge.
        shard_size: Number of pairs of a shard.
    """
    num_rows = ratings.num_rows
    scripted = ScriptedJudge(name=judge, revision="sha256:0123")
    identity = {
        "format": 1,
        "judge": dataclasses.asdict(scripted.identity) | {"chat_template_sha256": "cafe"},
        "prompt_sha256": "feed",
        "rules_sha256": rules_digest(rules),
        "decoding": {"temperature": 0.0, "max_reply_tokens": 16, "parser": 1},
        "data_sha256": "beef",
        "plan": {"shard_size": shard_size, "num_pairs": num_rows // (2 * len(rules))},
    }
    manifest = RatingManifest(
        run_key=run_key_of(identity),
        identity=identity,
        rule_set="mine",
        rules=rules,
        versions={"python": "3.11.0", "vllm": "0.32.0"},
    )
    reasons = pc.if_else(pc.is_null(ratings["rating"]), "empty_reply", None)
    columns = {name: ratings[name] for name in ratings.column_names} | {
        "null_reason": reasons,
        "num_truncated_tokens": [0] * num_rows,
        "raw_reply": [None] * num_rows,
        "judge": [judge] * num_rows,
        "run_key": [manifest.run_key] * num_rows,
    }
    table = pa.table(columns, schema=RATINGS)
    run_dir = study / "ratings" / manifest.run_key
    claim_folder(run_dir, manifest)
    (study / "study.json").write_text('{"encore_study": 1}\n')
    for shard in manifest.shards:
        first_row = shard.start * manifest.rows_per_pair
        rows = table.slice(first_row, shard.num_pairs * manifest.rows_per_pair)
        write_shard(run_dir, manifest, shard, rows)
    return run_dir


def write_shard(
    run_dir: Path, manifest: RatingManifest, shard: Shard, table: pa.Table
) -> ShardState:
    """Write these ratings as one shard."""
    run_dir.mkdir(parents=True, exist_ok=True)
    num_nulls = table["rating"].null_count
    footer = {"num_ratings": table.num_rows - num_nulls, "num_nulls": num_nulls}
    return shard_files.write_shard(run_dir, manifest, shard, ShardTable(table=table, footer=footer))


def shard_path(run_dir: Path, index: int) -> Path:
    """Return the oldest file of a shard, valid or not: the one that readers try first."""
    return min(
        run_dir.glob(f"shard-{index:05d}*.parquet"), key=lambda path: path.stat().st_mtime_ns
    )


# --- files --------------------------------------------------------------------------------------


def file_digests(folder: Path, pattern: str = "**/*") -> dict[str, str]:
    """Return the SHA-256 of each file of a folder that matches a pattern, by relative path."""
    return {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(folder.glob(pattern))
        if path.is_file()
    }


def file_contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, hidden files included, by relative path."""
    return {name: (folder / name).read_bytes() for name in file_digests(folder)}


def flip_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
