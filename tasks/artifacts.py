"""Show a flow run's results on Prefect's pages, as artifacts."""

from __future__ import annotations

import hashlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.artifacts import Artifact, MarkdownArtifact, TableArtifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from encore.data.records import slug
from tasks.server_calls import best_effort

if TYPE_CHECKING:  # torch, which rating does not want
    from encore.analysis.analyze import Analysis
    from encore.analysis.check_study import StudyCheck
    from encore.benchmarks.run_benchmark import BenchmarkRun
    from encore.data.ingestion import IngestReport
    from encore.reports.write_report import Report
    from encore.scoring.head_accuracy import HeadAccuracy
    from encore.training.run_folder import TrainingResult
    from encore.warehouse import Ratings
    from encore.weighting.weigh import WeighedRules
    from encore.weighting.weight_vector import Origin
    from tasks.tracking.log_runs import Projection

#: Pause between two updates of the table of engines.
_ENGINES_SECONDS = 10.0
_ENGINES_DESCRIPTION = (
    "The vLLM servers of this run: address, host, GPUs, prompts a second, requests at work, and "
    "how often each was replaced."
)
#: Columns of the statistics: their names, and where a rule has them.
_STATISTICS = {
    "entropy (nats)": "entropy_nats",
    "levels": "num_levels",
    "half": "accuracy.half",
    "strict": "accuracy.strict",
    "inclusive": "accuracy.inclusive",
    "ties": "tie_rate",
    "coverage": "coverage",
    "ratings": "num_ratings",
    "nulls": "num_unparsed",
}


def artifact_key(stage: str, study: Path) -> str:
    """Return the key of a stage's artifact: a study in another folder has another key."""
    folder = study.resolve()
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:6]
    return "-".join(filter(None, (stage, slug(folder.name), digest)))


def publish_pairs(report: IngestReport) -> None:
    """Publish a table of the labels: pairs read, kept, merged and set aside."""
    rows = [
        {
            "label": source.manifest.label,
            "read": source.manifest.num_read,
            "kept": source.manifest.num_kept,
            "merged": source.manifest.num_duplicates,
            "set aside": source.manifest.num_set_aside,
            "swapped": source.manifest.num_contradicting,
            "status": source.status,
        }
        for source in report.sources
    ]
    _publish(
        "pairs",
        report.study,
        rows,
        "Preference pairs. Merged: exact duplicates. Set aside: malformed, or with identical "
        "responses; `pairs/LABEL.set-aside.jsonl` has them with their reasons. Swapped: also there "
        "with chosen and rejected the other way round.",
    )


def publish_failed_shards(failures: Mapping[int, str], *, study: Path) -> None:
    """Publish a table of the shards that failed, also if there are none."""
    rows = [
        {
            "shard": index,
            "error": error,
            "how to rerun": f'run again, or with how={{"shard": [{index}]}}',
        }
        for index, error in failures.items()
    ]
    _publish("failed-shards", study, rows, f"{len(failures)} shards failed.")


class LiveArtifact:
    """One artifact of a flow run, created once and then updated."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._id: UUID | None = None

    def show(self, artifact: Artifact) -> None:
        """Show a newer state of the artifact as soon as the server is there."""
        artifact.key = self._key
        best_effort(partial(self._send, artifact), retry_name=self._key)

    def _send(self, artifact: Artifact) -> None:
        if self._id is None:
            created = artifact.create()
            assert not inspect.isawaitable(created), "no event loop runs in this thread"
            self._id = created.id
            return
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, ArtifactUpdate(data=artifact.format()))


class EngineTable:
    """Table with a row for each engine of a run, updated every ten seconds."""

    def __init__(self, study: Path) -> None:
        self._artifact = LiveArtifact(artifact_key("engines", study))
        self._next_update = 0.0

    def show(
        self, rows: Callable[[], Sequence[Mapping[str, object]]], *, now: bool = False
    ) -> None:
        """Show the engines as they are, ``now`` or if it is time."""
        if not now and time.monotonic() < self._next_update:
            return
        self._next_update = time.monotonic() + _ENGINES_SECONDS
        table = [{name: _cell(value) for name, value in row.items()} for row in rows()]
        self._artifact.show(TableArtifact(table=table, description=_ENGINES_DESCRIPTION))


def publish_statistics(analysis: Analysis, *, study: Path) -> None:
    """Publish a table of the rules: verdict, entropy, levels, accuracy by tie policy, ties."""
    answers = {(row.source, row.rule_id): row for part in analysis.answers for row in part.rows}
    rows = [
        {
            "rule": rule.rule_id,
            "source": rule.source,
            "verdict": (row := answers[rule.source, rule.rule_id]).verdict,
            "untied": row.untied.value,
            "from": row.untied.low,
            "to": row.untied.high,
            "weight": row.weight,
            "reason": row.reason_and_caveat,
            "what would settle it": row.remedy,
            **{name: attrgetter(field)(rule) for name, field in _STATISTICS.items()},
        }
        for rule in analysis.rules
    ]
    _publish(
        "rule-statistics",
        study,
        rows,
        " ".join(analysis.answers[-1].summary),
        "Entropy of each rule's ratings, and its accuracy on people's preferences. A tie counts "
        "one half, is left out (untied), is a miss (strict) or a hit (inclusive).",
        *analysis.notes,
        *_missing_shards(analysis.ratings),
    )


def publish_check(check: StudyCheck, *, study: Path) -> None:
    """Publish a table of the checked rules: figure, lower bound, limit, outcome."""
    rows = [
        {
            "rule": rule.rule_id,
            "figure": "agreement",
            "value": rule.agreement.value,
            "at least": rule.agreement.low,
            "limit": check.floor,
            "outcome": rule.outcome,
        }
        for rule in check.rules
    ] + [
        {
            "rule": rule.rule_id,
            "figure": f"difference to run {check.against}",
            "value": rule.difference.value,
            "at least": rule.difference.low,
            "limit": -(check.margin or 0.0),
            "outcome": rule.outcome,
        }
        for rule in check.drift
    ]
    _publish(
        "check",
        study,
        rows,
        "Rules against limits. Agreement is the accuracy over pairs without a tie; bounds are "
        "one-sided, with 95 % confidence. A rule passes if its bound is above the limit.",
        *(f"The record is stale: {part}." for part in check.stale),
        *check.notes,
        *_missing_shards(check.ratings),
    )


def publish_weights(weighed: WeighedRules, *, study: Path) -> None:
    """Publish a table of the rules' weights, and how much each moves the composed reward."""
    vector = weighed.vector
    params = "".join(f", {name} {value}" for name, value in vector.params.items())
    rows = [
        {
            "rule": rule.rule_id,
            "weight": weight,
            "effective weight": None if sd is None else weight * sd,
            "entropy (nats)": rule.entropy_nats,
        }
        for rule, weight, sd in zip(weighed.rules, vector.weights, weighed.margin_sds, strict=True)
    ]
    _publish(
        "rule-weights",
        study,
        rows,
        f"Weights by scheme {vector.scheme}{params}. The effective weight is the weight times the "
        "standard deviation of rating(chosen) − rating(rejected).",
        *_missing_shards(weighed.origin),
    )


