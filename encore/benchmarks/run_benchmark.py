"""The stage `encore benchmark`: score models on a benchmark, write a table and results per pair."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.benchmarks import benchmark_table as tables
from encore.benchmarks.benchmark_models import ScoredModel, Scorer
from encore.benchmarks.benchmark_options import FITTED_HEADS, BenchmarkConfig, BenchmarkRunOptions
from encore.benchmarks.benchmark_pairs import BenchmarkPairs, configured_pairs
from encore.benchmarks.fitted_heads import fitted_heads_row
from encore.benchmarks.pair_results import stored_rows, write_pair_results
from encore.benchmarks.preference_rows import preference_rows
from encore.benchmarks.published_rows import published_rows, write_records
from encore.benchmarks.render_table import render_markdown
from encore.benchmarks.scheme_rows import scheme_rows
from encore.benchmarks.table_rows import TableRow
from encore.core.config import identity_of
from encore.core.errors import InputError
from encore.core.files import atomic_write_bytes, file_sha256, write_json
from encore.core.reporting import SILENT, Reporter
from encore.core.shown_record import ShownRecord
from encore.data.pairs import read_pairs
from encore.data.study import Study, as_study
from encore.runs.identity import run_key_of
from encore.training.disk_space import report_full_disk
from encore.warehouse import open_ratings
from encore.weighting.preference_head import has_preference_head
from encore.weighting.weigh import open_evidence
from encore.weighting.weight_vector import Origin

#: File with a table's key, the identity behind the key, and the model behind each row.
EVALUATION_JSON = "evaluation.json"
_INITIAL = re.compile(r"\binitial\b")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BenchmarkRun(ShownRecord):
    """Result of `run_benchmark`.

    Attributes:
        table: The table with all rows.
        rows: Our rows, with their credit for every pair.
        pairs: Pairs of the benchmark.
        out: Folder of the table and the results.
        num_computed: Pairs scored by this call, over all models. 0 if all were scored before.
    """

    table: tables.BenchmarkTable
    rows: tuple[TableRow, ...]
    pairs: BenchmarkPairs
    out: Path
    num_computed: int

    @property
    def results_path(self) -> Path:
        """Return the Parquet file with the results of every row per pair."""
        return self.out / tables.RESULTS_FILE

    @property
    def markdown_path(self) -> Path:
        """Return the Markdown file of the table."""
        return self.out / tables.TABLE_MARKDOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _WeighedHeads:
    """Model whose heads are weighed, the rows of the schemes, and the source of the weights."""

    heads: ScoredModel | None = None
    rows: Sequence[TableRow] = ()
    notes: Sequence[str] = ()
    origin: Origin | None = None
    #: Ids of the pairs whose labels the weights were learnt from.
    label_pair_ids: Sequence[str] = ()


def run_benchmark(
    study: Study | str | Path,
    config: BenchmarkConfig,
    how: BenchmarkRunOptions = BenchmarkRunOptions(),
    *,
    reporter: Reporter = SILENT,
) -> BenchmarkRun:
    """Score a benchmark's pairs with every model once, and make the table of all rows.

    Head scores are stored in ``STUDY/benchmarks/<key>``; stored shards are not scored again. The
    name of the table's folder is a hash of its content, so tables do not replace each other.

    Args:
        study: Training study, or its path. Its ratings give the weights.
        config: Models, files of results, pairs and rows.
        how: Where the table goes, and how the models compute.
        reporter: Receives the progress, in pairs of each model.

    Raises:
        InputError: Models, benchmark, data, study or ratings are wrong or do not fit together.
        EncoreError: A score is not finite, the disk is full, or the device lacks memory.
    """
    study = as_study(study)
    # Check everything that needs no model before hours of scoring.
    _check_models(config)
    pairs = _read_pairs(config, how)
    files = config.named_results
    stored = [row for name, path in files for row in stored_rows(path, pairs=pairs, name=name)]
    published = published_rows(config.published, pairs.benchmark) if config.published else ()
    root = study.path / tables.BENCHMARKS_DIR
    scorer = Scorer(pairs=pairs, root=root, config=config, how=how, reporter=reporter)
    weighed = _weigh_heads(study, scorer)
    models = [scorer.reward_model(name, model) for name, model in config.named_models.items()]
    reporter.finished()
    # Collect the rows: schemes, gate and reward models, then rows from files.
    heads = weighed.heads
    scored = [*models] if heads is None else [heads, *models]
    rows = _computed_rows(study, pairs, weighed, scored) + stored
    table = tables.make_table(
        rows,
        pairs=pairs,
        model=None if heads is None else heads.name,
        paper=config.paper,
        notes=(*weighed.notes, *missing_initial_notes(heads, models, rows)),
        synthetic=pairs.synthetic,
        published=published,
        seed=config.rows.seed,
    )
    identity = _identity(config, pairs, weighed, models)
    if published:  # without them earlier keys stay
        identity["published"] = [row.model_dump() for row in published]
    num_computed = sum(model.num_computed for model in scored)
    out = how.out or root / run_key_of(identity)
    run = BenchmarkRun(
        table=table, rows=tuple(rows), pairs=pairs, out=out, num_computed=num_computed
    )
    _write(run, identity=identity, records=how.records)
    return run


def _read_pairs(config: BenchmarkConfig, how: BenchmarkRunOptions) -> BenchmarkPairs:
    """Read the benchmark's pairs; raise InputError if records are wanted of a part of them."""
    pairs = configured_pairs(config.pairs)
    if how.records is not None and pairs.is_partial:
        raise InputError("--records: the pairs are partial; give all pairs, or no --records")
    return pairs


