"""What a flow run shows of its results on Prefect's pages."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.artifacts import Artifact, MarkdownArtifact, TableArtifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from encore.data.records import slug
from encore.runs.engine_supervisor import EngineRows
from tasks.server import best_effort

if TYPE_CHECKING:  # torch, which rating does not want
    from encore.analysis.analyze import Analysis
    from encore.benchmarks.run_benchmark import BenchmarkRun
    from encore.data.ingestion import IngestReport
    from encore.report.write_report import Report
    from encore.scoring.head_accuracy import HeadAccuracy
    from encore.training.run_folder import TrainingResult
    from encore.warehouse import Ratings
    from encore.weighting.weigh import WeighedRules
    from encore.weighting.weight_vector import Origin
    from tasks.tracking.projection import Projection

_ENGINES_SECONDS = 10.0
_ENGINES = (
    "The engines of this run. One that finishes no request for too long is replaced; last "
    "progress is when it last finished one, or began to work, by this run's clock."
)
_STATISTICS = {
    "rule": "rule_id",
    "entropy (nats)": "entropy_nats",
    "levels": "num_levels",
    "half": "accuracy.half",
    "untied": "accuracy.untied",
    "strict": "accuracy.strict",
    "inclusive": "accuracy.inclusive",
    "ties": "tie_rate",
    "coverage": "coverage",
    "ratings": "num_ratings",
    "nulls": "num_unparsed",
}


def artifact_key(stage: str, study: Path) -> str:
    """The key of what a stage shows of a study; another folder of the same name has another key."""
    place = study.resolve()
    digest = hashlib.sha256(str(place).encode()).hexdigest()[:6]
    return "-".join(filter(None, (stage, slug(place.name), digest)))


def publish_pairs(report: IngestReport) -> None:
    """A table of the labels: what was read, kept, merged and set aside."""
    rows = [
        {
            "label": one.manifest.label,
            "read": one.manifest.num_read,
            "kept": one.manifest.num_kept,
            "merged": one.manifest.num_duplicates,
            "set aside": one.manifest.num_set_aside,
            "swapped": one.manifest.num_contradicting,
            "status": one.status,
        }
        for one in report.sources
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
    """A table of the shards that failed; it says so when there is none."""
    rows = [
        {"shard": index, "error": error, "how to rerun": f"run again, or with shard=[{index}]"}
        for index, error in failures.items()
    ]
    _publish("failed-shards", study, rows, f"{len(failures)} shards failed.")


class LiveArtifact:
    """One artifact of a flow run, made once and then brought up to date."""

    def __init__(self, stage: str, study: Path) -> None:
        self._key = artifact_key(stage, study)
        self._id: UUID | None = None

    def show(self, artifact: Artifact) -> None:
        """Show a newer state of it, once the server is there."""
        artifact.key = self._key
        best_effort(partial(self._send, artifact), later=self._key)

    def _send(self, artifact: Artifact) -> None:
        if self._id is None:
            self._id = artifact.create().id
            return
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, ArtifactUpdate(data=artifact.format()))


class EngineTable:
    """One table with a row for each engine of a run, brought up to date now and then."""

    def __init__(self, study: Path) -> None:
        self._artifact = LiveArtifact("engines", study)
        self._not_before = 0.0

    def show(self, rows: EngineRows, *, now: bool = False) -> None:
        """Show the engines as they are, ``now`` or if it is time."""
        if not now and time.monotonic() < self._not_before:
            return
        self._not_before = time.monotonic() + _ENGINES_SECONDS
        table = [dict(row) for row in rows]
        self._artifact.show(TableArtifact(table=table, description=_ENGINES))


def publish_statistics(analysis: Analysis, *, study: Path) -> None:
    """A table of the rules: entropy, levels, accuracy under every tie policy, ties, coverage."""
    rows = [
        {name: attrgetter(field)(rule) for name, field in _STATISTICS.items()}
        for rule in analysis.rules
    ]
    _publish(
        "rule-statistics",
        study,
        rows,
        "Entropy of each rule's ratings, and its accuracy on people's preferences. A tie counts "
        "one half, is left out (untied), is a miss (strict) or a hit (inclusive).",
        *analysis.notes,
        *_missing(analysis.ratings),
    )


def publish_weights(weighed: WeighedRules, *, study: Path) -> None:
    """A table of the rules' weights, and how much each moves the composed reward."""
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
        *_missing(weighed.origin),
    )


def publish_evaluation(result: TrainingResult, *, study: Path) -> None:
    """A table of a trained model's heads on the held-out pairs."""
    found = result.final_evaluation
    if found is None:
        _publish("training-evaluation", study, [], "No pairs were held out.")
        return
    rows = [
        {"head": head, "R²": found.r2_by_head.get(head), "accuracy": accuracy}
        for head, accuracy in found.accuracy_half_by_head.items()
    ]
    _publish(
        "training-evaluation",
        study,
        rows,
        f"After {result.num_steps} steps, on {found.num_pairs} held-out pairs. R²: how much of a "
        "rule's ratings its head explains. Accuracy: how often it ranks the chosen response first.",
        *result.notes,
    )


def publish_head_accuracy(
    every: Sequence[HeadAccuracy], held_out: Sequence[HeadAccuracy], *about: str, study: Path
) -> None:
    """A table of the heads: how often each ranks a pair as people did."""
    held_out_of = {one.head_id: one.half for one in held_out}
    rows = [
        {
            "head": one.head_id,
            "half": one.half,
            "strict": one.strict,
            "ties": one.num_ties,
            "held out": held_out_of.get(one.head_id),
        }
        for one in every
    ]
    _publish("head-accuracy", study, rows, "A tie counts one half, or as a miss (strict).", *about)


def publish_table(run: BenchmarkRun, *, study: Path) -> None:
    """A benchmark's table with its notes."""
    about = f"{run.pairs.benchmark.title}. Every pair: {run.results_path}."
    publish_text("benchmark-table", run.markdown_path.read_text(encoding="utf-8"), about, study)


def publish_tracked(tracked: Projection | None, *folders: Path, study: Path) -> None:
    """Where trainings, weights and tables (default: all) are in MLflow, or that it was away."""
    away = "MLflow did not answer; a run with the same parameters shows this there later."
    publish_text("mlflow-run", tracked.instructions(*folders) if tracked else away, "", study)


def publish_report(report: Report, *, study: Path) -> None:
    """The verdicts of a report, where its page is, and what limits it."""
    found = report.findings
    verdicts = [
        f"{found.source_name(source)}, {one.entropy} entropy: {one.verdict}"
        for source in found.sources
        for one in found.verdicts(source)
    ]
    lines = [*verdicts, f"Page: `{report.page}`", *found.notes]
    publish_text("report", "\n".join(f"- {line}" for line in lines), "", study)


def publish_text(stage: str, markdown: str, about: str, study: Path) -> None:
    """A page of Markdown."""
    page = MarkdownArtifact(markdown=markdown, description=about or None)
    LiveArtifact(stage, study).show(page)


def _publish(stage: str, study: Path, rows: Sequence[Mapping[str, Any]], *paragraphs: str) -> None:
    shown = [{name: _cell(value) for name, value in row.items()} for row in rows] or [{"": "none"}]
    table = TableArtifact(table=shown, description="\n\n".join(paragraphs))
    LiveArtifact(stage, study).show(table)


def _cell(value: Any) -> Any:
    return "–" if value is None else round(value, 4) if isinstance(value, float) else value


def _missing(found: Ratings | Origin) -> list[str]:
    num, of = found.num_missing_shards, found.num_shards
    return [f"**{num} of {of} shards are not done and not in these figures.**"] if num else []