def publish_evaluation(result: TrainingResult, *, study: Path) -> None:
    """Publish a table of a trained model's heads on the held-out pairs."""
    evaluation = result.final_evaluation
    if evaluation is None:
        _publish("training-evaluation", study, [], "No pairs were held out.")
        return
    rows = [
        {"head": head, "R²": evaluation.r2_by_head.get(head), "accuracy": accuracy}
        for head, accuracy in evaluation.accuracy_half_by_head.items()
    ]
    _publish(
        "training-evaluation",
        study,
        rows,
        f"After {result.num_steps} steps, on {evaluation.num_pairs} held-out pairs. R²: how much "
        "of a rule's ratings its head explains. Accuracy: how often it ranks the chosen response "
        "first.",
        *result.notes,
    )


def publish_head_accuracy(
    all_pairs: Sequence[HeadAccuracy],
    held_out: Sequence[HeadAccuracy],
    *paragraphs: str,
    study: Path,
) -> None:
    """Publish a table of the heads: how often each ranks a pair as people did.

    Args:
        all_pairs: Accuracy of each head on all pairs.
        held_out: Accuracy of each head on the pairs that were held out from training.
        paragraphs: Sentences below the table.
        study: The study's directory.
    """
    held_out_by_head = {accuracy.head_id: accuracy.half for accuracy in held_out}
    rows = [
        {
            "head": accuracy.head_id,
            "half": accuracy.half,
            "strict": accuracy.strict,
            "ties": accuracy.num_ties,
            "held out": held_out_by_head.get(accuracy.head_id),
        }
        for accuracy in all_pairs
    ]
    description = "A tie counts one half, or as a miss (strict)."
    _publish("head-accuracy", study, rows, description, *paragraphs)


def publish_table(run: BenchmarkRun, *, study: Path) -> None:
    """Publish a benchmark's table with its notes."""
    description = f"{run.pairs.benchmark.title}. Every pair: {run.results_path}."
    markdown = run.markdown_path.read_text(encoding="utf-8")
    publish_text("benchmark-table", markdown, description, study)


def publish_tracked(projection: Projection | None, *folders: Path, study: Path) -> None:
    """Publish links to MLflow's pages of these trainings, weights and tables (default: all).

    If MLflow was away (``projection`` is None), the artifact says so.
    """
    text = "MLflow did not answer; a run with the same parameters shows this there later."
    if projection is not None:
        text = projection.instructions(*folders)
    publish_text("mlflow-run", text, "", study)


def publish_report(report: Report, *, study: Path) -> None:
    """Publish which rules a report trusts, its other verdicts, its page's path, and its notes."""
    findings = report.findings
    lines = [*findings.sentences, f"Page: `{report.page}`", *findings.notes]
    publish_text("report", "\n".join(f"- {line}" for line in lines), "", study)


def publish_text(stage: str, markdown: str, description: str, study: Path) -> None:
    """Publish a page of Markdown."""
    page = MarkdownArtifact(markdown=markdown, description=description or None)
    LiveArtifact(artifact_key(stage, study)).show(page)


def _publish(stage: str, study: Path, rows: Sequence[Mapping[str, Any]], *paragraphs: str) -> None:
    cells = [{name: _cell(value) for name, value in row.items()} for row in rows] or [{"": "none"}]
    table = TableArtifact(table=cells, description="\n\n".join(paragraphs))
    LiveArtifact(artifact_key(stage, study)).show(table)


def _cell(value: Any) -> Any:
    """Return a table's cell: a dash for None, four decimals for a number."""
    if value is None:
        return "–"
    return round(value, 4) if isinstance(value, float) else value


def _missing_shards(ratings: Ratings | Origin) -> list[str]:
    """Return a sentence on the shards that are missing in the figures, if there are any."""
    num_missing, num_shards = ratings.num_missing_shards, ratings.num_shards
    if not num_missing:
        return []
    return [f"**{num_missing} of {num_shards} shards are not done and not in these figures.**"]
