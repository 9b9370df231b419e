"""Results that others published, and ours for others: records in the schema of `every_eval_ever`.

A record is a JSON file with the scores of one model (https://github.com/evaleval/every_eval_ever).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from encore.benchmarks.benchmark_table import BenchmarkTable, PublishedRow, RowFigures
from encore.benchmarks.definition import Benchmark
from encore.core.errors import InputError
from encore.core.files import write_json
from encore.core.versions import installed_version
from encore.data.records import slug

_SCHEMA_VERSION = "0.2.1"


class _Record(BaseModel):
    """Fields of a record that are read. Others are ignored."""

    model_config = ConfigDict(frozen=True)

    retrieved_timestamp: str
    source_metadata: dict[str, Any]
    model_info: dict[str, Any]
    evaluation_results: tuple[dict[str, Any], ...]


def published_rows(path: Path, benchmark: Benchmark) -> tuple[PublishedRow, ...]:
    """Read the published scores on a benchmark, the best headline first.

    Of several records of one model the latest counts. Records of other benchmarks are left out.

    Args:
        path: A record, or a folder of records.
        benchmark: Benchmark whose ``source_name`` the records have.

    Raises:
        InputError: A file is no record, or no record is of the benchmark.
    """
    paths = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    names = [benchmark.headline, *(subset.name for subset in benchmark.subsets)]
    latest: dict[str, tuple[float, PublishedRow]] = {}
    for file in paths:
        try:
            record = _Record.model_validate_json(file.read_bytes())
            if record.source_metadata.get("source_name") != benchmark.source_name:
                continue
            name, time = str(record.model_info["name"]), float(record.retrieved_timestamp)
            scores = {}
            for entry in record.evaluation_results:
                if entry["evaluation_name"] in names:
                    largest = entry["metric_config"].get("max_score") or 1
                    scores[entry["evaluation_name"]] = entry["score_details"]["score"] / largest
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"published results {file}: cannot be read ({type(error).__name__}: "
                f"{' '.join(str(error).split())[:120]}); expected a JSON record of every_eval_ever "
                "with model_info.name, retrieved_timestamp and a score in each evaluation result"
            ) from error
        if scores and time >= latest.get(name, (time, None))[0]:
            source = record.source_metadata.get("source_organization_name")
            latest[name] = time, PublishedRow(name=name, source=source, scores=scores)
    if not latest:
        raise InputError(
            f"published results {path}: none of {len(paths)} files has the source_name "
            f"{benchmark.source_name!r} and a score of {benchmark.name}"
        )
    rows = [row for _, row in latest.values()]
    return tuple(sorted(rows, key=lambda row: -row.scores.get(benchmark.headline, -1)))


def write_records(
    folder: Path, table: BenchmarkTable, benchmark: Benchmark, *, timestamp: float
) -> tuple[Path, ...]:
    """Write a record of each of our rows, and return the files.

    Args:
        folder: Folder of the records.
        table: Table on the whole benchmark.
        benchmark: Definition of the benchmark.
        timestamp: Seconds since 1970.
    """
    paths = []
    for line in table.rows_with_figures:
        content = _record(line.name, line.our_figures, table, benchmark, timestamp=timestamp)
        paths.append(folder / f"{slug(line.name)[:100]}.json")
        write_json(paths[-1], content)
    return tuple(paths)


def _record(
    name: str, ours: RowFigures, table: BenchmarkTable, benchmark: Benchmark, *, timestamp: float
) -> dict[str, Any]:
    data: dict[str, Any] = {"dataset_name": benchmark.title, "source_type": "other"}
    if benchmark.dataset is not None:
        hub = {"hf_repo": benchmark.dataset, "hf_split": benchmark.split}
        data |= {"source_type": "hf_dataset", **hub}
    details = {"row": name, "benchmark_digest": table.benchmark.digest}
    if ours.computed_with is not None:
        details["computed_with"] = ours.computed_with.sentence
    if ours.synthetic:
        details["synthetic"] = "; ".join(ours.synthetic)
    model = f"{table.model or 'model'}, {name}"
    return {
        "schema_version": _SCHEMA_VERSION,
        "evaluation_id": f"{benchmark.name}/{slug(model)}/{timestamp}",
        "retrieved_timestamp": str(timestamp),
        "source_metadata": {
            "source_name": benchmark.source_name or benchmark.title,
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": "encore-reward",
            "version": installed_version("encore-reward") or "unknown",
        },
        "model_info": {"name": model, "id": model, "additional_details": details},
        "evaluation_results": [
            {
                "evaluation_name": figure,
                "source_data": data,
                "metric_config": _metric(figure, benchmark),
                "score_details": {
                    "score": score.score,
                    "uncertainty": {
                        "confidence_interval": {
                            "lower": score.ci_low,
                            "upper": score.ci_high,
                            "confidence_level": 0.95,
                        },
                        "num_samples": score.num_pairs,
                    },
                },
            }
            for figure, score in ours.figures.items()
        ],
    }


def _metric(figure: str, benchmark: Benchmark) -> Mapping[str, Any]:
    return {
        "evaluation_description": f"{benchmark.title}: {figure}",
        "lower_is_better": False,
        "score_type": "continuous",
        "min_score": 0.0,
        "max_score": 1.0,
    }
