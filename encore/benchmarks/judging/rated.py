"""A benchmark's pairs as a study of their own, rated by a judge exactly as training data are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from encore.benchmarks.judging.folder import rows_digest
from encore.config import RatingConfig
from encore.data.pair_writer import Counts, PairWriter, pair_writer
from encore.data.pairs import (
    Origin,
    PairsManifest,
    data_digest,
    data_digest_of,
    digest_of_ids,
    pair_files,
)
from encore.data.study import MARKER, Change, Study, changed_study, open_study
from encore.errors import InputError, StudyIncompleteError
from encore.files import file_sha256
from encore.judges.base import Judge
from encore.rating.rating_run import open_run, rate_run
from encore.rating_nulls import null_reasons
from encore.rating_runs import run_status
from encore.reporting import SILENT, Reporter
from encore.versions import installed_version

if TYPE_CHECKING:
    from encore.benchmarks.pairs import BenchmarkPairs


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedBenchmark:
    """A benchmark's pairs with a judge's ratings.

    Attributes:
        study: A study of these pairs; anything that reads studies reads it.
        run_key: Of the rating run in it.
        judge: The judge's name.
        judge_revision: Its commit or digest.
        null_reasons: Ratings without a number, by reason, the most frequent first.
    """

    study: Path
    run_key: str
    judge: str
    judge_revision: str
    null_reasons: Mapping[str, int]


def rate_benchmark(
    pairs: BenchmarkPairs,
    *,
    config: RatingConfig,
    out: Path,
    judge: Judge | None = None,
    reporter: Reporter = SILENT,
) -> RatedBenchmark:
    """Have a judge rate every answer under every rule, resumable shard by shard.

    Args:
        pairs: The benchmark's; its whole, whatever limit the config has.
        config: Judge, rules and shards.
        out: The folder that holds judgings; the study goes to ``out/rated-<digest of the pairs>``.
        judge: The config's, where it is open already; it stays open.
        reporter: Told about finished ratings.

    Raises:
        InputError: No pairs.
        StudyIncompleteError: Shards failed; the same call rates only these.
        EncoreError: The judge does not load.
    """
    study = study_of_pairs(pairs, out=out)
    run = open_run(study, config.model_copy(update={"limit": None}), judge=judge)
    try:
        report = rate_run(run, reporter=reporter)
    finally:
        if judge is None:
            run.judge.close()
    if report.failures:
        index, error = next(iter(report.failures.items()))
        raise StudyIncompleteError(
            f"{study.path}: {len(report.failures)} of {len(run.manifest.shards)} shards failed "
            f"(shard {index}: {error}); run the same command again to rate only these"
        )
    return RatedBenchmark(
        study=study.path,
        run_key=run.manifest.run_key,
        judge=run.manifest.judge,
        judge_revision=str(run.manifest.identity["judge"]["revision"]),
        null_reasons=dict(null_reasons(run_status(run.run_dir))),
    )


def study_of_pairs(pairs: BenchmarkPairs, *, out: Path) -> Study:
    """A study with a benchmark's pairs, made whole or found; its name is a hash of the pairs.

    Raises:
        InputError: No pairs, or something else is at its place.
    """
    if not pairs.pairs:
        raise InputError(f"benchmark {pairs.benchmark.name}: no pairs to rate")
    path = _study_path(pairs, out=out)
    if not (path / MARKER).is_file():
        with changed_study(path) as change:
            _write_pairs(pairs, change)
    return open_study(path)


def own_data_digests(pairs: BenchmarkPairs, *, out: Path) -> frozenset[str]:
    """Digests that a study of a benchmark's pairs has, by which ratings of them are known.

    A study is labelled with what the benchmark was called when it was made, which may have been
    another name: of such a one only the study in ``out`` is known.
    """
    ids = list(dict.fromkeys(pair.pair_id for pair in pairs.pairs))
    table = pa.table({"source": [pairs.benchmark.name] * len(ids), "pair_id": ids})
    found = {data_digest_of(table)}
    path = _study_path(pairs, out=out)
    if (path / MARKER).is_file():
        found.add(data_digest(open_study(path)))
    return frozenset(found)


def _study_path(pairs: BenchmarkPairs, *, out: Path) -> Path:
    return out / f"rated-{rows_digest(pairs)[:16]}"


def _write_pairs(pairs: BenchmarkPairs, change: Change) -> None:
    """All pairs under one label; equal ones are written once and rated once."""
    label = pairs.benchmark.name
    files = pair_files(label)
    aside_path, pairs_path = change.path(files.set_aside), change.path(files.pairs)
    with pair_writer(pairs=pairs_path, set_aside=aside_path, label=label) as writer:
        for pair in pairs.pairs:
            writer.add(dataclasses.replace(pair, source=label))
    writer.counts.check()
    manifest = _manifest(writer, origin=_origin(pairs, writer.counts), pairs_path=pairs_path)
    # Asked for last, so that it takes its place last: pairs without a manifest are not there.
    path = change.path(files.manifest)
    path.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _origin(pairs: BenchmarkPairs, counts: Counts) -> Origin:
    benchmark = pairs.benchmark
    if not pairs.is_from_hub or benchmark.dataset is None:
        return Origin(
            kind="local", name=benchmark.name, format="benchmark", num_read=counts.num_read
        )
    return Origin(
        kind="hub",
        name=benchmark.dataset,
        format="benchmark",
        revision=benchmark.revision,
        split=benchmark.split,
        num_read=counts.num_read,
    )


def _manifest(writer: PairWriter, *, origin: Origin, pairs_path: Path) -> PairsManifest:
    counts = writer.counts
    return PairsManifest(
        label=writer.label,
        origins=(origin,),
        num_read=counts.num_read,
        num_kept=counts.num_kept,
        num_duplicates=counts.num_duplicates,
        num_set_aside=counts.num_set_aside,
        set_aside_by_reason=dict(counts.set_aside),
        num_contradicting=counts.num_contradicting,
        data_digest=digest_of_ids(writer.pair_ids),
        parquet_sha256=file_sha256(pairs_path),
        encore_version=installed_version("encore-reward") or "unknown",
    )
