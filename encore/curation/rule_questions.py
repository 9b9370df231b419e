"""Ask a judge one question about each of some rules: a sharded run, a row for each rule."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from encore.curation.pool import PoolRule, title_of
from encore.errors import InputError, StudyIncompleteError
from encore.judges.base import Decoding, Judge, Reply, ask, readable
from encore.reporting import SILENT, Reporter
from encore.runs import JudgedManifest, Shard, Slice, run_key_of, run_status
from encore.shard_runner import Job, Tell, refuse_failures, work_through
from encore.versions import package_versions

#: The texts of a rule that a judge may read, as people call them.
_TEXTS = {
    "title": "Title",
    "description": "Description",
    "preference_rule": "Preference rule",
    "rating_rule": "Rating rule",
}
_MARKED = PoolRule.model_validate({"rule_id": "marked", **{name: f"<{name}>" for name in _TEXTS}})


class RuleRun(JudgedManifest):
    """The manifest of a run that asks a judge one question about every rule of a pool."""

    FILE: ClassVar[str] = "run.json"
    KEY_FIELD: ClassVar[str] = "run_key"
    UNIT: ClassVar[str] = "rules"

    run_key: str

    @property
    def rows_per_pair(self) -> int:
        """What the plan counts is rules, and each has one row."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a judge is asked about a rule, and how its reply is read.

    Attributes:
        kind: Of the run's manifest.
        template: The prompt, with ``{rule}`` where the rule's texts stand.
        read: The columns of a reply, ``null_reason`` among them; None: the prompt was too long.
        columns: Their types.
        reader_version: To be raised whenever any reply would be read differently.
        max_reply_tokens: A longer reply is cut off.
    """

    kind: type[RuleRun]
    template: str
    read: Callable[[Reply | None], Mapping[str, Any]]
    columns: Mapping[str, pa.DataType]
    reader_version: int
    max_reply_tokens: int

    @property
    def schema(self) -> pa.Schema:
        """Of a shard's file. Grain: one row per rule, by rule_id."""
        own = [pa.field(name, kind) for name, kind in self.columns.items()]
        return pa.schema(
            [
                pa.field("rule_id", pa.string(), nullable=False),
                *own,
                pa.field("null_reason", pa.string()),
                pa.field("raw_reply", pa.string()),
            ]
        )

    def prompt(self, rule: PoolRule) -> str:
        """The prompt for one rule; nothing in its texts is read as a part of the template."""
        return self.template.replace("{rule}", shown_texts(rule))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReplies:
    """What a judge said about the rules of a complete run.

    Attributes:
        run_dir: The run's folder.
        manifest: Judge, prompt and plan.
        rows: A row for each rule, by rule_id.
        summary: What this call did, e.g. ``2 rated, 0 reused, 0 failed``.
    """

    run_dir: Path
    manifest: RuleRun
    rows: tuple[Mapping[str, Any], ...]
    summary: str = ""

    @property
    def null_reasons(self) -> dict[str, int]:
        """Replies that could not be used, by reason."""
        reasons = (row["null_reason"] for row in self.rows)
        return dict(sorted(Counter(one for one in reasons if one is not None).items()))


def shown_texts(rule: PoolRule) -> str:
    """The texts that a rule has, a line each; of a principle its text alone."""
    texts = {shown: getattr(rule, name) for name, shown in _TEXTS.items()}
    if rule.title == title_of(rule.description):
        del texts[_TEXTS["title"]]
    there = {shown: text for shown, text in texts.items() if text}
    if len(there) == 1:
        return rule.description
    return "\n".join(f"{shown}: {text}" for shown, text in there.items())


def ask_about_rules(
    rules: Sequence[PoolRule],
    question: Question,
    *,
    folder: Path,
    judge: Judge,
    shard_size: int,
    reporter: Reporter = SILENT,
) -> RuleReplies:
    """Ask a judge about every rule; finished shards are reused, in ``folder/<run key>``.

    Args:
        rules: At least one; their order changes nothing.
        question: What is asked.
        folder: Holds the runs of several judges beside each other.
        judge: Stays open.
        shard_size: Rules per shard.
        reporter: Told how far it is, in rules.

    Raises:
        InputError: Replies longer than the judge's context.
        StudyIncompleteError: Shards failed; the same call asks only about these.
        EncoreError: The judge does not load.
    """
    plan = sorted(rules, key=lambda rule: rule.rule_id)
    manifest = _manifest(plan, question, judge=judge, shard_size=shard_size)
    decoding = Decoding(max_reply_tokens=question.max_reply_tokens)
    judge.check(decoding)

    def start() -> int:
        reporter.started("starting the judge's engine")
        judge.start()
        return 1

    def compute(shard: Shard, tell: Tell) -> Slice:
        asked = plan[shard.start : shard.stop]
        texts = readable(judge, map(question.prompt, asked), decoding=decoding)
        replies = ask(judge, list(texts), decoding=decoding, on_progress=tell)
        rows = [
            {
                "rule_id": rule.rule_id,
                **question.read(reply),
                "raw_reply": reply and reply.text,
            }
            for rule, reply in zip(asked, replies, strict=True)
        ]
        return Slice(table=pa.Table.from_pylist(rows, schema=question.schema))

    run_dir = folder / manifest.key
    job = Job(run_dir=run_dir, manifest=manifest, compute=compute, start=start)
    report = work_through(job, reporter=reporter)
    reporter.finished()
    refuse_failures(run_dir, report.failures, num_shards=len(manifest.shards))
    return dataclasses.replace(read_replies(run_dir, question.kind), summary=report.summary)


def read_replies(run_dir: Path, kind: type[RuleRun]) -> RuleReplies:
    """What a judge said in a run that was made before.

    Raises:
        StudyIncompleteError: Shards are missing or damaged.
    """
    status = run_status(run_dir, kind)
    if not status.is_complete:
        raise StudyIncompleteError(
            f"{run_dir} ({status.manifest.title}): {len(status.problems)} of {len(status.shards)} "
            f"shards are missing; run the same `{kind.COMMAND}` again, or delete this folder"
        )
    tables = [pq.ParquetFile(path).read() for path in status.paths]
    rows = tuple(pa.concat_tables(tables).to_pylist())
    return RuleReplies(run_dir=run_dir, manifest=status.manifest, rows=rows)


def texts_digest(rules: Sequence[PoolRule]) -> str:
    """SHA-256 over ids and texts of some rules, the same for every order of them."""
    texts = sorted([rule.rule_id, *(getattr(rule, name) for name in _TEXTS)] for rule in rules)
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()


def _manifest(
    plan: Sequence[PoolRule], question: Question, *, judge: Judge, shard_size: int
) -> RuleRun:
    context = judge.identity.max_model_len
    if judge.tokenizer is not None and question.max_reply_tokens >= context:
        raise InputError(
            f"--max-reply-tokens {question.max_reply_tokens}: the judge's context of {context} "
            "tokens leaves no room for a prompt; give fewer"
        )
    identity = {
        "format": 1,
        "question": question.kind.DOING,
        "judge": dataclasses.asdict(judge.identity),
        "prompt_sha256": hashlib.sha256(question.prompt(_MARKED).encode()).hexdigest(),
        "rules_sha256": texts_digest(plan),
        "decoding": {
            "temperature": 0.0,
            "max_reply_tokens": question.max_reply_tokens,
            "parser": question.reader_version,
        },
        "plan": {"order": "rule_id", "shard_size": shard_size, "num_pairs": len(plan)},
    }
    return question.kind(
        run_key=run_key_of(identity), identity=identity, versions=package_versions()
    )
