"""Read the runs that MLflow shows of a study from the study's files.

MLflow's compare page lines runs up by names, so every row of every table on the same pairs has the
same parameters and metrics. What a row has no value for is said: a parameter that is a number in
other rows is ``NaN`` (with a word among the values the page draws no axis), another parameter is
``none``, a metric is NaN, never 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow.parquet as pq

from encore.analysis.rule_verdicts import RuleVerdictName
from encore.analysis.statistics import POOLED
from encore.core.errors import InputError
from encore.core.versions import installed_version
from encore.data.pairs import data_digest
from encore.data.rating_runs import read_run
from encore.data.study import Study
from encore.runs.identity import run_key_of
from encore.training.run_folder import read_log

if TYPE_CHECKING:
    from encore.weighting.weigh import WeighedRules

NONE, NO_NUMBER = "none", "NaN"
KEY_TAG, KIND_TAG, TABLE_TAG = "encore.run_key", "encore.kind", "encore.table"
#: ``yes`` if a row is one reward model that was scored here, so that it can be registered.
REWARD_TAG = "encore.is_reward"
#: Parameters of schemes: every row has them. Whatever else a scheme reports is in the row's file.
_NUMBER_PARAMS = ("tau", "k", "alpha", "seed", "num_draws", "scale", "ridge")
_NAME_PARAMS = ("rule", "log_base")
_TRAINING_FILES = ("training.json", "log.jsonl", "evaluations.jsonl", "result.json")
_TABLE_FILES = ("table.json", "table.md", "results.parquet")
#: MLflow's names have letters, digits and these; a slash would begin a group of names.
_NOT_IN_NAMES = re.compile(r"[^\w\-. ]")


#: A training step, and metrics by name.
StepMetrics = tuple[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class DataSet:
    """Data that a run was made from.

    Attributes:
        name: Name shown to people.
        digest: SHA-256 of the content.
        context: Use of the data: ``training``, ``weighting`` or ``evaluation``.
        path: File or folder with the data.
    """

    name: str
    digest: str
    context: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One MLflow run.

    Attributes:
        key: Key by which the run is found: equal content has one run, wherever its study is.
            Empty if there was none.
        name: Name shown to people.
        params: Parameters: data, settings and models that the run was made with.
        tags: Tags to search by, and the note that a reader sees first.
        datasets: Data sets that the run was made from.
        folder: Folder of the training or table.
        series: Metrics by series, in the order of their steps. A row has all metrics at step 0.
        models: Checkpoints on the disk and the final model, each with its step.
        files: Files that are logged once the run is finished.
        row_json: Row of a benchmark's table as JSON, logged like a file. Empty for other runs.
        refusal: Reason why a row cannot be registered as a model. Empty if it can.
        is_finished: True if nothing is added to the run any more.
    """

    key: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    datasets: Sequence[DataSet]
    folder: Path
    series: Mapping[str, Sequence[StepMetrics]] = field(default_factory=dict)
    models: Sequence[tuple[int, Path]] = ()
    files: Sequence[Path] = ()
    row_json: str = ""
    refusal: str = ""
    is_finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTable:
    """A benchmark table: one run for each row, within the run of the study.

    Attributes:
        key: Hash of the table's content.
        experiment: Experiment of the table's pairs and definition: rows of others do not compare.
        headline: Name of the metric that the rows are ranked by.
        parent: Run of the study; its files are the table's.
        figures: Metrics of the study's run: best row, reference, counts.
        rows: Runs by row name.
    """

    key: str
    experiment: str
    headline: str
    parent: StudyRun
    figures: Mapping[str, float]
    rows: Mapping[str, StudyRun]


def read_trainings(study: Study, *, extra_folders: Iterable[Path] = ()) -> Iterator[StudyRun]:
    """Yield every training run of a study, and those in other folders."""
    for folder in _folders_with(study, "training/*/training.json", extra_folders):
        yield _training_run(folder, study)


