"""The pooled states that a frozen backbone gives sequences: computed once, kept on disk in pieces.

Suffixes: P rows, K sequences of a row, N sequences, D hidden.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from encore.core.files import atomic_path
from encore.core.reporting import SILENT, Reporter
from encore.model.backbone_config import LayoutName
from encore.model.layouts import TokenIds
from encore.model.opening import architecture_text, parameter_digest
from encore.model.reward_model import MultiHeadRewardModel
from encore.model.score_sequences import best_layout, computed_batches
from encore.training.disk import named_when_full
from encore.training.training_examples import add_sequences

_log = logging.getLogger(__name__)

#: Rows in one file of the cache: what a stopped process loses at most.
ROWS_PER_CHUNK = 512
_STATES = "states"

_Floats = NDArray[np.float32]
_Rows = Sequence[Sequence[TokenIds]]


def embed(
    model: MultiHeadRewardModel,
    rows: _Rows,
    *,
    cache: Path,
    pad_token_id: int,
    tokens_per_microbatch: int | None = None,
    layout: LayoutName | None = None,
    reporter: Reporter = SILENT,
) -> _Floats:
    """The pooled state of every sequence of some rows, which heads would read: [P, K, D].

    Args:
        model: Its trunk is used as it is, its heads are not.
        rows: At least one, each of as many sequences, which may begin alike.
        cache: A folder. States found there for this trunk and these tokens are read instead of
            computed; computed ones are written there, `ROWS_PER_CHUNK` rows a file.
        pad_token_id: Any valid token: nothing attends to it.
        tokens_per_microbatch: See `encore.model.score_sequences.score_sequences`.
        layout: The one that computes least by default; changes no result but for rounding.
        reporter: Hears of the rows of each finished file.

    Raises:
        NoRoomError: The disk is full.
    """
    reporter.started("embedding", total=len(rows))
    how: dict[str, Any] = {"layout": layout or best_layout(model), "pad_token_id": pad_token_id}
    how["tokens_per_microbatch"] = tokens_per_microbatch
    digest = _digest(model, rows)
    chunks: list[_Floats] = []
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[start : start + ROWS_PER_CHUNK]
        path = cache / digest[:16] / f"chunk-{start:08d}.safetensors"
        state_PKD = _read(path, digest=digest)
        if state_PKD is None:
            state_PKD = _compute(model, chunk, how)
            _write(path, state_PKD, digest=digest)
        chunks.append(state_PKD)
        reporter.advanced(len(chunk))
    return np.concatenate(chunks)


def prompt_of(token_ids: TokenIds, num_prompt: int) -> TokenIds:
    """The rendered prompt that a sequence begins with, to `embed` what a gate reads.

    Of a causal backbone its state is the one where the assistant's turn begins. A prompt that was
    cut away whole counts as the sequence's first token.
    """
    return token_ids[: max(1, num_prompt)]


def _compute(model: MultiHeadRewardModel, rows: _Rows, how: dict[str, Any]) -> _Floats:
    sequences = [sequence for row in rows for sequence in row]
    width = len(rows[0])
    state_ND = np.empty((len(sequences), model.hidden_size), dtype=np.float32)
    groups = [range(first, first + width) for first in range(0, len(sequences), width)]
    for batch in computed_batches(model, sequences, compute=model.embed, groups=groups, **how):
        state_ND[batch.indices] = batch.value_NX
    return state_ND.reshape(len(rows), width, -1)


def _digest(model: MultiHeadRewardModel, rows: _Rows) -> str:
    """What the result depends on: weights, architecture, tokens."""
    parts = [architecture_text(model), parameter_digest(model.trunk)]
    digest = hashlib.sha256("\n".join(parts).encode())
    for sequences in zip(*rows, strict=True):
        add_sequences(digest, sequences)
    return digest.hexdigest()


def _metadata(state_PKD: _Floats, digest: str) -> dict[str, str]:
    return {"embeddings": digest, "content": hashlib.sha256(state_PKD.data).hexdigest()}


def _read(path: Path, *, digest: str) -> _Floats | None:
    """The states of a file; None where it is not there, damaged or another's."""
    if not path.is_file():
        return None
    with contextlib.suppress(SafetensorError), safe_open(path, framework="numpy") as file:
        state_PKD: _Floats = file.get_tensor(_STATES)
        if file.metadata() == _metadata(state_PKD, digest):
            return state_PKD
    _log.warning("%s: not what was written; its embeddings are computed again", path)
    return None


def _write(path: Path, state_PKD: _Floats, *, digest: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    full = named_when_full(
        path.parent, purpose="a piece of the hidden states", kept="finished pieces are kept"
    )
    with full, atomic_path(path) as temporary:
        save_file({_STATES: state_PKD}, temporary, metadata=_metadata(state_PKD, digest))
