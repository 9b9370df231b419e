"""Score every pair of a study under every head: begin, or do what is missing.

Forward passes over real tokens bound the speed: nothing is padded, and a pair's common prompt is
computed once where the model allows it.

Suffixes: P pairs, N responses (two a pair, chosen first), R heads.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from encore.core.errors import EncoreError, EveryShardError
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import package_versions
from encore.data.pairs import data_digest_of, planned_pairs, read_pairs, records_of
from encore.data.records import RESPONSES, PreferencePair
from encore.data.study import Study, as_study
from encore.model.conversation import EncodedPair
from encore.model.model_options import ComputingConfig
from encore.model.opening import OpenedModel, open_reward_model
from encore.model.score_sequences import best_layout, computed_batches
from encore.runs.engine_supervisor import (
    Launcher,
    ShowEngines,
    job_of_first_engine,
    show_no_engines,
    supervise,
)
from encore.runs.local_engines import JobRunner, LocalLauncher, engine_environments
from encore.runs.run_files import Shard, ShardTable, run_key_of
from encore.runs.shard_runner import Job, ReportRows, RunReport, work_through
from encore.scoring import head_scores
from encore.scoring.head_scores import ScoreManifest
from encore.scoring.scoring_config import ScoreConfig, ScoringConfig

#: A pair of a shard with its subset; None where its data have no subsets.
PairInSubset = tuple[PreferencePair, str | None]
_STORED_COUNTS = ("num_tokens", "num_cut_responses", "num_cut_pairs", "num_cut_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """What a call of `score_study` left and did.

    Attributes:
        out: The scoring's folder.
        key: Of the scoring.
        head_ids: The heads.
        num_pairs: Pairs of the plan.
        num_scores: Scores on disk: two a pair and head, of the shards that are done.
        is_complete: Whether every shard is done.
        failures: Error by index of the shards that failed now.
        num_shards: Of the plan.
        num_reused: Shards that were there already.
        seconds: From the first shard to the last; the model was loaded before.
        num_tokens: Tokens scored now, each response as if it stood alone.
        padding_share: Of the token positions computed now; None where nothing was.
        notes: What a reader should know, counted, a sentence each.
        synthetic: What of data and model is synthetic, in words.
        split: As in the manifest (`ScoreManifest`).
    """

    out: Path
    key: str
    head_ids: tuple[str, ...]
    num_pairs: int
    num_scores: int
    is_complete: bool
    failures: Mapping[int, str]
    num_shards: int
    num_reused: int
    seconds: float
    num_tokens: int
    padding_share: float | None
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]
    split: Mapping[str, int | float] | None

    @property
    def tokens_per_second(self) -> float | None:
        """Real tokens; None where nothing was scored now."""
        return self.num_tokens / self.seconds if self.num_tokens else None


def score_study(
    study: Study | Path,
    config: ScoringConfig,
    *,
    opened: OpenedModel | None = None,
    retries: int = 0,
    reporter: Reporter = SILENT,
    run_job: JobRunner | None = None,
) -> ScoreResult:
    """Write every head's raw, centred score of every response, shard by shard.

    The same model, pairs, limit and shard size always mean the same folder: a shard that is there
    and whole is not scored again, one that is damaged is scored alone. Several processes may score
    one study at a time, each another shard.

    Args:
        study: The opened study, or its directory.
        config: Model, plan and how to compute.
        opened: The config's model, if it is open already.
        retries: Further attempts for a shard whose error may pass.
        reporter: Told how far it is.
        run_job: What does the scoring's job; default: this process, or as many local engines as the
            config says.

    Raises:
        InputError: No pairs in the study; no reward model; ``out`` holds something else.
        EncoreError: The disk is full, the device has too little memory; a damaged `score.json`.
        KeyboardInterrupt: Finished shards are kept.
    """
    study = as_study(study)
    if run_job is None and config.engines != 1:
        environments = engine_environments(config.engines, 1)
        if (num_engines := len(environments)) > 1:
            whole = ScoreConfig.model_validate({"study": study.path, **dict(config)})
            logs = config.out or study.path / head_scores.SCORES_DIR
            launcher = LocalLauncher("score", whole, environments, run_dir=logs, retries=retries)
            return score_with_engines(
                study, config, launcher, num_engines=num_engines, reporter=reporter
            )
    all_pairs = read_pairs(study)
    pairs = planned_pairs(all_pairs, limit=config.limit)
    model = opened or open_reward_model(
        config.model, dtype=config.dtype, max_length=config.max_length, revision=config.revision
    )
    manifest = score_manifest(
        model,
        data_sha256=data_digest_of(all_pairs),
        num_pairs=pairs.num_rows,
        shard_size=config.shard_size,
        synthetic=study.synthetic,
    )

    def pairs_of(shard: Shard) -> list[PairInSubset]:
        return [(pair, None) for pair in records_of(pairs.slice(shard.start, shard.num_pairs))]

    run_dir = config.out or study.path / head_scores.SCORES_DIR / manifest.score_key
    began = time.monotonic()
    job = score_job(run_dir, manifest, pairs_of, opened=model, how=config)
    job = replace(job, slice=config.part if isinstance(config, ScoreConfig) else None)
    run_job = run_job or partial(work_through, reporter=reporter)
    report = run_job(replace(job, retries=retries))
    return _result(run_dir, manifest, report, seconds=time.monotonic() - began)


def score_with_engines(
    study: Study,
    config: ScoringConfig,
    launcher: Launcher,
    *,
    num_engines: int,
    reporter: Reporter = SILENT,
    show: ShowEngines = show_no_engines,
) -> ScoreResult:
    """Have engines score a study; the model is opened by them alone.

    Args:
        study: The opened study.
        config: Model, plan and how to compute.
        launcher: Starts engines of this config.
        num_engines: How many.
        reporter: Told how far it is.
        show: Given a row for each engine, now and then.

    Raises:
        EncoreError: No engine could work; as `score_study`.
    """
    began = time.monotonic()

    def run_dirs() -> Iterable[Path]:
        return [config.out] if config.out else (study.path / head_scores.SCORES_DIR).glob("*")

    job = job_of_first_engine(launcher, ScoreManifest, run_dirs, num_engines=num_engines)
    assert isinstance(job.manifest, ScoreManifest)
    report = supervise(
        job,
        launcher,
        num_engines=num_engines,
        silence_seconds=config.silence_seconds,
        reporter=reporter,
        show=show,
    )
    return _result(job.run_dir, job.manifest, report, seconds=time.monotonic() - began)


def _result(
    run_dir: Path, manifest: ScoreManifest, report: RunReport, *, seconds: float
) -> ScoreResult:
    num_rows = sum(shard.num_rows for shard in report.outcomes)
    num_computed, num_cut = report.computed("num_computed"), report.total("num_cut_responses")
    note = (
        f"{num_cut} of {num_rows} responses were too long and lost "
        f"{report.total('num_cut_tokens')} tokens of their oldest text"
    )
    return ScoreResult(
        out=run_dir,
        key=manifest.score_key,
        head_ids=manifest.head_ids,
        num_pairs=manifest.num_pairs,
        num_scores=num_rows * len(manifest.head_ids),
        is_complete=not report.failures,
        failures=report.failures,
        num_shards=len(manifest.shards),
        num_reused=report.count("reused"),
        seconds=seconds,
        num_tokens=report.computed("num_tokens"),
        padding_share=report.computed("num_padding") / num_computed if num_computed else None,
        notes=(note,) if num_cut else (),
        synthetic=manifest.synthetic,
        split=manifest.split,
    )


def score_manifest(
    opened: OpenedModel,
    *,
    data_sha256: str,
    num_pairs: int,
    shard_size: int,
    synthetic: Sequence[str] = (),
    further: Mapping[str, Any] | None = None,
) -> ScoreManifest:
    """The manifest of a scoring: everything that its scores and their cut into shards follow from.

    Args:
        opened: The model.
        data_sha256: Of the pairs.
        num_pairs: How many of them are scored.
        shard_size: Pairs in each file.
        synthetic: What of the data is synthetic, in words.
        further: What else the scores follow from, e.g. a benchmark's version.

    Raises:
        InputError: Names of heads that cannot be columns.
    """
    head_scores.head_scores_schema(opened.model.head_ids)
    identity = {
        "format": 1,
        "model_digest": opened.digest,
        "head_ids": list(opened.model.head_ids),
        "mean": opened.model.mean_R.tolist(),
        "data_sha256": data_sha256,
        "plan": {"order": "pair_id", "shard_size": shard_size, "num_pairs": num_pairs},
        **(further or {}),
    }
    training = opened.metadata.get("config") or {}
    share, seed = training.get("evaluation_share"), training.get("seed", 0)
    marks = opened.metadata.get("synthetic", ())
    of_model = (f"{head_scores.SYNTHETIC_MODEL}{part}" for part in marks)
    return ScoreManifest(
        score_key=run_key_of(identity),
        identity=identity,
        model=opened.name,
        synthetic=(*synthetic, *of_model),
        split={"evaluation_share": share, "seed": seed} if share else None,
        versions=package_versions(),
    )


def score_job(
    run_dir: Path,
    manifest: ScoreManifest,
    pairs_of: Callable[[Shard], Sequence[PairInSubset]],
    *,
    opened: OpenedModel,
    how: ComputingConfig | None = None,
    encode: Callable[[Sequence[PreferencePair]], list[EncodedPair]] | None = None,
    title: str = "",
) -> Job:
    """One scoring as work for `encore.runs.shard_runner`.

    The report's totals are ``num_tokens``, ``num_cut_pairs``, ``num_cut_responses`` and
    ``num_cut_tokens``; of the shards scored now there are ``num_computed`` and ``num_padding``.

    Args:
        run_dir: The scoring's folder.
        manifest: Which scoring it is.
        pairs_of: The pairs of a shard, in the plan's order.
        opened: The model.
        how: Layout and tokens of a forward pass: what changes nothing but speed.
        encode: Makes token ids of pairs; default: the model's own tokenizer.
        title: What a reporter calls it.
    """
    how, encode = how or ComputingConfig(), encode or opened.tokenizer.encode_pairs

    def compute(shard: Shard, report_rows: ReportRows) -> ShardTable:
        rows = pairs_of(shard)
        encoded = encode([pair for pair, _ in rows])
        try:
            score_NR, counts = score_encoded(opened, encoded, how=how, on_scored=report_rows)
        except RuntimeError as error:  # of the device: the next shard would meet it too
            is_memory = isinstance(error, torch.OutOfMemoryError)
            advice = "give fewer --tokens-per-microbatch; " if is_memory else ""
            raise EveryShardError(
                f"scoring with {manifest.model}: {' '.join(str(error).split())[:500]}; {advice}"
                "finished shards are kept"
            ) from error
        footer = {name: counts[name] for name in _STORED_COUNTS}
        return ShardTable(table=_table(manifest, rows, score_NR), footer=footer, counts=counts)

    return Job(run_dir=run_dir, manifest=manifest, compute=compute, title=title)


def _table(
    manifest: ScoreManifest, rows: Sequence[PairInSubset], score_NR: NDArray[np.float32]
) -> pa.Table:
    """Two rows a pair, the chosen response first."""
    keys = [
        (pair.pair_id, pair.source, subset, response)
        for pair, subset in rows
        for response in RESPONSES
    ]
    if len(bad := np.argwhere(~np.isfinite(score_NR))):
        row, head = bad[0].tolist()
        raise EncoreError(
            f"pair {keys[row][0]}: its {keys[row][-1]} response scores {score_NR[row, head]} under "
            f"head {manifest.head_ids[head]!r}; expected a finite number: score with --dtype "
            "float32, or train the model again"
        )
    columns = dict(zip(head_scores.KEY_NAMES, zip(*keys, strict=True), strict=True))
    columns |= dict(zip(manifest.head_ids, score_NR.T, strict=True))
    return pa.table(columns, schema=head_scores.head_scores_schema(manifest.head_ids))


def score_encoded(
    opened: OpenedModel,
    encoded: Sequence[EncodedPair],
    *,
    how: ComputingConfig,
    on_scored: ReportRows = lambda _num_responses: None,
) -> tuple[NDArray[np.float32], Counter[str]]:
    """The scores of both responses of some pairs: score_NR, and counts of what was computed.

    ``num_computed`` counts token positions that went through the model, ``num_padding`` those that
    hold no token, ``num_tokens`` the responses' tokens, each response as if it stood alone.

    Args:
        opened: The model.
        encoded: The pairs' tokens.
        how: Layout and tokens of a forward pass: what changes nothing but speed.
        on_scored: Told how many responses are finished.

    Raises:
        InputError: A layout that the model does not allow.
    """
    responses = [one for pair in encoded for one in (pair.chosen, pair.rejected)]
    sequences = [one.token_ids for one in responses]
    score_NR = np.empty((len(sequences), len(opened.model.head_ids)), dtype=np.float32)
    num_cut_P2 = np.array([one.num_cut for one in responses]).reshape(-1, 2)
    counts = Counter(
        num_cut_responses=int((num_cut_P2 > 0).sum()),
        num_cut_pairs=int(num_cut_P2.any(axis=1).sum()),
        num_cut_tokens=int(num_cut_P2.sum()),
    )
    num_done = 0
    for batch in computed_batches(
        opened.model,
        sequences,
        compute=opened.model,
        pad_token_id=opened.tokenizer.pad_token_id,
        tokens_per_microbatch=how.tokens_per_microbatch,
        layout=best_layout(opened.model) if how.layout == "auto" else how.layout,
        groups=[(first, first + 1) for first in range(0, len(sequences), 2)],
    ):
        score_NR[batch.indices] = batch.value_NX
        num_done += len(batch.indices)
        for name in ("num_tokens", "num_computed", "num_padding"):
            counts[name] += getattr(batch, name)
        on_scored(num_done)
    return score_NR, counts
