"""Score every pair of a study under every head, or only the shards that are missing.

Forward passes over real tokens bound the speed: nothing is padded, and a pair's common prompt is
computed once where the model allows it.

Suffixes: P pairs, N responses (two a pair, chosen first), T responses of pairs that the chat
template takes, R heads.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from encore.core.errors import EncoreError, EveryShardError
from encore.core.reporting import SILENT, Reporter
from encore.core.shown_record import ShownRecord
from encore.core.versions import package_versions
from encore.data.pairs import data_digest_of, planned_pairs, read_pairs, records_of
from encore.data.records import RESPONSES, PreferencePair
from encore.data.study import Study, as_study
from encore.model.conversation import EncodedPair
from encore.model.model_options import ComputingOptions, ModelOptions
from encore.model.open_model import OpenedModel, open_reward_model
from encore.model.score_sequences import best_layout, computed_batches
from encore.model.template_refusals import TemplateRefusals, find_refusals, template_notes
from encore.runs.identity import run_identity, run_key_of
from encore.runs.manifest import Shard
from encore.runs.run_options import RunOptions
from encore.runs.shard_files import ShardTable, run_status
from encore.runs.worker import Job, ReportRows, RunReport, work_through
from encore.scoring import head_scores
from encore.scoring.head_scores import ScoreManifest
from encore.scoring.scoring_options import ScoringConfig, ScoringRunOptions

#: Pairs whose texts are in memory while the chat template is tried.
_PAIRS_PER_BATCH = 1024
#: A pair of a shard with its subset, or None if its data have no subsets.
PairInSubset = tuple[PreferencePair, str | None]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScoreResult(ShownRecord):
    """Result of `score_study`: the scoring on disk, and the work of this call.

    Attributes:
        out: Folder of the scoring.
        key: Key of the scoring, 16 hex digits.
        head_ids: Ids of the heads, in head order.
        num_pairs: Number of pairs in the plan.
        num_set_aside: Number of these pairs that the chat template refuses; their scores are null.
        num_scores: Number of scores on disk: two per scored pair and head, in finished shards.
        is_complete: True if every shard is done.
        failures: Error message of each shard that failed in this call, by shard index.
        num_shards: Number of shards in the plan.
        num_reused: Number of shards that were done before this call.
        seconds: Time from the first shard to the last, without loading the model.
        num_tokens: Tokens scored by this call, each response counted as if it stood alone.
        padding_share: Share of the computed token positions that are padding, from 0 to 1; None
            if this call computed nothing.
        notes: Sentences on what limits the result, with counts.
        synthetic: Parts of the data and the model that are synthetic, in words.
        split: Seed and share by which training held out prompts (`ScoreManifest.split`).
    """

    out: Path
    key: str
    head_ids: tuple[str, ...]
    num_pairs: int
    num_set_aside: int
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
        """Return scored tokens a second, without padding; None if this call scored nothing."""
        return self.num_tokens / self.seconds if self.num_tokens else None


def score_study(
    study: Study | str | Path,
    config: ScoringConfig,
    how: ScoringRunOptions = ScoringRunOptions(),
    *,
    opened: OpenedModel | None = None,
    reporter: Reporter = SILENT,
) -> ScoreResult:
    """Write every head's raw, centred score of every response, shard by shard.

    The same model, pairs, limit and shard size always give the same folder. A whole shard is not
    scored again; a damaged shard is scored alone. Several processes may score one study at a time,
    each another shard.

    Args:
        study: The opened study, or its directory.
        config: The model and the plan.
        how: The folder, the shards that this call takes, and how tokens are computed.
        opened: The config's model, if it is open already.
        reporter: Receiver of progress events.

    Raises:
        InputError: The study has no pairs; there is no such reward model; its chat template refuses
            more than ``how.max_set_aside_share`` of the pairs; ``out`` holds something else.
        EncoreError: The disk is full; the device has too little memory; `score.json` is damaged.
        KeyboardInterrupt: The user interrupted. Finished shards are kept.
    """
    scoring = open_scoring(as_study(study), config, how, opened=opened)
    began = time.monotonic()
    report = work_through(scoring.job(how), reporter=reporter)
    seconds = time.monotonic() - began
    return _result(scoring.run_dir, scoring.manifest, report, seconds=seconds)


def open_scoring(
    study: Study,
    config: ScoringConfig,
    how: ScoringRunOptions,
    *,
    opened: OpenedModel | None = None,
) -> Scoring:
    """Open the scoring that a study and a config define. Nothing is written before its first shard.

    Args:
        study: The opened study, whose pairs are scored.
        config: The model and the plan.
        how: The folder, and how tokens are computed.
        opened: The config's model, if it is open already.

    Raises:
        InputError: As for `score_study`.
    """
    all_pairs = read_pairs(study)
    pairs = planned_pairs(all_pairs, limit=config.limit)
    model = opened or open_reward_model(
        config.model, dtype=config.dtype, max_length=config.max_length, revision=config.revision
    )
    batches = pairs.to_batches(_PAIRS_PER_BATCH)
    refusals = find_refusals(
        model.tokenizer, (pair for batch in batches for pair in records_of(batch))
    )
    refusals.check(how.max_set_aside_share, model=model.name)
    manifest = score_manifest(
        config,
        ScoringConfig,
        model,
        data_sha256=data_digest_of(all_pairs),
        refusals=refusals,
        num_pairs=pairs.num_rows,
        shard_size=config.shard_size,
        synthetic=study.synthetic,
    )

    def read_shard_pairs(shard: Shard) -> list[PairInSubset]:
        return [(pair, None) for pair in records_of(pairs.slice(shard.start, shard.num_pairs))]

    return Scoring(
        run_dir=how.out or study.path / head_scores.SCORES_DIR / manifest.score_key,
        manifest=manifest,
        read_shard_pairs=read_shard_pairs,
        opened=model,
        computing=how,
    )


def _result(
    run_dir: Path, manifest: ScoreManifest, report: RunReport, *, seconds: float
) -> ScoreResult:
    num_rows = sum(shard.num_rows for shard in report.outcomes)
    num_null_rows = 2 * report.total("num_set_aside_pairs")
    num_computed, num_cut = report.computed("num_computed"), report.total("num_cut_responses")
    refused = template_notes(
        manifest.num_set_aside,
        manifest.num_pairs,
        manifest.set_aside_reasons,
        num_partly_read=manifest.num_partly_read,
    )
    note = (
        f"{num_cut:,} of {num_rows - num_null_rows:,} responses were too long and lost "
        f"{report.total('num_cut_tokens')} tokens of their oldest text"
    )
    # A slice, or a run with failed shards, knows nothing of the shards that it did not compute.
    num_shards = len(manifest.shards)
    is_complete = (
        len(report.outcomes) == num_shards or run_status(run_dir, ScoreManifest).is_complete
    )
    return ScoreResult(
        out=run_dir,
        key=manifest.score_key,
        head_ids=manifest.head_ids,
        num_pairs=manifest.num_pairs,
        num_set_aside=manifest.num_set_aside,
        num_scores=(num_rows - num_null_rows) * len(manifest.head_ids),
        is_complete=is_complete,
        failures=report.failures,
        num_shards=num_shards,
        num_reused=report.count("reused"),
        seconds=seconds,
        num_tokens=report.computed("num_tokens"),
        padding_share=report.computed("num_padding") / num_computed if num_computed else None,
        notes=(*refused, *([note] if num_cut else [])),
        synthetic=manifest.synthetic,
        split=manifest.split,
    )


def score_manifest(
    config: ModelOptions,
    kind: type[ModelOptions],
    opened: OpenedModel,
    *,
    data_sha256: str,
    num_pairs: int,
    shard_size: int,
    refusals: TemplateRefusals | None = None,
    synthetic: Sequence[str] = (),
    benchmark: Mapping[str, Any] | None = None,
) -> ScoreManifest:
    """Return the manifest of a scoring, whose identity determines the scores and the shards.

    Args:
        config: What is asked of the model.
        kind: Class of the config whose fields count.
        opened: The reward model.
        data_sha256: SHA-256 of all pairs of the data.
        num_pairs: Number of pairs to score.
        shard_size: Number of pairs in each file.
        refusals: Pairs that the model's chat template refuses; None: there are none.
        synthetic: Parts of the data that are synthetic, in words.
        benchmark: Name and version of the benchmark whose pairs are scored.

    Raises:
        InputError: The name of a head cannot be the name of a column.
    """
    head_scores.head_scores_schema(opened.model.head_ids)
    identity = run_identity(
        config,
        kind=kind,
        order="pair_id",
        num_pairs=num_pairs,
        shard_size=shard_size,
        model_digest=opened.digest,
        head_ids=list(opened.model.head_ids),
        mean=opened.model.mean_R.tolist(),
        data_sha256=data_sha256,
        benchmark=benchmark,
    )
    training = opened.metadata.get("config") or {}
    share, seed = training.get("evaluation_share"), training.get("seed", 0)
    synthetic_parts = opened.metadata.get("synthetic", ())
    synthetic_of_model = (f"{head_scores.SYNTHETIC_MODEL}{part}" for part in synthetic_parts)
    return ScoreManifest(
        score_key=run_key_of(identity),
        identity=identity,
        model=opened.name,
        synthetic=(*synthetic, *synthetic_of_model),
        split={"evaluation_share": share, "seed": seed} if share else None,
        num_set_aside=refusals.num_set_aside if refusals else 0,
        set_aside_reasons=refusals.reasons if refusals else {},
        num_partly_read=refusals.num_partly_read if refusals else 0,
        versions=package_versions(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """One opened scoring: its folder, its plan, its pairs and its model.

    Attributes:
        run_dir: Folder of the scoring.
        manifest: Manifest of the scoring.
        read_shard_pairs: Function that returns the pairs of a shard, in the plan's order.
        opened: The reward model.
        computing: Layout and tokens of a forward pass, which change nothing but speed.
        encode: Function that turns pairs into token ids; None: the model's own tokenizer.
        title: Name of the work in progress messages.
    """

    run_dir: Path
    manifest: ScoreManifest
    read_shard_pairs: Callable[[Shard], Sequence[PairInSubset]]
    opened: OpenedModel
    computing: ComputingOptions
    encode: Callable[[Sequence[PreferencePair]], list[EncodedPair]] | None = None
    title: str = ""

    def job(self, how: RunOptions = RunOptions()) -> Job:
        """Return the scoring as a job for `encore.runs.worker`.

        The scores of a pair that the chat template refuses are null. The report's totals are
        ``num_tokens``, ``num_set_aside_pairs``, ``num_cut_pairs``, ``num_cut_responses`` and
        ``num_cut_tokens``. For the shards scored by this call it also has ``num_computed`` and
        ``num_padding``.
        """
        return Job(
            run_dir=self.run_dir,
            manifest=self.manifest,
            compute=self._compute,
            title=self.title,
            slice=how.parsed_slice,
            shard_indices=how.shard or None,
        )

    def _compute(self, shard: Shard, report_rows: ReportRows) -> ShardTable:
        shard_pairs, tokenizer = self.read_shard_pairs(shard), self.opened.tokenizer
        is_taken_P = [
            tokenizer.refusal(pair.prompt, pair.chosen, pair.rejected) is None
            for pair, _ in shard_pairs
        ]
        encode = self.encode or tokenizer.encode_pairs
        encoded = encode([pair for pair, _ in compress(shard_pairs, is_taken_P)])
        score_TR, counts = self._score(encoded, report_rows)
        is_scored_N = np.repeat(is_taken_P, 2)
        table = _score_table(self.manifest, shard_pairs, score_TR, is_scored_N=is_scored_N)
        counts["num_set_aside_pairs"] = len(shard_pairs) - len(encoded)
        cut_counts = ("num_cut_responses", "num_cut_pairs", "num_cut_tokens")
        footer = {name: counts[name] for name in ("num_tokens", "num_set_aside_pairs", *cut_counts)}
        return ShardTable(table=table, footer=footer, counts=counts)

    def _score(
        self, encoded: Sequence[EncodedPair], report_rows: ReportRows
    ) -> tuple[NDArray[np.float32], Counter[str]]:
        try:
            return score_encoded(
                self.opened, encoded, computing=self.computing, on_scored=report_rows
            )
        except RuntimeError as error:  # the device failed: the next shard would meet it too
            is_memory = isinstance(error, torch.OutOfMemoryError)
            advice = "give fewer --tokens-per-microbatch; " if is_memory else ""
            raise EveryShardError(
                f"scoring with {self.manifest.model}: {' '.join(str(error).split())[:500]}; "
                f"{advice}finished shards are kept"
            ) from error


def _score_table(
    manifest: ScoreManifest,
    shard_pairs: Sequence[PairInSubset],
    score_TR: NDArray[np.float32],
    *,
    is_scored_N: NDArray[np.bool_],
) -> pa.Table:
    """Return a shard's table: two rows per pair, the chosen response first; null if not scored."""
    keys = [
        (pair.pair_id, pair.source, subset, response)
        for pair, subset in shard_pairs
        for response in RESPONSES
    ]
    scored_keys = [*compress(keys, is_scored_N)]
    refuse_infinite(
        score_TR,
        manifest.head_ids,
        name_of_row=lambda row: f"pair {scored_keys[row][0]}: its {scored_keys[row][-1]} response",
    )
    columns = dict(zip(head_scores.KEY_NAMES, zip(*keys, strict=True), strict=True))
    score_NR = np.zeros((len(keys), len(manifest.head_ids)), dtype=np.float32)
    score_NR[is_scored_N] = score_TR
    for head_id, score_N in zip(manifest.head_ids, score_NR.T, strict=True):
        columns[head_id] = pa.array(score_N, mask=~is_scored_N)  # null, never 0
    return pa.table(columns, schema=head_scores.head_scores_schema(manifest.head_ids))


