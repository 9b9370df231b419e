"""`encore benchmark` as a function: models in, a table and the results of every pair out."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from encore.analysis.statistics import RuleStats
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.models import (
    ModelBehind,
    OnProgress,
    Opening,
    ScoredModel,
    Scorer,
    score_heads,
    score_reward_model,
)
from encore.benchmarks.pairs import BenchmarkPairs, read_benchmark_pairs
from encore.benchmarks.render import render
from encore.benchmarks.results import write_pair_results
from encore.benchmarks.rows import compared, stored_rows
from encore.benchmarks.run_notes import (
    initial_notes,
    label_notes,
    overlap_notes,
    synthetic_benchmark,
    synthetic_training,
)
from encore.benchmarks.scheme_table import is_scheme_row
from encore.benchmarks.schemes import (
    SchemeRowOptions,
    SchemeRows,
    refuse_other_rules,
    weigh_evidence,
)
from encore.benchmarks.scoring import ScoredBenchmark
from encore.benchmarks.table import BenchmarkTable, PaperTables, make_table
from encore.data.study import Study, open_study
from encore.errors import InputError
from encore.files import atomic_write_bytes
from encore.scores.run import HowToCompute
from encore.training.disk import named_when_full
from encore.weighting.evidence import Evidence
from encore.weighting.opening import open_evidence

#: In a study: a folder for each model on each benchmark.
BENCHMARKS_DIR = "benchmarks"
RESULTS_FILE = "results.parquet"
TABLE_JSON, TABLE_MARKDOWN = "table.json", "table.md"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BenchmarkRun:
    """What a call of `run_benchmark` left and did.

    Attributes:
        table: Every row.
        out: The folder of the following files.
        results_path: Every pair under every row, Parquet.
        json_path: The table as JSON.
        markdown_path: The table as Markdown.
        heads: Scores of the heads that are weighed; None without such a model.
        rules: Statistics of the training ratings that the heads are weighed by; empty without such
            a model.
        models: What is behind each row whose model was scored here, by its name; nobody knows here
            what is behind the rows of a file of results.
        num_computed: Pairs scored now, over all models; 0 where all were scored before.
        seconds_scoring: Opening models and scoring.
        seconds_table: Everything from head scores to the table.
    """

    table: BenchmarkTable
    out: Path
    results_path: Path
    json_path: Path
    markdown_path: Path
    heads: ScoredBenchmark | None
    rules: tuple[RuleStats, ...]
    models: Mapping[str, ModelBehind]
    num_computed: int
    seconds_scoring: float
    seconds_table: float


def run_benchmark(
    study: Path,
    *,
    model: str | Path | None = None,
    reward_models: Mapping[str, str | Path] | None = None,
    gate: Path | None = None,
    results: Sequence[tuple[str | None, Path]] = (),
    benchmark: str | Path = "rewardbench-safety",
    data: Path | None = None,
    allow_partial: bool = False,
    options: SchemeRowOptions | None = None,
    ratings: str | Path | Any | None = None,
    run: str | None = None,
    judge: str | None = None,
    paper: PaperTables = "main",
    opening: Opening | None = None,
    how: HowToCompute | None = None,
    out: Path | None = None,
    on_progress: OnProgress | None = None,
) -> BenchmarkRun:
    """Score a benchmark's pairs with every model once, and make the table of all rows.

    Head scores are kept in ``STUDY/benchmarks/<key>``; what is there and whole is not scored again.
    Models are opened one after the other.

    Args:
        study: The training study: its ratings make the weights.
        model: With several heads, to be weighed; as for `open_reward_model`.
        reward_models: With one head each, by the name of their row.
        gate: A folder of `encore gate` over the heads of ``model``.
        results: Files of results on the same pairs, such as a judge's, and what to call them
            (None: as they call themselves): rows of their own, see `stored_rows`.
        benchmark: Name or TOML file.
        data: Its rows as local files; None: the hub.
        allow_partial: Accept other counts than the definition's.
        options: Which rows of schemes.
        ratings: Where the ratings are; None: in the study.
        run: Which rating run, where there are several.
        judge: Which judge's, where there are several.
        paper: The backbone of the paper's figures.
        opening: How models are opened.
        how: How they compute.
        out: The folder of table and results; None: that of the first model's head scores, or one
            for these pairs where there are results alone.
        on_progress: Told how far it is.

    Raises:
        InputError: No model and no results, a model with other heads than its place needs, rules
            that are not the heads, anything wrong with benchmark, data, study or ratings.
        EncoreError: A score that is not finite, a full disk, too little memory on the device.
        KeyboardInterrupt: Finished shards are kept.
    """
    reward_models = dict(reward_models or {})
    opening = opening or Opening()
    _check_models(model, reward_models, gate, has_results=bool(results))
    _check_revisions(opening, reward_models)
    options = options or SchemeRowOptions()
    found = open_study(study)
    pairs = read_benchmark_pairs(load_benchmark(benchmark), data=data, allow_partial=allow_partial)
    scorer = Scorer(
        pairs=pairs,
        root=found.path / BENCHMARKS_DIR,
        opening=opening,
        how=how or HowToCompute(),
        on_progress=on_progress,
    )
    # What can be wrong without a model is looked at before hours of scoring.
    stored = [row for name, path in results for row in stored_rows(path, pairs=pairs, name=name)]
    _check_names([*reward_models, *(row.name for row in stored)], has_schemes=model is not None)
    began = time.monotonic()
    heads, schemes = None, SchemeRows(rows=(), notes=())
    with ExitStack() as stack:
        if model is not None:
            where = found.path if ratings is None else ratings
            evidence = stack.enter_context(open_evidence(where, run=run, judge=judge))
            check = partial(refuse_other_rules, evidence)
            heads = _freed(score_heads(scorer, model, gate=gate, check_heads=check))
        models = [_freed(score_reward_model(scorer, *named)) for named in reward_models.items()]
        scored_at = time.monotonic()
        if heads is not None:
            searched = found if ratings is None else None
            schemes = _weighed(heads, evidence, pairs, options=options, study=searched)
    every = [*([] if heads is None else [heads]), *models]
    seen = overlap_notes(found, pairs)
    own = [*schemes.rows, *(row for one in every for row in one.rows)]
    rows = [*(replace(row, notes=(*row.notes, *seen)) for row in own), *stored]
    table = make_table(
        compared(rows, pairs=pairs, seed=options.seed),
        pairs=pairs,
        model=None if heads is None else heads.scored.model,
        paper=paper,
        notes=(*schemes.notes, *initial_notes(heads, models, stored)),
        synthetic=synthetic_benchmark(pairs),
    )
    seconds_table = time.monotonic() - scored_at
    # Judges alone have no head scores whose folder the table could share.
    folder = out or (every[0].scored.folder if every else scorer.root / pairs.digest[:16])
    return BenchmarkRun(
        table=table,
        out=folder,
        results_path=_write(folder, table),
        json_path=folder / TABLE_JSON,
        markdown_path=folder / TABLE_MARKDOWN,
        heads=None if heads is None else heads.scored,
        rules=() if heads is None else evidence.rules,
        models=_models_behind(every, schemes),
        num_computed=sum(one.scored.num_computed for one in every),
        seconds_scoring=scored_at - began,
        seconds_table=seconds_table,
    )


def _check_models(
    model: str | Path | None,
    reward_models: Mapping[str, str | Path],
    gate: Path | None,
    *,
    has_results: bool,
) -> None:
    if model is None and not reward_models and not has_results:
        raise InputError(
            "no model to benchmark; give one with several heads (--model), reward models "
            "(--reward-model NAME=FOLDER_OR_ID) or results that are there (--results FILE)"
        )
    if model is None and gate is not None:
        raise InputError(f"gate {gate}: it weighs the heads of a model; give that one as --model")


def _check_revisions(opening: Opening, reward_models: Mapping[str, str | Path]) -> None:
    """Refuse a revision that would go unread."""
    for name, revision in opening.row_revisions.items():
        if name not in reward_models:
            raise InputError(
                f"revision {revision!r} of row {name!r}: there is no reward model of that name; "
                f"expected one of {', '.join(reward_models) or 'none'}"
            )


def _check_names(names: Sequence[str], *, has_schemes: bool) -> None:
    """Refuse names that two rows would have, those of schemes among them."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"row {name!r} is there more than once; give each reward model and each file of "
                "results a name of its own (--reward-model NAME=…, --results NAME=FILE)"
            )
        if has_schemes and is_scheme_row(name):
            raise InputError(
                f"row {name!r}: the model's own rows are called like that; give another name "
                "(--reward-model NAME=…, --results NAME=FILE)"
            )


