"""`encore benchmark` as a function: models in, a table and the results of every pair out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from encore.benchmarks import benchmark_table as tables
from encore.benchmarks.benchmark_config import BenchmarkConfig
from encore.benchmarks.benchmark_models import ScoredModel, Scorer
from encore.benchmarks.benchmark_pairs import BenchmarkPairs, configured_pairs
from encore.benchmarks.pair_results import stored_rows, write_pair_results
from encore.benchmarks.render_table import render
from encore.benchmarks.scheme_rows import scheme_rows
from encore.benchmarks.table_rows import TableRow
from encore.core.config import identity_of
from encore.core.errors import InputError
from encore.core.files import atomic_write_bytes, file_sha256, write_json
from encore.core.reporting import SILENT, Reporter
from encore.data.pairs import read_pairs
from encore.data.study import Study
from encore.runs.run_files import run_key_of
from encore.training.disk import report_full_disk
from encore.warehouse import open_ratings
from encore.weighting.weigh import open_evidence
from encore.weighting.weight_vector import Origin

#: What a table is made of: its key, and the model behind each row.
EVALUATION_JSON = "evaluation.json"
_INITIAL = re.compile(r"\binitial\b")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BenchmarkRun:
    """What a call of `run_benchmark` left and did.

    Attributes:
        table: Every row.
        rows: Ours, with what they gave every pair.
        pairs: Of the benchmark.
        out: The folder of the following files.
        num_computed: Pairs scored now, over all models; 0 where all were scored before.
    """

    table: tables.BenchmarkTable
    rows: tuple[TableRow, ...]
    pairs: BenchmarkPairs
    out: Path
    num_computed: int

    @property
    def results_path(self) -> Path:
        """Every pair under every row, Parquet."""
        return self.out / tables.RESULTS_FILE

    @property
    def markdown_path(self) -> Path:
        """The table as Markdown."""
        return self.out / tables.TABLE_MARKDOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weighed:
    """The heads that are weighed, their schemes' rows, and the ratings that weights came from."""

    heads: ScoredModel | None = None
    rows: Sequence[TableRow] = ()
    notes: Sequence[str] = ()
    origin: Origin | None = None
    #: Ids of the pairs whose labels weights were learnt from.
    learnt: Sequence[str] = ()


def run_benchmark(
    study: Study, config: BenchmarkConfig, *, reporter: Reporter = SILENT
) -> BenchmarkRun:
    """Score a benchmark's pairs with every model once, and make the table of all rows.

    Head scores are kept in ``STUDY/benchmarks/<key>``; what is there and whole is not scored again.
    The table's folder is named by a hash of its content: a call with other rows replaces none.

    Args:
        study: The training study: its ratings make the weights.
        config: Models, files of results, pairs and rows.
        reporter: Told how far it is, in pairs of each model.

    Raises:
        InputError: Anything wrong with models, benchmark, data, study or ratings.
        EncoreError: See `Scorer.score`.
    """
    # What can be wrong without a model is looked at before hours of scoring.
    _check_models(config)
    pairs = configured_pairs(config.pairs)
    files = config.named_results
    stored = [row for name, path in files for row in stored_rows(path, pairs=pairs, name=name)]
    root = study.path / tables.BENCHMARKS_DIR
    scorer = Scorer(pairs=pairs, root=root, config=config, reporter=reporter)
    weighed = _weighed(study, scorer)
    models = [scorer.reward_model(*named) for named in config.named_models.items()]
    reporter.finished()
    heads = weighed.heads
    every = [*models] if heads is None else [heads, *models]
    own = (*weighed.rows, *(one.row for one in every if one.row is not None))
    seen = overlap_notes(study, pairs, learnt=weighed.learnt)
    rows = (*(row.with_metadata(notes=(*row.metadata.notes, *seen)) for row in own), *stored)
    table = tables.make_table(
        rows,
        pairs=pairs,
        model=None if heads is None else heads.name,
        paper=config.paper,
        notes=(*weighed.notes, *missing_initial_notes(heads, models, rows)),
        synthetic=pairs.synthetic,
        seed=config.rows.seed,
    )
    identity = _identity(config, pairs, weighed, models)
    num_computed = sum(one.num_computed for one in every)
    out = config.out or root / run_key_of(identity)
    run = BenchmarkRun(table=table, rows=rows, pairs=pairs, out=out, num_computed=num_computed)
    _write(run, identity=identity)
    return run


