"""Ask a judge one question about each rule, as a sharded run that stores the replies.

A run stores the judge's texts. They are parsed when they are needed, not when they are written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from encore.core.errors import StudyIncompleteError
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import package_versions
from encore.data.rule_sets import title_of
from encore.judges import open_judge
from encore.judges.base import Decoding, Judge, Reply, ask_judge, encode_prompts
from encore.judges.server_options import ServerOptions
from encore.rules.pool import PoolRule
from encore.rules.rules_options import QuestionConfig
from encore.runs.identity import run_identity, run_key_of
from encore.runs.manifest import JudgedManifest, Shard
from encore.runs.shard_files import ShardTable, run_status
from encore.runs.worker import Job, ReportRows, raise_for_failed_shards, work_through

#: Reply by rule id; None if the prompt was too long to be sent.
Replies = Mapping[str, Reply | None]

#: Rules per file. A crash loses the replies of at most one file.
_SHARD_SIZE = 50
#: Grain: one row per rule, by rule_id. Null text: the prompt was too long to be sent.
_COLUMNS = {"rule_id": pa.string(), "text": pa.string(), "is_complete": pa.bool_()}
_REPLIES = pa.schema(_COLUMNS | {"null_reason": pa.string()})


class RuleRun(JudgedManifest):
    """Manifest of a run that asks a judge one question about every rule of a pool."""

    FILE: ClassVar[str] = "run.json"
    KEY_FIELD: ClassVar[str] = "run_key"
    UNIT: ClassVar[str] = "rules"
    #: Prompt; ``{rule}`` stands for the rule's texts.
    TEMPLATE: ClassVar[str]

    run_key: str

    @property
    def rows_per_pair(self) -> int:
        """Rows per unit of the plan: one per rule."""
        return 1

    @classmethod
    def prompt(cls, rule: PoolRule) -> str:
        """Return the prompt for one rule: its texts, one a line, or the text of a principle.

        Braces in a rule's texts are not read as part of the template.
        """
        texts = rule.texts
        if rule.title == title_of(rule.description):
            del texts["title"]
        lines = [f"{field.replace('_', ' ')}: {value}" for field, value in texts.items()]
        text = rule.description if len(lines) == 1 else "\n".join(lines)
        return cls.TEMPLATE.replace("{rule}", text)


def ask_about_rules(
    rules: Sequence[PoolRule],
    kind: type[RuleRun],
    config: QuestionConfig,
    how: ServerOptions = ServerOptions(),
    *,
    folder: Path,
    judge: Judge | None = None,
    reporter: Reporter = SILENT,
) -> tuple[RuleRun, Replies, str]:
    """Ask a judge about every rule; finished shards of ``folder/<run key>`` are reused.

    Args:
        rules: At least one rule; their order does not matter.
        kind: Manifest class with the question's prompt.
        config: Judge and maximum length of its replies.
        how: Address of the judge's server, and how it is asked.
        folder: Folder of the runs, one for each judge.
        judge: Opened judge, which is not closed; default: open that of the config.
        reporter: Receives the progress in rules.

    Returns:
        The run's manifest; the replies; counts of this call's shards, e.g. ``2 rated, 0 reused, 0
        failed``.

    Raises:
        StudyIncompleteError: Shards failed; the same call asks only about their rules.
        EncoreError: The judge does not load.
    """
    assert config.judge is not None, "checked by the caller"
    plan = sorted(rules, key=lambda rule: rule.rule_id)
    decoding = Decoding(max_reply_tokens=config.max_reply_tokens)
    with contextlib.ExitStack() as stack:
        opened = judge or stack.enter_context(contextlib.closing(open_judge(config.judge, how)))
        opened.check(decoding)
        manifest = _manifest(plan, kind, config, judge=opened)

        def start() -> int:
            reporter.started("opening the judge")
            opened.start()
            return 1

        def compute(shard: Shard, report_rows: ReportRows) -> ShardTable:
            shard_rules = plan[shard.start : shard.stop]
            prompts = [*encode_prompts(opened, map(kind.prompt, shard_rules), decoding=decoding)]
            replies = ask_judge(opened, prompts, decoding=decoding, on_progress=report_rows)
            rows = [
                {"rule_id": rule.rule_id, **(dataclasses.asdict(reply) if reply else {})}
                for rule, reply in zip(shard_rules, replies, strict=True)
            ]
            return ShardTable(table=pa.Table.from_pylist(rows, schema=_REPLIES))

        run_dir = folder / manifest.key
        job = Job(run_dir=run_dir, manifest=manifest, compute=compute, start=start)
        report = work_through(job, reporter=reporter)
    reporter.finished()
    raise_for_failed_shards(run_dir, report.failures, num_shards=len(manifest.shards))
    return *read_replies(run_dir, kind), report.summary


def read_replies(run_dir: Path, kind: type[RuleRun]) -> tuple[RuleRun, Replies]:
    """Read the manifest and the replies of a finished run.

    Raises:
        StudyIncompleteError: Shards are missing or damaged.
    """
    status = run_status(run_dir, kind)
    if not status.is_complete:
        raise StudyIncompleteError(
            f"{run_dir} ({status.manifest.title}): {len(status.unfinished)} of "
            f"{len(status.shards)} shards are missing; run the same `{kind.COMMAND}` again, "
            "or delete this folder"
        )
    rows = [row for path in status.paths for row in pq.ParquetFile(path).read().to_pylist()]
    replies = {row.pop("rule_id"): None if row["text"] is None else Reply(**row) for row in rows}
    return status.manifest, replies


def texts_digest(rules: Sequence[PoolRule]) -> str:
    """Return a SHA-256 of the rules' ids and texts that does not depend on their order."""
    texts = sorted([rule.rule_id, *rule.texts.items()] for rule in rules)
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()


def _manifest(
    plan: Sequence[PoolRule], kind: type[RuleRun], config: QuestionConfig, *, judge: Judge
) -> RuleRun:
    identity = run_identity(
        config,
        kind=QuestionConfig,
        order="rule_id",
        num_pairs=len(plan),
        shard_size=_SHARD_SIZE,
        question=kind.DOING,
        judge=dataclasses.asdict(judge.identity),
        prompt_sha256=hashlib.sha256(kind.TEMPLATE.encode()).hexdigest(),
        rules_sha256=texts_digest(plan),
    )
    return kind(run_key=run_key_of(identity), identity=identity, versions=package_versions())