def refuse_infinite(
    score_NR: NDArray[np.float32], head_ids: Sequence[str], *, name_of_row: Callable[[int], str]
) -> None:
    """Raise an error if a score is infinite or no number.

    Args:
        score_NR: Scores of N responses under R heads.
        head_ids: Ids of the R heads.
        name_of_row: Function that names a response for people.

    Raises:
        EncoreError: It names the first such response and its head.
    """
    if len(infinite_at := np.argwhere(~np.isfinite(score_NR))):
        row, head = infinite_at[0].tolist()
        raise EncoreError(
            f"{name_of_row(row)} scores {score_NR[row, head]} under head {head_ids[head]!r}; "
            "expected a finite number: score with --dtype float32, or train the model again"
        )


def score_encoded(
    opened: OpenedModel,
    encoded: Sequence[EncodedPair],
    *,
    computing: ComputingOptions,
    on_scored: ReportRows = lambda _num_responses: None,
) -> tuple[NDArray[np.float32], Counter[str]]:
    """Score both responses of some pairs; return the scores, shape [N, R], and counts.

    ``num_computed`` counts the token positions that went through the model, ``num_padding`` the
    positions that hold no token, ``num_tokens`` the tokens of the responses, each response as if it
    stood alone.

    Args:
        opened: The reward model.
        encoded: Token ids of the pairs.
        computing: Layout and tokens of a forward pass, which change nothing but speed.
        on_scored: Function that receives the number of finished responses.

    Raises:
        InputError: The model does not allow the layout.
    """
    responses = [response for pair in encoded for response in (pair.chosen, pair.rejected)]
    sequences = [response.token_ids for response in responses]
    score_NR = np.empty((len(sequences), len(opened.model.head_ids)), dtype=np.float32)
    num_cut_P2 = np.array([response.num_cut for response in responses]).reshape(-1, 2)
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
        tokens_per_microbatch=computing.tokens_per_microbatch,
        layout=best_layout(opened.model) if computing.layout == "auto" else computing.layout,
        groups=[(first, first + 1) for first in range(0, len(sequences), 2)],
    ):
        score_NR[batch.indices] = batch.value_NX
        num_done += len(batch.indices)
        for name in ("num_tokens", "num_computed", "num_padding"):
            counts[name] += getattr(batch, name)
        on_scored(num_done)
    return score_NR, counts