def _computed_rows(
    study: Study, pairs: BenchmarkPairs, weighed: _WeighedHeads, scored: Sequence[ScoredModel]
) -> list[TableRow]:
    """Return the rows of schemes, gate and models, each with a note on pairs it may have seen."""
    rows = [*weighed.rows, *(model.row for model in scored if model.row is not None)]
    overlap = overlap_notes(study, pairs, label_pair_ids=weighed.label_pair_ids)
    return [row.with_metadata(notes=(*row.metadata.notes, *overlap)) for row in rows]


def _weigh_heads(study: Study, scorer: Scorer) -> _WeighedHeads:
    """Score the model with several heads, and weigh them by every scheme."""
    config = scorer.config
    if config.model is None:
        return _WeighedHeads()
    ratings = open_ratings(
        config.ratings or study,
        run=config.run,
        judge=config.judge,
        scale=config.scale,
        rule_columns=config.rule_columns,
        rating=config.rating,
    )
    with open_evidence(ratings) as evidence:
        heads = scorer.heads(evidence.rule_ids)
        scores, pairs, options = heads.scores, scorer.pairs, config.rows
        rows, notes = scheme_rows(scores.of_rules, pairs, evidence=evidence, config=options)
        if FITTED_HEADS in options.schemes:
            rows = (*rows, fitted_heads_row(study, heads, pairs, evidence.rule_ids))
        if has_preference_head(scores.head_ids):
            further_rows, further_notes = preference_rows(
                scores,
                heads.held_out,
                pairs=pairs,
                evidence=evidence,
                beta=options.beta,
                seed=options.seed,
            )
            rows, notes = (*rows, *further_rows), (*notes, *further_notes)
        elif options.beta is not None:
            raise InputError(
                f"--beta {options.beta}: model {heads.name} has no head 0 that rules could be "
                "composed with; train one with --preference-head, or leave --beta out"
            )
        training = tuple(f"training {part}" for part in ratings.synthetic)
        uses_labels = any(row.metadata.uses_labels for row in rows)
        return _WeighedHeads(
            heads=heads,
            rows=[heads.with_metadata(row.with_metadata(synthetic=training)) for row in rows],
            notes=notes,
            origin=evidence.origin,
            label_pair_ids=evidence.read_pairs().pair_id_P.tolist() if uses_labels else (),
        )


