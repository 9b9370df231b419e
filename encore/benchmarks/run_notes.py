"""What a reader should know of a whole benchmark run: pairs seen before, synthetic parts, gaps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow.parquet as pq

from encore.benchmarks.models import ScoredModel
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.rows import TableRow
from encore.data.pairs import labels_of, verified_path
from encore.data.study import Study
from encore.synthetic import SYNTHETIC_LABEL, synthetic_in
from encore.weighting.evidence import Evidence

_INITIAL = re.compile(r"\binitial\b")


def overlap_notes(study: Study, pairs: BenchmarkPairs) -> tuple[str, ...]:
    """Whether the benchmark's own pairs are among those that may have been trained on."""
    ids = {pair.pair_id for pair in pairs.pairs}
    trained: set[str] = set()
    for label in labels_of(study):
        path = verified_path(study, label)
        column = pq.read_table(path, columns=["pair_id"], partitioning=None)["pair_id"]
        trained.update(ids.intersection(column.to_pylist()))
    if not trained:
        return ()
    note = (
        f"{len(trained)} of the {len(ids)} pairs are in the training study too: a model or gate "
        "trained on it has seen their answers"
    )
    return (note,)


def label_notes(
    rows: Sequence[TableRow], evidence: Evidence, pairs: BenchmarkPairs
) -> tuple[str, ...]:
    """Whether weights that were learnt from labels were learnt from the benchmark's own."""
    learners = [row.name for row in rows if row.uses_labels]
    if not learners:
        return ()
    ids = {pair.pair_id for pair in pairs.pairs}
    num_seen = len(ids.intersection(evidence.read_pairs().pair_id_P.tolist()))
    if not num_seen:
        return ()
    note = (
        f"{num_seen} of the {len(ids)} pairs are among the rated ones that {', '.join(learners)} "
        "learnt from: these weights have seen their answers"
    )
    return (note,)


def synthetic_benchmark(pairs: BenchmarkPairs) -> tuple[str, ...]:
    """Whether the benchmark is synthetic, in words."""
    name = pairs.benchmark.name
    return (f"benchmark {name}",) if name.startswith(SYNTHETIC_LABEL) else ()


def synthetic_training(evidence: Evidence, *, study: Study | None) -> tuple[str, ...]:
    """What of the training ratings is synthetic, in words.

    Args:
        evidence: Of the ratings that weights are made from.
        study: Where they were looked for; None: elsewhere than in a study that was given.
    """
    origin = evidence.study or study
    if origin is None:
        return ()
    parts = synthetic_in(origin.path, run=evidence.origin.run_key)
    return tuple(f"training {part}" for part in parts)


def initial_notes(
    heads: ScoredModel | None, models: Sequence[ScoredModel], stored: Sequence[TableRow]
) -> Iterator[str]:
    """Whether the table lacks the model that training started from, which says what it adds.

    A reward model is known by its content where the trained one recorded its backbone's, else by
    its row's name; a row of a file always by its name.
    """
    if heads is None:
        return
    names = [row.name for row in stored if row.kind == "model"]
    if heads.backbone is None:
        names += [row.name for one in models for row in one.rows]
    is_there = any(_INITIAL.search(name) for name in names) or (
        heads.backbone is not None and any(one.revision == heads.backbone for one in models)
    )
    if not is_there:
        yield (
            f"no row is the untouched initial model that {heads.scored.model} was trained from, so "
            "none says what training adds; give it as --reward-model 'initial model=…'"
        )
