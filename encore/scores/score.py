"""Score every pair of a study under every head, in one process: begin, or do what is missing.

Suffixes: P pairs, N responses (two a pair), R heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from encore.data.pairs import data_digest_of, labels_of, read_manifest, read_pairs
from encore.data.records import PreferencePair
from encore.data.study import Study, open_study
from encore.errors import InputError
from encore.model.opening import OpenedModel, open_reward_model
from encore.scores.driver import OnProgress, ScoreResult, score_run
from encore.scores.folder import SCORES_DIR, SYNTHETIC_MODEL, ScoreManifest, identity_of
from encore.scores.run import HowToCompute, Layout, ScoreRun, refuse_not_finite, score_encoded
from encore.scores.schema import head_scores_schema
from encore.shards import run_key_of
from encore.synthetic import synthetic_parts
from encore.versions import package_versions

#: Pairs in one file: what a stopped process loses at most.
SHARD_SIZE = 1000


def score_study(
    study: Path,
    *,
    model: str | Path | OpenedModel,
    out: Path | None = None,
    limit: int | None = None,
    shard_size: int = SHARD_SIZE,
    tokens_per_microbatch: int | None = None,
    layout: Layout = "auto",
    max_length: int | None = None,
    device: str | None = None,
    dtype: str = "auto",
    revision: str | None = None,
    on_progress: OnProgress | None = None,
) -> ScoreResult:
    """Write every head's raw, centred score of every response, shard by shard.

    The same model, pairs, limit and shard size always mean the same folder: a shard that is there
    and whole is not scored again, one that is damaged is scored alone. Several processes may score
    one study at a time, each another shard.

    Args:
        study: The study's directory.
        model: As for `encore.model.opening.open_reward_model`, or a model that is open already.
        out: The folder (None: ``STUDY/scores/<key>``).
        limit: Pilot: only so many pairs, drawn by content hash.
        shard_size: Pairs in each file.
        tokens_per_microbatch: Token positions of one forward pass; default by device.
        layout: How responses are put side by side; changes speed, and scores by rounding only.
        max_length: In tokens; see `open_reward_model`, like the next three.
        device: As above.
        dtype: As above.
        revision: As above.
        on_progress: Told how far it is.

    Raises:
        InputError: No study or no pairs in it; no reward model; ``out`` holds something else.
        EncoreError: The disk is full, the device has too little memory; a damaged `score.json`.
        KeyboardInterrupt: Finished shards are kept.
    """
    _check(limit=limit, shard_size=shard_size, tokens_per_microbatch=tokens_per_microbatch)
    found = open_study(study)
    all_pairs = read_pairs(found)
    pairs = _planned(all_pairs, study=study, limit=limit)
    if isinstance(model, OpenedModel):
        _refuse_settings_of_opening(
            device=device, dtype=dtype, max_length=max_length, revision=revision
        )
        opened = model
    else:
        opened = open_reward_model(
            model, device=device, dtype=dtype, max_length=max_length, revision=revision
        )
    manifest = _manifest(
        found,
        opened,
        data_sha256=data_digest_of(all_pairs),
        num_pairs=pairs.num_rows,
        shard_size=shard_size,
    )
    run = ScoreRun(
        folder=out or found.path / SCORES_DIR / manifest.score_key,
        manifest=manifest,
        pairs=pairs,
        opened=opened,
        how=HowToCompute(layout=layout, tokens_per_microbatch=tokens_per_microbatch),
    )
    return score_run(run, on_progress=on_progress)


def score_pairs(
    opened: OpenedModel,
    pairs: Sequence[PreferencePair],
    *,
    layout: Layout = "auto",
    tokens_per_microbatch: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """The raw, centred scores of both responses of some pairs, kept in memory alone.

    Args:
        opened: The model.
        pairs: In any order.
        layout: As for `score_study`.
        tokens_per_microbatch: As for `score_study`.
        on_progress: Told how many pairs are done, and of how many.

    Returns:
        score_P2R, chosen first, float32, shape [P, 2, R].

    Raises:
        InputError: A pair that the model's template refuses.
        EncoreError: A score that is not finite.
    """

    def scored(num_done: int, _num_tokens: int) -> None:
        if on_progress is not None:
            on_progress(num_done // 2, len(pairs))

    how = HowToCompute(layout=layout, tokens_per_microbatch=tokens_per_microbatch)
    encoded = opened.tokenizer.encode_pairs(pairs)
    score_NR, _ = score_encoded(opened, encoded, how=how, on_scored=scored)
    head_ids = opened.model.head_ids
    refuse_not_finite(score_NR, pairs, head_ids=head_ids)
    return score_NR.reshape(len(pairs), 2, len(head_ids))


def _check(*, limit: int | None, shard_size: int, tokens_per_microbatch: int | None) -> None:
    given = {
        "limit": limit,
        "shard_size": shard_size,
        "tokens_per_microbatch": tokens_per_microbatch,
    }
    for name, value in given.items():
        if value is not None and value < 1:
            raise InputError(f"{name} {value}: expected at least 1")


def _refuse_settings_of_opening(*, dtype: str, **others: object) -> None:
    given = [name for name, value in others.items() if value is not None]
    given += ["dtype"] * (dtype != "auto")
    if given:
        raise InputError(
            f"{given[0]}: given with a model that is open already; give it to open_reward_model"
        )


def _planned(pairs: pa.Table, *, study: Path, limit: int | None) -> pa.Table:
    """Pairs in the plan's order: by content hash, so that any prefix is a fair sample."""
    if pairs.num_rows == 0:
        raise InputError(f"study {study}: it has no pairs; run `encore ingest` first")
    order = pc.sort_indices(pairs, sort_keys=[("pair_id", "ascending"), ("source", "ascending")])
    return pairs.take(order[:limit] if limit is not None else order)


def _manifest(
    study: Study, opened: OpenedModel, *, data_sha256: str, num_pairs: int, shard_size: int
) -> ScoreManifest:
    head_scores_schema(opened.model.head_ids)  # refuses names that cannot be columns
    identity = identity_of(
        model_digest=opened.digest,
        head_ids=opened.model.head_ids,
        mean=opened.model.mean_R.tolist(),
        data_sha256=data_sha256,
        num_pairs=num_pairs,
        shard_size=shard_size,
    )
    data = synthetic_parts((read_manifest(study, label) for label in labels_of(study)), ())
    model = (f"{SYNTHETIC_MODEL}{part}" for part in opened.metadata.get("synthetic", ()))
    return ScoreManifest(
        score_key=run_key_of(identity),
        identity=identity,
        model=opened.name,
        synthetic=[*data, *model],
        versions=package_versions(),
    )
