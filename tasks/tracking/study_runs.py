"""The runs that MLflow shows of a study, read from the study's files.

MLflow's compare page lines runs up by names, so every row of every table on the same pairs has the
same parameters and metrics. What a row has no value for is said: a parameter that is a number
elsewhere is ``NaN`` (one word in it, and the page draws no axis), another is ``none``, a metric is
NaN, never 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from encore.core.versions import installed_version
from encore.data.pairs import data_digest
from encore.data.rating_runs import read_run
from encore.data.study import Study
from encore.runs.run_files import run_key_of
from encore.training.run_folder import read_log

if TYPE_CHECKING:
    from encore.weighting.weigh import WeighedRules

NONE, NO_NUMBER = "none", "NaN"
KEY_TAG, KIND_TAG, TABLE_TAG = "encore.run_key", "encore.kind", "encore.table"
#: Whether a row is one reward model that was scored here, so that it can be registered.
REWARD_TAG = "encore.is_reward"
#: Parameters of schemes: every row has them. What else a scheme reports is in the row's file.
_NUMBERS = ("tau", "k", "alpha", "seed", "num_draws", "scale", "ridge")
_NAMES = ("rule", "log_base")
_TRAINING_FILES = ("training.json", "log.jsonl", "evaluations.jsonl", "result.json")
_TABLE_FILES = ("table.json", "table.md", "results.parquet")
#: MLflow's names: letters, digits and these; a slash would make a group of its own.
_NOT_IN_NAMES = re.compile(r"[^\w\-. ]")


#: A training step, and metrics by name.
Figures = tuple[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class DataSet:
    """Data that a run was made from.

    Attributes:
        name: For people.
        digest: SHA-256 of its content.
        context: What for: ``training``, ``weighting`` or ``evaluation``.
        place: The file or folder that has it.
    """

    name: str
    digest: str
    context: str
    place: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One MLflow run.

    Attributes:
        key: What it is found by: equal content has one run.
        name: For people.
        params: What it is made of.
        tags: What it is searched by, and what a reader should know first.
        datasets: What it was made from.
        folder: Of the training or table.
        series: Metrics in the order of their steps; of a row all its metrics, at step 0.
        models: Checkpoints on the disk and the final model, each with its step.
        files: Logged once the run is finished.
        row: The same of a table's row, as JSON.
        refusal: Of a table's row: why it cannot be registered as a model; empty where it can.
        is_finished: Whether anything is still to come.
    """

    key: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    datasets: Sequence[DataSet]
    folder: Path
    series: Mapping[str, Sequence[Figures]] = field(default_factory=dict)
    models: Sequence[tuple[int, Path]] = ()
    files: Sequence[Path] = ()
    row: str = ""
    refusal: str = ""
    is_finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTable:
    """A benchmark table: one run for each row, within the run of the study.

    Attributes:
        key: Of the table: a hash of what it contains.
        experiment: One for each definition on a set of pairs: rows of others do not compare.
        headline: Name of the metric that the rows are ranked by.
        parent: The study's run; its files are the table's.
        figures: What the study's run shows of the table.
        rows: By name.
    """

    key: str
    experiment: str
    headline: str
    parent: StudyRun
    figures: Mapping[str, float]
    rows: Mapping[str, StudyRun]


def read_trainings(study: Study, *, also: Iterable[Path] = ()) -> Iterator[StudyRun]:
    """Every training run of a study, and those in other folders."""
    return (_training(one, study) for one in _folders(study, "training/*/training.json", also))


def read_tables(study: Study, *, also: Iterable[Path] = ()) -> Iterator[StudyTable]:
    """Every benchmark table of a study, and those in other folders, the newest last.

    A table's Markdown is the last of its files.
    """
    folders = _folders(study, "benchmarks/*/table.md", also)
    folders.sort(key=lambda folder: (folder / "table.md").stat().st_mtime)
    return (_table(one, study) for one in folders)