def _identity(
    config: BenchmarkConfig,
    pairs: BenchmarkPairs,
    weighed: _WeighedHeads,
    models: Sequence[ScoredModel],
) -> dict[str, Any]:
    """Return the identity of a table's content. The name of its folder is the hash of it."""
    heads, origin, names = weighed.heads, weighed.origin, config.named_models
    params = (row.metadata.params for row in weighed.rows)
    scorings = [of_row["scoring"] for of_row in params if "scoring" in of_row]
    return {
        **({"scorings": scorings} if scorings else {}),
        "format": 2,
        "config": identity_of(config, BenchmarkConfig),
        "benchmark": pairs.benchmark.model_dump(include={"name", "version", "weighting", "ties"}),
        "data_sha256": pairs.digest,
        "model": None if heads is None else heads.model_identity,
        "reward_models": {
            name: model.model_identity for name, model in zip(names, models, strict=True)
        },
        "results": [[name, file_sha256(path)] for name, path in config.named_results],
        "ratings": None if origin is None else origin.as_dict(),
    }


def _check_models(config: BenchmarkConfig) -> None:
    """Raise an error if no model is given, or an option has no effect."""
    config.rows.check_schemes()
    if config.model is None and not config.named_models and not config.results:
        raise InputError("no model to benchmark: give --model, --reward-model or --results")
    if config.model is None and config.rows.beta is not None:
        raise InputError(f"--beta {config.rows.beta}: it composes a model's heads; give --model")
    if config.model is None and config.gate is not None:
        raise InputError(f"gate {config.gate}: it weighs a model's heads; give it as --model")


def overlap_notes(
    study: Study, pairs: BenchmarkPairs, *, label_pair_ids: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return a note if pairs of the benchmark are among those that training may have used."""
    ids = {pair.pair_id for pair in pairs.pairs}
    trained = ids.intersection([*label_pair_ids, *read_pairs(study)["pair_id"].to_pylist()])
    note = (
        f"{len(trained)} of the {len(ids)} pairs are in the training study or its ratings too: a "
        "model, a gate or weights that learnt from it have seen their answers"
    )
    return (note,) if trained else ()


def missing_initial_notes(
    heads: ScoredModel | None, models: Sequence[ScoredModel], rows: Sequence[TableRow]
) -> tuple[str, ...]:
    """Return a note if the table lacks the model that training started from.

    That model is recognised by its revision, if the trained model recorded it, or by "initial" in
    the name of its row.
    """
    if heads is None:
        return ()
    is_present = any(
        model.model_identity["revision"] == heads.backbone for model in models if heads.backbone
    )
    names = (row.name for row in rows if row.metadata.kind == "model")
    note = (
        f"there is no row for the initial model that {heads.name} was trained from, so the table "
        "does not show what training adds; give that model as --reward-model 'initial model=…'"
    )
    return () if is_present or any(map(_INITIAL.search, names)) else (note,)


def _write(run: BenchmarkRun, *, identity: Mapping[str, Any], records: Path | None) -> None:
    """Write the table, the results per pair, the table's identity and its records, if wanted."""
    models = {row.name: row.model_identity for row in run.rows if row.model_identity is not None}
    evaluation = {"key": run_key_of(identity), "identity": identity, "models": models}
    with report_full_disk(run.out, purpose="the table", kept_work="head scores are kept"):
        run.out.mkdir(parents=True, exist_ok=True)
        pair_rows = [row for row in run.rows if row.follows_from_pairs]
        write_pair_results(run.results_path, pair_rows, pairs=run.pairs)
        write_json(run.out / EVALUATION_JSON, evaluation)
        write_json(run.out / tables.TABLE_JSON, run.table.model_dump(mode="json"))
        atomic_write_bytes(run.markdown_path, render_markdown(run.table).encode())
    if records is not None:
        records.mkdir(parents=True, exist_ok=True)
        write_records(records, run.table, run.pairs.benchmark, timestamp=time.time())