def read_tables(study: Study, *, extra_folders: Iterable[Path] = ()) -> Iterator[StudyTable]:
    """Yield every benchmark table of a study, and those in other folders, the newest last.

    A table's Markdown is the last of its files.
    """
    folders = _folders_with(study, "benchmarks/*/table.md", extra_folders)
    folders.sort(key=lambda folder: (folder / "table.md").stat().st_mtime)
    for folder in folders:
        yield _study_table(folder, study)


def weighing_run(
    study: Study,
    run_dir: Path,
    weighed: WeighedRules,
    *,
    analysis_file: Path,
    other_files: Sequence[Path] = (),
) -> StudyRun:
    """Return the run of a rating run's rules: weight, entropy, accuracy of each, sources pooled.

    Metrics ``rules/VERDICT`` count the rules by verdict.

    Args:
        study: The study.
        run_dir: Folder of the rating run.
        weighed: Weights of the rules.
        analysis_file: The analysis of the same ratings as JSON, logged as a file.
        other_files: Further files to log: the weights, the report.
    """
    vector, manifest = weighed.vector, read_run(run_dir)
    figures: dict[str, float | None] = {}
    for rule, weight in zip(weighed.rules, vector.weights, strict=True):
        values = {"weight": weight, "entropy": rule.entropy_nats, "accuracy": rule.accuracy.half}
        figures |= {f"{name}/{rule.rule_id}": value for name, value in values.items()}
    rows = [row for row in _read_json(analysis_file)["answer"] if row["source"] == POOLED]
    rules_by_verdict = {
        name: [row["rule_id"] for row in rows if row["verdict"] == name]
        for name in get_args(RuleVerdictName)
    }
    figures |= {f"rules/{name}": len(rules) for name, rules in rules_by_verdict.items()}
    answer = "; ".join(f"{name}: {', '.join(ids)}" for name, ids in rules_by_verdict.items() if ids)
    settings = {"scheme": vector.scheme, **vector.params, **dict(_flat(manifest.identity, "."))}
    params = {name: _text(value) for name, value in settings.items()}
    pairs = _pairs_data(manifest.identity["data_sha256"], study, "weighting")
    weighing = f"{len(vector.weights)} rules, weighed by scheme {vector.scheme}; {manifest.title}."
    summary = f"Which rules to trust. {answer}.\n\n{weighing}"
    synthetic = (*study.synthetic, *manifest.synthetic)
    return StudyRun(
        key=run_key_of({"params": params, "weights": vector.weights}),
        name=f"{vector.scheme}-{manifest.key[:8]}",
        params=params,
        tags=_tags("weighing", synthetic, (), summary=summary),
        datasets=[pairs, *_ratings_data(vector.as_dict()["provenance"], study, "weighting")],
        folder=run_dir,
        series={"weighing": [(0, _numbers(dict(sorted(figures.items()))))]},
        files=[analysis_file, *other_files],
    )


def _folders_with(study: Study, pattern: str, extra_folders: Iterable[Path]) -> list[Path]:
    """Return the folders that have a file of the pattern: in the study, and of those given."""
    file_name = Path(pattern).name
    extra = (folder for folder in extra_folders if (folder / file_name).is_file())
    return sorted({*extra, *(path.parent for path in study.path.glob(pattern))})


