"""A benchmark table in a tracker's words: every row the same parameters, metrics and tags.

The compare page lines runs up by names, so every row of every table on the same pairs has the same
ones. What a row has no value for is said: a parameter that is a number elsewhere is ``NaN`` (one
word in it, and the page takes τ for a name and draws no axis), another is ``none``, a metric is
NaN, never 0. MLflow sorts NaN last, and no filter finds it. Why a row has no p-value is a tag.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from encore.benchmarks.models import ModelBehind
from encore.benchmarks.rows import TableRow
from encore.benchmarks.run import BenchmarkRun
from encore.benchmarks.table import BenchmarkTable, TableLine
from encore.shards import run_key_of
from encore.weighting.provenance import Origin
from encore.weighting.vector import WeightVector

#: The value of a parameter that a row does not have, and of one that is a number elsewhere.
NONE, NO_NUMBER = "none", "NaN"
KIND_TAG, PAIRS_TAG = "encore.kind", "encore.pairs_sha256"
#: The page of the Prefect flow run that logged it.
PAGE_TAG = "encore.prefect_page"
MODEL_TAG, REWARD_TAG = "encore.model_sha256", "encore.reward_key"
STUDY_KIND, EVALUATION_KIND, TRAINING_KIND = "study", "evaluation", "training"
#: Parameters of schemes: every row has them. What else a scheme reports is in the row's file.
_NUMBERS = ("tau", "k", "alpha", "seed", "num_draws", "scale", "ridge")
_NAMES = ("rule", "log_base")
#: MLflow's names: letters, digits and these; a slash would make a group of its own.
_NOT_IN_NAMES = re.compile(r"[^\w\-. ]")


def experiment_of(table: BenchmarkTable) -> str:
    """One experiment for each definition on a set of pairs: rows of others do not compare."""
    benchmark = table.pairs.benchmark
    return f"encore-{benchmark.name}-{_name(benchmark.version)}-{table.pairs.digest[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyName:
    """Which study: what it is called, and the digest of its pairs.

    Two studies of the same pairs, with other judges say, are told apart by what they are called; a
    copy that is called the same is the same.
    """

    name: str
    sha256: str

    @property
    def params(self) -> dict[str, str]:
        """Of each of its runs."""
        return {"study": self.name, "study_sha256": self.sha256}


def study_params(table: BenchmarkTable, *, study: StudyName) -> dict[str, str]:
    """What the run of a study is made of: its pairs and the benchmark's."""
    return {**_benchmark_params(table), **study.params}


def evaluation_params(row: TableRow, run: BenchmarkRun, *, study: StudyName) -> dict[str, str]:
    """What a row is made of, under the same names for every row.

    Args:
        row: Of the table.
        run: That made it.
        study: The training study.
    """
    table = run.table
    return {
        "row": row.name,
        "kind": row.kind,
        "scheme": scheme_of(row),
        "method": row.method or NONE,
        **{name: _text(row.params.get(name), none=NO_NUMBER) for name in _NUMBERS},
        **{name: _text(row.params.get(name)) for name in _NAMES},
        "ties": row.score.ties,
        "uses_labels": _text(row.uses_labels),
        **_model_params(run.models.get(row.name), judge=row.judge),
        **_rating_params(row.vector),
        "reference": table.reference or NONE,
        **_benchmark_params(table),
        **study.params,
    }


def evaluation_metrics(line: TableLine, table: BenchmarkTable) -> dict[str, float]:
    """Every figure of a row, under the same names for every row; shares in [0, 1].

    The headline has its own name (``safety``); a subset's is ``subset/NAME``. ``difference`` is to
    the table's reference, which differs from itself by 0. Weights are no metrics: studies have
    different rules.
    """
    row = line.row
    assert row is not None, "a row of the paper alone is not evaluated"
    headline = row.score.headline
    name = _name(headline.name).lower()
    return {
        name: headline.score,
        f"{name}_ci_low": headline.ci_low,
        f"{name}_ci_high": headline.ci_high,
        "num_units": float(headline.num_pairs),
        **dict(_subset_metrics(row, table)),
        **_difference_metrics(row),
        "draws_low": math.nan if row.draws is None else row.draws.low,
        "draws_high": math.nan if row.draws is None else row.draws.high,
        "paper": _number(line.paper_score),
        "difference_to_paper": _number(line.difference_to_paper),
    }