def weighing_run(study: Study, run_dir: Path, weighed: WeighedRules) -> StudyRun:
    """A rating run's rules, all sources pooled: what was measured of each, and its weight."""
    vector, manifest = weighed.vector, read_run(run_dir)
    figures: dict[str, float | None] = {}
    for rule, weight in zip(weighed.rules, vector.weights, strict=True):
        found = {"weight": weight, "entropy": rule.entropy_nats, "accuracy": rule.accuracy.half}
        figures |= {f"{name}/{rule.rule_id}": value for name, value in found.items()}
    about = {"scheme": vector.scheme, **vector.params, **dict(_flat(manifest.identity, "."))}
    params = {name: _text(value) for name, value in about.items()}
    name, digest = study.path.resolve().name, manifest.identity["data_sha256"]
    pairs = DataSet(name, digest, "weighting", study.path / "pairs")
    told = f"{len(vector.weights)} rules, weighed by scheme {vector.scheme}; {manifest.title}."
    return StudyRun(
        key=run_key_of({"params": params, "weights": vector.weights}),
        name=f"{vector.scheme}-{manifest.key[:8]}",
        params=params,
        tags=_tags("weighing", (*study.synthetic, *manifest.synthetic), (), about=told),
        datasets=[pairs, *_ratings(vector.as_dict()["provenance"], study, context="weighting")],
        folder=run_dir,
        series={"weighing": [(0, _numbers(dict(sorted(figures.items()))))]},
    )


def _folders(study: Study, pattern: str, also: Iterable[Path]) -> list[Path]:
    name = Path(pattern).name
    others = (folder for folder in also if (folder / name).is_file())
    return sorted({*others, *(path.parent for path in study.path.glob(pattern))})


def _training(folder: Path, study: Study) -> StudyRun:
    manifest, result = _json(folder / "training.json"), _json(folder / "result.json")
    identity, key = manifest["identity"], manifest["run_key"]
    objective = identity.get("config", {}).get("objective", "training")
    prose = {"identity": {}, "notes": {}, "synthetic": {}}
    about = _flat({**identity, **manifest, **prose}, ".")
    checkpoints = sorted(folder.glob("checkpoints/step-*"))
    models = [(int(path.name.removeprefix("step-")), path) for path in checkpoints]
    if result:
        models.append((result["num_steps"], folder / "model"))
    digest, place = identity["data_sha256"], study.path / "pairs"
    pairs = DataSet(study.path.resolve().name, digest, "training", place)
    return StudyRun(
        key=key,
        name=f"{objective}-{key[:8]}",
        params={name: _text(value) for name, value in about},
        tags={
            **_tags("training", manifest.get("synthetic", ()), manifest.get("notes", ())),
            "encore.out": str(folder.resolve()),
            "mlflow.source.name": f"encore {manifest.get('versions', {}).get('encore-reward', '')}",
        },
        datasets=[pairs, *_ratings(manifest.get("ratings"), study, context="training")],
        folder=folder,
        series={
            "train": _series("train", folder / "log.jsonl"),
            "eval": _series("eval", folder / "evaluations.jsonl"),
        },
        models=models,
        files=[path for name in _TRAINING_FILES if (path := folder / name).is_file()],
        is_finished=bool(result),
    )


def _table(folder: Path, study: Study) -> StudyTable:
    content, evaluation = _json(folder / "table.json"), _json(folder / "evaluation.json")
    benchmark, key = content["benchmark"], evaluation["key"]
    named = ("headline", "dataset", "revision", "weighting", "num_pairs", "is_partial")
    params = {
        "benchmark": benchmark["name"],
        "benchmark_version": benchmark["version"],
        **{name: _text(benchmark[name]) for name in named},
        "pairs_sha256": benchmark["digest"],
        "study": study.path.resolve().name,
        "study_sha256": data_digest(study),
    }
    about, figures = _headline(content)
    every_pair = folder / "results.parquet"
    tested = DataSet(benchmark["name"], benchmark["digest"], "evaluation", every_pair)
    pairs = DataSet(params["study"], params["study_sha256"], "training", study.path / "pairs")
    ratings = _ratings(evaluation["identity"]["ratings"], study, context="weighting")
    parent = StudyRun(
        key=run_key_of({KIND_TAG: "study", **params}),
        name=params["study"],
        params=params,
        tags={
            **_tags("study", content["synthetic"], content["notes"], about=about),
            "encore.partial": "yes" if benchmark["is_partial"] else "no",
        },
        datasets=[tested, pairs, *ratings],
        folder=folder,
        files=[folder / name for name in _TABLE_FILES],
    )
    experiment = f"{benchmark['name']}-{_name(benchmark['version'])}-{benchmark['digest'][:8]}"
    rows = {row.name: row for row in _rows(content, evaluation, parent=parent)}
    headline = _metric_name(benchmark["headline"])
    return StudyTable(
        key=key, experiment=experiment, headline=headline, parent=parent, figures=figures, rows=rows
    )