def _weighed(study: Study, scorer: Scorer) -> _Weighed:
    """Score the model that has several heads, and weigh them."""
    config = scorer.config
    if config.model is None:
        return _Weighed()
    ratings = open_ratings(config.ratings or study.path, run=config.run, judge=config.judge)
    with open_evidence(ratings) as evidence:
        heads = scorer.heads(evidence.rule_ids)
        rows, notes = scheme_rows(heads.scores, scorer.pairs, evidence=evidence, config=config.rows)
        training = tuple(f"training {part}" for part in ratings.synthetic)
        uses_labels = any(row.metadata.uses_labels for row in rows)
        return _Weighed(
            heads=heads,
            rows=[heads.with_metadata(row.with_metadata(synthetic=training)) for row in rows],
            notes=notes,
            origin=evidence.origin,
            learnt=evidence.read_pairs().pair_id_P.tolist() if uses_labels else (),
        )


def _identity(
    config: BenchmarkConfig, pairs: BenchmarkPairs, weighed: _Weighed, models: Sequence[ScoredModel]
) -> dict[str, Any]:
    """What a table contains; its folder is named after it, so two tables never share one."""
    heads, origin, names = weighed.heads, weighed.origin, config.named_models
    # Only where it is not the default: keys of earlier tables stay.
    cut = {} if config.truncation == "encore" else {"truncation": config.truncation}
    return {
        **cut,
        "format": 1,
        "benchmark": pairs.benchmark.model_dump(include={"name", "version", "weighting", "ties"}),
        "data_sha256": pairs.digest,
        "model": None if heads is None else heads.model_identity,
        "reward_models": {
            name: one.model_identity for name, one in zip(names, models, strict=True)
        },
        "results": [[name, file_sha256(path)] for name, path in config.named_results],
        "ratings": None if origin is None else asdict(origin),
        "rows": identity_of(config.rows),
        "paper": config.paper,
    }


def _check_models(config: BenchmarkConfig) -> None:
    """Refuse what would go unread, or nothing to read."""
    config.rows.check_schemes()
    if config.model is None and not config.named_models and not config.results:
        raise InputError("no model to benchmark: give --model, --reward-model or --results")
    if config.model is None and config.gate is not None:
        raise InputError(f"gate {config.gate}: it weighs a model's heads; give it as --model")


def overlap_notes(
    study: Study, pairs: BenchmarkPairs, *, learnt: Sequence[str] = ()
) -> tuple[str, ...]:
    """Whether the benchmark's own pairs are among those that may have been learnt from."""
    ids = {pair.pair_id for pair in pairs.pairs}
    trained = ids.intersection([*learnt, *read_pairs(study)["pair_id"].to_pylist()])
    note = (
        f"{len(trained)} of the {len(ids)} pairs are in the training study or its ratings too: a "
        "model, a gate or weights that learnt from it have seen their answers"
    )
    return (note,) if trained else ()


def missing_initial_notes(
    heads: ScoredModel | None, models: Sequence[ScoredModel], rows: Sequence[TableRow]
) -> tuple[str, ...]:
    """Whether the table lacks the model that training started from, which says what it adds.

    It is known by its content, if the trained model recorded its backbone's, or by its row's name.
    """
    if heads is None:
        return ()
    is_there = any(
        one.model_identity["revision"] == heads.backbone for one in models if heads.backbone
    )
    names = (row.name for row in rows if row.metadata.kind == "model")
    note = (
        f"no row is the untouched initial model that {heads.name} was trained from, so none says "
        "what training adds; give it as --reward-model 'initial model=…'"
    )
    return () if is_there or any(map(_INITIAL.search, names)) else (note,)


def _write(run: BenchmarkRun, *, identity: Mapping[str, Any]) -> None:
    """The table, every row's results and what they are made of, file by file."""
    models = {row.name: row.model_identity for row in run.rows if row.model_identity is not None}
    about = {"key": run_key_of(identity), "identity": identity, "models": models}
    with report_full_disk(run.out, purpose="the table", kept="head scores are kept"):
        run.out.mkdir(parents=True, exist_ok=True)
        kept = [row for row in run.rows if row.follows_from_pairs]
        write_pair_results(run.results_path, kept, pairs=run.pairs)
        write_json(run.out / EVALUATION_JSON, about)
        atomic_write_bytes(run.out / tables.TABLE_JSON, render(run.table, form="json").encode())
        atomic_write_bytes(run.markdown_path, render(run.table, form="markdown").encode())