def evaluation_tags(
    row: TableRow, run: BenchmarkRun, *, about: Mapping[str, str]
) -> dict[str, str]:
    """What an evaluation is searched by, and what its reader should know of it first."""
    table = run.table
    of_rows = [one.notes for one in _rows(table)]
    behind = run.models.get(row.name)
    return {
        "mlflow.runName": row.name,
        KIND_TAG: EVALUATION_KIND,
        "encore.row_kind": row.kind,
        "encore.scheme": scheme_of(row),
        "encore.mcnemar": _about_p_value(row),
        MODEL_TAG: NONE if behind is None else behind.digest,
        REWARD_TAG: reward_key(row, run) or NONE,
        **_tags(
            table,
            synthetic=synthetic_of(row, table),
            notes=_about_it(table.notes, own=row.notes, of_rows=of_rows),
            about=about,
        ),
    }


def synthetic_of(row: TableRow, table: BenchmarkTable) -> tuple[str, ...]:
    """What of a row and of the pairs is synthetic, in words; not what of its neighbours is."""
    of_rows = [one.synthetic for one in _rows(table)]
    return _about_it(table.synthetic, own=row.synthetic, of_rows=of_rows)


def table_tags(table: BenchmarkTable, *, about: Mapping[str, str]) -> dict[str, str]:
    """What holds for a table as a whole."""
    return _tags(table, synthetic=table.synthetic, notes=table.notes, about=about)


def evaluation_key(
    line: TableLine, params: Mapping[str, str], *, table: BenchmarkTable, reference: TableRow
) -> str:
    """The key of an evaluation: the same row with the same results has one MLflow run, ever.

    It follows from what was found, so results that differ, for whatever reason, are a run of their
    own instead of a second value of the same metric. Figures are among them: the paper's beside the
    row, intervals of another seed, the headline by another name.
    """
    row = line.row
    assert row is not None, "a row of the paper alone is not evaluated"
    figures = evaluation_metrics(line, table)
    identity = {
        "params": dict(params),
        "weights": weights_of(row),
        "credits": _digest(row),
        "reference": _digest(reference),
        # As texts: JSON has no NaN. Other machines may round the last digits in another way.
        "figures": {name: f"{value:.9g}" for name, value in figures.items()},
    }
    return run_key_of(identity)


def scheme_of(row: TableRow) -> str:
    """The weighting scheme of a row; `NONE` for one that has no weights."""
    if row.vector is not None:
        return row.vector.scheme
    if row.scheme is not None:
        return row.scheme
    if row.kind != "scheme":
        return NONE
    own = row.name.rpartition(": ")[2]  # a row of a file of several: whose they are comes before
    name = own.partition(" (")[0]  # a mean over draws: the scheme, then what is averaged
    return name.replace(f"-{row.params['k']}", "-k") if "k" in row.params else name


def reward_key(row: TableRow, run: BenchmarkRun) -> str | None:
    """The key of what gives the row's rewards, whatever the pairs: a model, its heads' weights.

    None where that is not known here: a row of a file of results, a mean over draws.
    """
    behind = run.models.get(row.name)
    if behind is None or (row.vector is None and row.kind != "model" and behind.gate is None):
        return None
    gate = {} if behind.gate is None else {"gate_sha256": behind.gate}
    return run_key_of({"model_sha256": behind.digest, "weights": weights_of(row), **gate})


def weights_of(row: TableRow) -> dict[str, float] | None:
    """By rule; None for a row without weights."""
    vector = row.vector
    return None if vector is None else dict(zip(vector.rule_ids, vector.weights, strict=True))