def _headline(content: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """A table's best row and its reference, in words, and as metrics of the study's run."""
    of_row = {line["name"]: line["ours"]["headline"] for line in content["rows"] if line["ours"]}
    benchmark, reference = content["benchmark"], content["reference"]
    best = max(of_row, key=lambda row: float(of_row[row]["score"]))
    name = _metric_name(benchmark["headline"])
    figures = {
        **_with_interval(f"best_{name}", of_row[best]["score"], of_row[best]),
        f"reference_{name}": of_row[reference]["score"],
        "num_pairs": benchmark["num_pairs"],
        "num_rows": len(of_row),
    }
    told = [f"{row} {of_row[row]['score']:.3f}" for row in (best, reference)]
    about = (
        f"{benchmark['name']} {benchmark['version']}, {benchmark['num_pairs']} pairs. Best of "
        f"{len(of_row)} rows: {told[0]}. Reference: {told[1]}."
    )
    return about, figures


def _ratings(origin: Mapping[str, Any] | None, study: Study, *, context: str) -> Iterator[DataSet]:
    """The ratings that heads or weights were made from, if that was recorded."""
    if origin and origin["ratings_sha256"]:
        place = study.path / "ratings" / (origin["run_key"] or "")
        name = f"ratings by {origin['judge'] or 'an unknown judge'}"
        yield DataSet(name, origin["ratings_sha256"], context, place)


def _rows(
    content: Mapping[str, Any], evaluation: Mapping[str, Any], *, parent: StudyRun
) -> Iterator[StudyRun]:
    """The rows of ours in a table, within its study's run."""
    footer = json.loads(pq.read_schema(parent.folder / "results.parquet").metadata[b"encore"])
    lines = [line for line in content["rows"] if line["ours"] is not None]  # not the paper's alone
    # What the table says of no row in particular is said of every row.
    general = {
        part: [
            text for text in content[part] if all(text not in line["ours"][part] for line in lines)
        ]
        for part in ("synthetic", "notes")
    }
    subsets = dict.fromkeys(one["subset"] for line in lines for one in line["ours"]["subsets"])
    for line in lines:
        name, ours = line["name"], line["ours"]
        about = footer["rows"].get(name, {})
        behind = evaluation["models"].get(name) or {}
        ratings = (evaluation["identity"]["ratings"] if ours["weights"] else None) or {}
        own = {
            **_row_params(line, about, behind, ratings),
            "reference": _text(content["reference"]),
            **parent.params,
        }
        said = {part: [*ours[part], *texts] for part, texts in general.items()}
        refusal = _refusal(line, behind)
        metrics = _row_metrics(line, subsets)
        # As texts: JSON has no NaN, and other machines may round the last digits in another way.
        figures = {metric: f"{value:.9g}" for metric, value in metrics.items()}
        yield replace(
            parent,
            key=run_key_of({"params": own, "weights": ours["weights"], "figures": figures}),
            name=name,
            params=own,
            tags={
                **parent.tags,
                **_tags("evaluation", **said),
                f"{TABLE_TAG}.{evaluation['key']}": "yes",
                REWARD_TAG: "no" if refusal else "yes",
            },
            datasets=[
                one for one in parent.datasets if ours["weights"] or one.context == "evaluation"
            ],
            series={"eval": [(0, metrics)]},
            files=(),
            row=json.dumps(line, indent=2, ensure_ascii=False),
            refusal=refusal,
        )


def _refusal(line: Mapping[str, Any], behind: Mapping[str, Any]) -> str:
    """Why a row is not one reward model with one score for a conversation; empty where it is."""
    if line["kind"] == "judge":
        return "it is a judge's, and no reward model gives it"
    if line["ours"]["draws"] or not (line["ours"]["weights"] or line["kind"] == "model"):
        if behind.get("gate"):
            return "its gate weighs the rules anew for every prompt, which no plain head does"
        return "it is a mean over draws of weights, not one model"
    if not behind:
        return "it comes from a file of results; give its model with --model or --reward-model"
    return ""


def _row_params(
    line: Mapping[str, Any],
    about: Mapping[str, Any],
    behind: Mapping[str, Any],
    ratings: Mapping[str, Any],
) -> dict[str, str]:
    """The same names for every row.

    Args:
        line: Of the table.
        about: What the results say of it.
        behind: The model that was scored.
        ratings: Those that the weights are of.
    """
    ours, kind = line["ours"], line["kind"]
    first_words = line["name"].partition(" (")[0]  # of a mean over draws: the scheme
    return {
        "row": line["name"],
        "kind": kind,
        "scheme": about.get("scheme") or (first_words if kind == "scheme" else NONE),
        "method": ours["method"] or NONE,
        **{name: _text(ours["params"].get(name), none=NO_NUMBER) for name in _NUMBERS},
        **{name: _text(ours["params"].get(name)) for name in _NAMES},
        "ties": ours["ties"],
        "uses_labels": _text(ours["uses_labels"]),
        "model": _text(behind.get("name", about.get("judge"))),
        "model_sha256": _text(behind.get("digest")),
        "model_revision": _text(behind.get("revision")),
        "ratings_judge": _text(ratings.get("judge")),
        "ratings_sha256": _text(ratings.get("ratings_sha256")),
        "rules_sha256": _text(ratings.get("rules_sha256")),
    }


def _row_metrics(line: Mapping[str, Any], subsets: Iterable[str]) -> dict[str, float]:
    """Every figure of a row; shares in [0, 1]. ``difference`` is to the table's reference."""
    ours, headline = line["ours"], line["ours"]["headline"]
    name = _metric_name(headline["name"])
    # The reference differs from itself by 0.
    same = {"difference": 0, "ci_low": 0, "ci_high": 0, "mcnemar_p": 1}
    found, draws = ours["comparison"] or same, ours["draws"] or {}
    metrics = {
        **_with_interval(name, headline["score"], headline),
        "num_units": headline["num_pairs"],
        **_with_interval("difference", found["difference"], found),
        "mcnemar_p": found["mcnemar_p"],
        "draws_low": draws.get("low"),
        "draws_high": draws.get("high"),
        "paper": (line["paper"] or {}).get("score"),
        "difference_to_paper": line["difference_to_paper"],
    }
    of_row = {one["subset"]: one for one in ours["subsets"]}
    for subset in subsets:
        one = of_row.get(subset, {})
        metrics |= _with_interval(f"subset/{_name(subset)}", one.get("accuracy"), one)
    return _numbers(metrics)


def _with_interval(name: str, value: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """A figure and both ends of its interval; None where there is none."""
    return {name: value, **{f"{name}_{end}": found.get(end) for end in ("ci_low", "ci_high")}}


def _numbers(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else float(value) for name, value in figures.items()}


def _tags(
    kind: str, synthetic: Sequence[str], notes: Sequence[str], *, about: str = ""
) -> dict[str, str]:
    """What every run is searched by, and what it says first."""
    parts = "; ".join(synthetic)
    first = f"**Synthetic: {parts}.** Figures are an example." if synthetic else ""
    return {
        KIND_TAG: kind,
        "mlflow.source.name": f"encore {installed_version('encore-reward')}",
        "encore.data.synthetic": ", ".join(synthetic) or "no",
        "mlflow.note.content": "\n\n".join(filter(None, (about, first, *notes))),
    }


def _series(prefix: str, path: Path) -> list[Figures]:
    series = []
    for record in read_log(path):
        values = {
            f"{prefix}/{name.replace('_by_head/', '/')}": float(value)
            for name, value in _flat(record, "/")
            if isinstance(value, int | float) and name != "step"
        }
        series.append((record["step"], values))
    return series


def _flat(content: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            for rest, leaf in _flat(value, separator):
                yield f"{name}{separator}{rest}", leaf
        else:
            yield name, value


def _json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file."""
    content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return content


def _name(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text)


def _metric_name(headline: str) -> str:
    return _name(headline).lower()


def _text(value: Any, *, none: str = NONE) -> str:
    if value is None:
        return none
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