def _weighed(
    heads: ScoredModel,
    evidence: Evidence,
    pairs: BenchmarkPairs,
    *,
    options: SchemeRowOptions,
    study: Study | None,
) -> SchemeRows:
    """The rows of schemes, each with what one must know of its heads and of its weights."""
    found = weigh_evidence(heads.scored.scores, pairs, evidence=evidence, options=options)
    marks = (*synthetic_training(evidence, study=study), *heads.synthetic)
    seen = label_notes(found.rows, evidence, pairs)
    rows = tuple(
        replace(
            row,
            synthetic=marks,
            notes=(*row.notes, *heads.scored.notes, *(seen if row.uses_labels else ())),
        )
        for row in found.rows
    )
    return SchemeRows(rows=rows, notes=found.notes)


def _models_behind(every: Sequence[ScoredModel], schemes: SchemeRows) -> dict[str, ModelBehind]:
    """By row; the rows of schemes, if there are any, weigh the heads of the first model."""
    of_schemes = {row.name: every[0].behind for row in schemes.rows}
    own = {row.name: replace(one.behind, gate=one.gate) for one in every for row in one.rows}
    return of_schemes | own


def _freed(scored: ScoredModel) -> ScoredModel:
    """The same, after what is left of its model has made room on the device for the next one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return scored


def _write(folder: Path, table: BenchmarkTable) -> Path:
    """The table and every row's results; what was there is replaced file by file."""
    every = (line.row.pair_results for line in table.lines if line.row is not None)
    results = [one for one in every if one is not None]
    with named_when_full(folder, purpose="the table", kept="head scores are kept"):
        folder.mkdir(parents=True, exist_ok=True)
        path = write_pair_results(folder / RESULTS_FILE, results, pairs=table.pairs)
        atomic_write_bytes(folder / TABLE_JSON, render(table, form="json").encode())
        atomic_write_bytes(folder / TABLE_MARKDOWN, render(table, form="markdown").encode())
    return path