def _about_it(
    parts: Sequence[str], *, own: Sequence[str], of_rows: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """What is said of a row, or of no row in particular."""
    of_any = {part for one in of_rows for part in one}
    return tuple(part for part in parts if part in own or part not in of_any)


def _about_p_value(row: TableRow) -> str:
    """Whether the metric is a p-value, and if not, why; the reference differs from itself by 0."""
    if row.comparison is None or row.p_value is not None:
        return "exact"
    why = "a mean over draws" if row.is_mean else "credits between right and wrong"
    return f"{NONE}: {why}"


def _model_params(behind: ModelBehind | None, *, judge: str | None) -> dict[str, str]:
    return {
        "model": _text(judge) if behind is None else behind.name,
        "model_sha256": NONE if behind is None else behind.digest,
        "model_revision": _text(None if behind is None else behind.revision),
    }


def _rating_params(vector: WeightVector | None) -> dict[str, str]:
    """Of the ratings that weights are made of."""
    provenance = None if vector is None else vector.provenance
    origin = Origin() if provenance is None else provenance.origin
    return {
        "ratings_judge": _text(origin.judge),
        "ratings_sha256": _text(origin.ratings_sha256),
        "rules_sha256": _text(origin.rules_sha256),
    }


def _tags(
    table: BenchmarkTable,
    *,
    synthetic: Sequence[str],
    notes: Sequence[str],
    about: Mapping[str, str],
) -> dict[str, str]:
    marks = " ".join(f"**Synthetic: {part}.**" for part in synthetic)
    partial = "**Partial: not all pairs of the benchmark.**" if table.pairs.is_partial else ""
    page = about.get(PAGE_TAG)
    link = (
        f"[Prefect flow run]({page})" if page else ""
    )  # tags are shown as text, notes as Markdown
    content = "\n\n".join(text for text in (marks, partial, *notes, link) if text)
    return {
        "encore.benchmark": table.pairs.benchmark.name,
        PAIRS_TAG: table.pairs.digest,
        "encore.partial": "yes" if table.pairs.is_partial else "no",
        "encore.synthetic": ", ".join(synthetic) or "no",
        **({"mlflow.note.content": content} if content else {}),
        **about,
    }


def _rows(table: BenchmarkTable) -> list[TableRow]:
    return [line.row for line in table.lines if line.row is not None]


def _benchmark_params(table: BenchmarkTable) -> dict[str, str]:
    benchmark = table.pairs.benchmark
    return {
        "benchmark": benchmark.name,
        "benchmark_version": benchmark.version,
        "headline": benchmark.headline,
        "dataset": benchmark.dataset or NONE,
        "revision": benchmark.revision or NONE,
        "weighting": benchmark.weighting,
        "num_pairs": _text(table.pairs.num_pairs),
        "is_partial": _text(table.pairs.is_partial),
        "pairs_sha256": table.pairs.digest,
    }


def _subset_metrics(row: TableRow, table: BenchmarkTable) -> Iterator[tuple[str, float]]:
    found = {one.subset: one for one in row.score.subsets}
    for subset in table.subsets:
        name, one = f"subset/{_name(subset)}", found.get(subset)
        yield name, math.nan if one is None else one.accuracy
        yield f"{name}_ci_low", math.nan if one is None else one.ci_low
        yield f"{name}_ci_high", math.nan if one is None else one.ci_high


def _difference_metrics(row: TableRow) -> dict[str, float]:
    found = row.comparison
    if found is None:  # the reference
        return dict.fromkeys(("difference", "difference_ci_low", "difference_ci_high"), 0.0) | {
            "mcnemar_p": 1.0,
            "num_only_this": 0.0,
            "num_only_reference": 0.0,
        }
    return {
        "difference": found.difference,
        "difference_ci_low": found.ci_low,
        "difference_ci_high": found.ci_high,
        "mcnemar_p": _number(row.p_value),
        "num_only_this": float(found.num_only_first),
        "num_only_reference": float(found.num_only_second),
    }


def _digest(row: TableRow) -> str:
    return hashlib.sha256(np.ascontiguousarray(row.credit_P, dtype="<f8").tobytes()).hexdigest()


def _name(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _text(value: Any, *, none: str = NONE) -> str:
    if value is None:
        return none
    return value if isinstance(value, str) else json.dumps(value)