def _training_run(folder: Path, study: Study) -> StudyRun:
    manifest, result = _read_json(folder / "training.json"), _read_json(folder / "result.json")
    if "config" not in manifest:
        raise InputError(f"{folder}: a training of an earlier version; remove the folder")
    identity, key = manifest["identity"], manifest["run_key"]
    objective = manifest["config"]["objective"]
    left_out: dict[str, Any] = {"identity": {}, "notes": {}, "synthetic": {}}  # text, not settings
    settings = _flat({**identity, **manifest, **left_out}, ".")
    checkpoints = sorted(folder.glob("checkpoints/step-*"))
    models = [(int(path.name.removeprefix("step-")), path) for path in checkpoints]
    if result:
        models.append((result["num_steps"], folder / "model"))
    pairs = _pairs_data(identity["data_sha256"], study, "training")
    return StudyRun(
        key=key,
        name=f"{objective}-{key[:8]}",
        params={name: _text(value) for name, value in settings},
        tags={
            **_tags("training", manifest.get("synthetic", ()), manifest.get("notes", ())),
            "encore.out": str(folder.resolve()),
            "mlflow.source.name": f"encore {manifest.get('versions', {}).get('encore-reward', '')}",
        },
        datasets=[pairs, *_ratings_data(manifest.get("ratings"), study, "training")],
        folder=folder,
        series={
            "train": _read_series("train", folder / "log.jsonl"),
            "eval": _read_series("eval", folder / "evaluations.jsonl"),
        },
        models=models,
        files=[path for name in _TRAINING_FILES if (path := folder / name).is_file()],
        is_finished=bool(result),
    )


def _study_table(folder: Path, study: Study) -> StudyTable:
    content, evaluation = _read_json(folder / "table.json"), _read_json(folder / "evaluation.json")
    benchmark, key = content["benchmark"], evaluation["key"]
    copied = ("headline", "dataset", "revision", "weighting", "num_pairs", "is_partial")
    params = {
        "benchmark": benchmark["name"],
        "benchmark_version": benchmark["version"],
        **{name: _text(benchmark[name]) for name in copied},
        "pairs_sha256": benchmark["digest"],
        "study": study.path.resolve().name,
        "study_sha256": data_digest(study),
    }
    summary, figures = _headline(content)
    results = folder / "results.parquet"
    tested = DataSet(benchmark["name"], benchmark["digest"], "evaluation", results)
    pairs = _pairs_data(params["study_sha256"], study, "training")
    ratings = _ratings_data(evaluation["identity"]["ratings"], study, "weighting")
    parent = StudyRun(
        key=run_key_of({KIND_TAG: "study", **_without_folder(params)}),
        name=params["study"],
        params=params,
        tags={
            **_tags("study", content["synthetic"], content["notes"], summary=summary),
            "encore.partial": "yes" if benchmark["is_partial"] else "no",
        },
        datasets=[tested, pairs, *ratings],
        folder=folder,
        files=[folder / name for name in _TABLE_FILES],
    )
    version = _safe_name(benchmark["version"])
    return StudyTable(
        key=key,
        experiment=f"{benchmark['name']}-{version}-{benchmark['digest'][:8]}",
        headline=_safe_name(benchmark["headline"]).lower(),
        parent=parent,
        figures=figures,
        rows={row.name: row for row in _row_runs(content, evaluation, parent=parent)},
    )


