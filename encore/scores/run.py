"""Score one shard after another: tokens, scores, one file that is whole or absent.

Suffixes: N responses (two a pair, chosen first), R heads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from encore.data.pairs import records_of
from encore.data.records import RESPONSES, PreferencePair
from encore.errors import EncoreError
from encore.model.conversation import EncodedPair
from encore.model.layouts import LayoutName
from encore.model.opening import OpenedModel
from encore.model.scoring import best_layout, computed_batches
from encore.scores.folder import ScoreManifest, inspect_scores
from encore.scores.schema import KEY_NAMES, head_scores_schema
from encore.shards import (
    Shard,
    ShardFile,
    put_shard,
    record_failure,
    remove_stale_temporaries,
    shard_lock,
)
from encore.training.disk import named_when_full
from encore.versions import package_versions

#: Scores are random digits: statistics would serve nobody, shards are read whole.
_PARQUET_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "store_schema": False,
    "write_statistics": False,
}

Layout = LayoutName | Literal["auto"]
#: Told how many responses of a shard are scored, and how many tokens they have.
OnScored = Callable[[int, int], None]


class OutOfDeviceMemoryError(EncoreError):
    """The device cannot hold a forward pass: every shard would meet the same error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToCompute:
    """What changes speed and memory and no score beyond rounding.

    Attributes:
        layout: See `encore.model.layouts`; ``auto``: whichever computes least.
        tokens_per_microbatch: See `encore.model.scoring.score_sequences`.
    """

    layout: Layout = "auto"
    tokens_per_microbatch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRun:
    """One opened scoring: its folder, its plan, its pairs in plan order and its model."""

    folder: Path
    manifest: ScoreManifest
    pairs: pa.Table
    opened: OpenedModel
    how: HowToCompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What was computed, in tokens.

    Attributes:
        num_tokens: Of all responses, each as if it stood alone.
        num_computed: Token positions that went through the model.
        num_padding: Those of them that hold no token.
        num_cut_responses: Responses that were too long and lost their oldest tokens.
        num_cut_tokens: Those tokens.
    """

    num_tokens: int = 0
    num_computed: int = 0
    num_padding: int = 0
    num_cut_responses: int = 0
    num_cut_tokens: int = 0

    def __add__(self, other: Work) -> Work:
        """Both together."""
        return Work(
            num_tokens=self.num_tokens + other.num_tokens,
            num_computed=self.num_computed + other.num_computed,
            num_padding=self.num_padding + other.num_padding,
            num_cut_responses=self.num_cut_responses + other.num_cut_responses,
            num_cut_tokens=self.num_cut_tokens + other.num_cut_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOutcome:
    """What came of one shard. ``busy``: another process is scoring it."""

    index: int
    action: Literal["scored", "reused", "busy"]
    work: Work = field(default_factory=Work)


def score_shard(run: ScoreRun, shard: Shard, *, on_scored: OnScored | None = None) -> ShardOutcome:
    """Score one shard unless its file already validates or another process is at it.

    Args:
        run: The opened scoring.
        shard: One shard of its plan.
        on_scored: Told about finished responses.

    Raises:
        EncoreError: A pair that the model's template refuses, a score that is not finite (both
            recorded for the next one who asks); a full disk; too little memory on the device.
    """
    if (reused := _reused(run, shard)) is not None:  # also where nothing may be written
        return reused
    kept = "finished shards are kept"
    with (
        named_when_full(run.folder, purpose="a shard of scores", kept=kept),
        shard_lock(run.folder, shard.index) as is_mine,
    ):
        if not is_mine:
            return ShardOutcome(index=shard.index, action="busy")
        if (reused := _reused(run, shard)) is not None:
            return reused
        remove_stale_temporaries(run.folder, shard.index)
        return _score(run, shard, on_scored)


def score_encoded(
    opened: OpenedModel,
    encoded: Sequence[EncodedPair],
    *,
    how: HowToCompute,
    on_scored: OnScored | None = None,
) -> tuple[NDArray[np.float32], Work]:
    """The scores of both responses of some pairs: score_NR, and what it took.

    Args:
        opened: The model.
        encoded: The pairs' tokens.
        how: What changes nothing but speed.
        on_scored: Told about finished responses.

    Raises:
        InputError: A layout that the model does not allow.
    """
    responses = [one for pair in encoded for one in (pair.chosen, pair.rejected)]
    sequences = [one.token_ids for one in responses]
    layout = best_layout(opened.model) if how.layout == "auto" else how.layout
    score_NR = np.empty((len(sequences), len(opened.model.head_ids)), dtype=np.float32)
    num_cut = [one.num_cut for one in responses if one.num_cut]
    work = Work(num_cut_responses=len(num_cut), num_cut_tokens=sum(num_cut))
    num_done = 0
    for batch in computed_batches(
        opened.model,
        sequences,
        compute=opened.model,
        pad_token_id=opened.tokenizer.pad_token_id,
        tokens_per_microbatch=how.tokens_per_microbatch,
        layout=layout,
        groups=[(first, first + 1) for first in range(0, len(sequences), 2)],
    ):
        score_NR[batch.indices] = batch.value_NX
        num_done += len(batch.indices)
        work += Work(
            num_tokens=batch.num_tokens,
            num_computed=batch.num_computed,
            num_padding=batch.num_padding,
        )
        if on_scored is not None:
            on_scored(num_done, work.num_tokens)
    return score_NR, work


def refuse_not_finite(
    score_NR: NDArray[np.float32], pairs: Sequence[PreferencePair], *, head_ids: Sequence[str]
) -> None:
    """Stop before a score that is no number is written or compared.

    Args:
        score_NR: Two rows a pair.
        pairs: Whose they are.
        head_ids: The heads.

    Raises:
        EncoreError: The first such score: its pair, response and head.
    """
    bad = np.argwhere(~np.isfinite(score_NR))
    if not len(bad):
        return
    row, head = (int(value) for value in bad[0])
    raise EncoreError(
        f"pair {pairs[row // 2].pair_id}: its {RESPONSES[row % 2]} response scores "
        f"{score_NR[row, head]} under head {head_ids[head]!r}; expected a finite number: score "
        "with --dtype float32, or train the model again"
    )


def _reused(run: ScoreRun, shard: Shard) -> ShardOutcome | None:
    if not isinstance(inspect_scores(run.folder, run.manifest, shard), ShardFile):
        return None
    return ShardOutcome(index=shard.index, action="reused")


def _score(run: ScoreRun, shard: Shard, on_scored: OnScored | None) -> ShardOutcome:
    pairs = records_of(run.pairs.slice(shard.start, shard.num_pairs))
    head_ids = run.manifest.head_ids
    try:
        encoded = run.opened.tokenizer.encode_pairs(pairs)
        score_NR, work = score_encoded(run.opened, encoded, how=run.how, on_scored=on_scored)
        refuse_not_finite(score_NR, pairs, head_ids=head_ids)
    except torch.OutOfMemoryError as error:
        raise OutOfDeviceMemoryError(
            f"scoring with {run.manifest.model}: the device has not enough memory for "
            f"{run.how.tokens_per_microbatch or 'so many'} tokens at a time; give fewer with "
            "--tokens-per-microbatch: finished shards are kept"
        ) from error
    except EncoreError as error:
        with contextlib.suppress(OSError):  # what failed matters more than its record
            record_failure(run.folder, shard, error)
        raise
    footer: Mapping[str, Any] = {
        "run_key": run.manifest.score_key,
        "num_tokens": work.num_tokens,
        "num_cut_responses": work.num_cut_responses,
        "num_cut_tokens": work.num_cut_tokens,
        "versions": package_versions(),
    }
    table = _table(pairs, score_NR, head_ids=head_ids)
    put_shard(run.folder, shard, table, footer=footer, options=_PARQUET_OPTIONS)
    return ShardOutcome(index=shard.index, action="scored", work=work)


def _table(
    pairs: Sequence[PreferencePair], score_NR: NDArray[np.float32], *, head_ids: Sequence[str]
) -> pa.Table:
    """Two rows a pair, the chosen response first."""
    rows = [(pair, response) for pair in pairs for response in RESPONSES]
    keys = (
        [pair.pair_id for pair, _ in rows],
        [pair.source for pair, _ in rows],
        [None] * len(rows),  # pairs of a study belong to no subset
        [response for _, response in rows],
    )
    columns = dict(zip(KEY_NAMES, keys, strict=True))
    heads = {head_id: score_NR[:, place] for place, head_id in enumerate(head_ids)}
    return pa.table({**columns, **heads}, schema=head_scores_schema(head_ids))