def _headline(content: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """Return a table's best row and its reference, in words and as metrics of the study's run."""
    figure_by_row = {row["name"]: row["ours"]["headline"] for row in content["rows"] if row["ours"]}
    benchmark, reference = content["benchmark"], content["reference"]
    best = max(figure_by_row, key=lambda row: float(figure_by_row[row]["score"]))
    name = _safe_name(benchmark["headline"]).lower()
    figures = {
        **_with_interval(f"best_{name}", figure_by_row[best]["score"], figure_by_row[best]),
        f"reference_{name}": figure_by_row[reference]["score"],
        "num_pairs": benchmark["num_pairs"],
        "num_rows": len(figure_by_row),
    }
    best_text, reference_text = (
        f"{row} {figure_by_row[row]['score']:.3f}" for row in (best, reference)
    )
    summary = (
        f"{benchmark['name']} {benchmark['version']}, {benchmark['num_pairs']} pairs. Best of "
        f"{len(figure_by_row)} rows: {best_text}. Reference: {reference_text}."
    )
    return summary, figures


def _pairs_data(digest: str, study: Study, context: str) -> DataSet:
    return DataSet(study.path.resolve().name, digest, context, study.path / "pairs")


def _ratings_data(
    origin: Mapping[str, Any] | None, study: Study, context: str
) -> Iterator[DataSet]:
    """Yield the ratings that heads or weights were made from, if that was recorded."""
    if origin and origin["ratings_sha256"]:
        folder = study.path / "ratings" / (origin["run_key"] or "")
        name = f"ratings by {origin['judge'] or 'an unknown judge'}"
        yield DataSet(name, origin["ratings_sha256"], context, folder)


def _row_runs(
    content: Mapping[str, Any], evaluation: Mapping[str, Any], *, parent: StudyRun
) -> Iterator[StudyRun]:
    """Yield a run for each row of a table that was scored here, within its study's run."""
    footer = json.loads(pq.read_schema(parent.folder / "results.parquet").metadata[b"encore"])
    rows = [row for row in content["rows"] if row["ours"] is not None]  # not the paper's alone
    # A sentence of the table that no row has is said of every row.
    general = {
        part: [text for text in content[part] if all(text not in row["ours"][part] for row in rows)]
        for part in ("synthetic", "notes")
    }
    subsets = dict.fromkeys(subset["subset"] for row in rows for subset in row["ours"]["subsets"])
    for row in rows:
        name, ours = row["name"], row["ours"]
        model = evaluation["models"].get(name) or {}
        ratings = (evaluation["identity"]["ratings"] if ours["weights"] else None) or {}
        params = {
            **_row_params(row, footer["rows"].get(name, {}), model, ratings),
            "reference": _text(content["reference"]),
            **parent.params,
        }
        synthetic, notes = ([*ours[part], *general[part]] for part in ("synthetic", "notes"))
        refusal = _refusal(row, model)
        metrics = _row_metrics(row, subsets)
        # Figures as texts: JSON has no NaN, and machines differ in how they round the last digits.
        figures = {metric: f"{value:.9g}" for metric, value in metrics.items()}
        content_of_row = {"weights": ours["weights"], "figures": figures}
        yield replace(
            parent,
            key=run_key_of({"params": _without_folder(params), **content_of_row}),
            name=name,
            params=params,
            tags={
                **parent.tags,
                **_tags("evaluation", synthetic, notes),
                f"{TABLE_TAG}.{evaluation['key']}": "yes",
                REWARD_TAG: "no" if refusal else "yes",
            },
            datasets=[
                data for data in parent.datasets if ours["weights"] or data.context == "evaluation"
            ],
            series={"eval": [(0, metrics)]},
            files=(),
            row_json=json.dumps(row, indent=2, ensure_ascii=False),
            refusal=refusal,
        )


def _without_folder(params: Mapping[str, str]) -> dict[str, str]:
    """Return parameters without the name of the study's folder: a copy may have another."""
    return {name: value for name, value in params.items() if name != "study"}


def _refusal(row: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return why a row is not one reward model with one score for a conversation, or ""."""
    if row["kind"] == "judge":
        return "it is a judge's, and no reward model gives it"
    if row["ours"]["draws"] or not (row["ours"]["weights"] or row["kind"] == "model"):
        if model.get("gate"):
            return "its gate weighs the rules anew for every prompt, which no plain head does"
        return "it is a mean over draws of weights, not one model"
    if not model:
        return "it comes from a file of results; give its model with --model or --reward-model"
    return ""


def _row_params(
    row: Mapping[str, Any],
    result: Mapping[str, Any],
    model: Mapping[str, Any],
    ratings: Mapping[str, Any],
) -> dict[str, str]:
    """Return a row's parameters, with the same names for every row.

    Args:
        row: Row of the table, as its JSON has it.
        result: Entry of this row in the footer of the results.
        model: Description of the model that was scored. Empty if there is none.
        ratings: Description of the ratings that the weights were made from. Empty if none.
    """
    ours, kind = row["ours"], row["kind"]
    name_without_draws = row["name"].partition(" (")[0]  # of a mean over draws: the scheme
    return {
        "row": row["name"],
        "kind": kind,
        "scheme": result.get("scheme") or (name_without_draws if kind == "scheme" else NONE),
        "method": ours["method"] or NONE,
        **{name: _text(ours["params"].get(name), none=NO_NUMBER) for name in _NUMBER_PARAMS},
        **{name: _text(ours["params"].get(name)) for name in _NAME_PARAMS},
        "ties": ours["ties"],
        "uses_labels": _text(ours["uses_labels"]),
        "model": _text(model.get("name", result.get("judge"))),
        "model_sha256": _text(model.get("digest")),
        "model_revision": _text(model.get("revision")),
        "ratings_judge": _text(ratings.get("judge")),
        "ratings_sha256": _text(ratings.get("ratings_sha256")),
        "rules_sha256": _text(ratings.get("rules_sha256")),
    }


def _row_metrics(row: Mapping[str, Any], subsets: Iterable[str]) -> dict[str, float]:
    """Return every figure of a row; shares in [0, 1]. ``difference`` is to the reference row."""
    ours, headline = row["ours"], row["ours"]["headline"]
    name = _safe_name(headline["name"]).lower()
    # The reference differs from itself by 0.
    no_difference = {"difference": 0, "ci_low": 0, "ci_high": 0, "mcnemar_p": 1}
    comparison, draws = ours["comparison"] or no_difference, ours["draws"] or {}
    metrics = {
        **_with_interval(name, headline["score"], headline),
        "num_units": headline["num_pairs"],
        **_with_interval("difference", comparison["difference"], comparison),
        "mcnemar_p": comparison["mcnemar_p"],
        "draws_low": draws.get("low"),
        "draws_high": draws.get("high"),
        "paper": (row["paper"] or {}).get("score"),
        "difference_to_paper": row["difference_to_paper"],
    }
    figures_by_subset = {figures["subset"]: figures for figures in ours["subsets"]}
    for subset in subsets:
        figures = figures_by_subset.get(subset, {})
        metrics |= _with_interval(f"subset/{_safe_name(subset)}", figures.get("accuracy"), figures)
    return _numbers(metrics)


def _with_interval(name: str, value: Any, interval: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure and both ends of its interval; None where there is none."""
    return {name: value, **{f"{name}_{end}": interval.get(end) for end in ("ci_low", "ci_high")}}


def _numbers(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else float(value) for name, value in figures.items()}


def _tags(
    kind: str, synthetic: Sequence[str], notes: Sequence[str], *, summary: str = ""
) -> dict[str, str]:
    """Return the tags to search by, and the note that a reader sees first."""
    warning = f"**Synthetic: {'; '.join(synthetic)}.** Figures are an example." if synthetic else ""
    return {
        KIND_TAG: kind,
        "mlflow.source.name": f"encore {installed_version('encore-reward')}",
        "encore.synthetic": ", ".join(synthetic) or "no",
        "mlflow.note.content": "\n\n".join(filter(None, (summary, warning, *notes))),
    }


def _read_series(prefix: str, path: Path) -> list[StepMetrics]:
    series: list[StepMetrics] = []
    for record in read_log(path):
        values = {
            f"{prefix}/{name.replace('_by_head/', '/')}": float(value)
            for name, value in _flat(record, "/")
            if isinstance(value, int | float) and name != "step"
        }
        series.append((record["step"], values))
    return series


def _flat(content: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings with their joined names."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            for inner_name, leaf in _flat(value, separator):
                yield f"{name}{separator}{inner_name}", leaf
        else:
            yield name, value


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no such file."""
    content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return content


def _safe_name(text: str) -> str:
    """Return the text as a name for MLflow: an underscore replaces each character it refuses."""
    return _NOT_IN_NAMES.sub("_", text)


def _text(value: Any, *, none: str = NONE) -> str:
    if value is None:
        return none
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
