"""Compute the pooled states of a frozen backbone once, and keep them on disk in chunks.

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
from encore.model.backbone_options import LayoutName
from encore.model.layouts import TokenIds
from encore.model.open_model import architecture_text, parameter_digest
from encore.model.reward_model import MultiHeadRewardModel
from encore.model.score_sequences import best_layout, computed_batches
from encore.training.disk_space import report_full_disk
from encore.training.training_examples import add_sequences

_log = logging.getLogger(__name__)

#: Rows in one file of the cache. A stopped process loses at most the rows of one file.
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
    """Return the pooled state of every sequence, which the heads read: float32, shape [P, K, D].

    Args:
        model: Reward model; only its trunk is used.
        rows: One or more rows with the same number of sequences each. The sequences of a row may
            begin with the same tokens.
        cache: Folder of computed states. States of the same trunk and tokens are read from there.
            New ones are written there, `ROWS_PER_CHUNK` rows a file.
        pad_token_id: Any valid token; nothing attends to it.
        tokens_per_microbatch: Most token positions of a forward pass; None: by device.
        layout: Layout of the batches. None uses the one with the fewest computed tokens. Results
            differ only by rounding.
        reporter: Receiver of progress, after each file.

    Raises:
        NoRoomError: The disk is full.
    """
    reporter.started("embedding", total=len(rows))
    batching: dict[str, Any] = {
        "layout": layout or best_layout(model),
        "pad_token_id": pad_token_id,
        "tokens_per_microbatch": tokens_per_microbatch,
    }
    digest = _digest(model, rows)
    chunks: list[_Floats] = []
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[start : start + ROWS_PER_CHUNK]
        path = cache / digest[:16] / f"chunk-{start:08d}.safetensors"
        state_PKD = _read(path, digest=digest)
        if state_PKD is None:
            state_PKD = _compute(model, chunk, batching)
            _write(path, state_PKD, digest=digest)
        chunks.append(state_PKD)
        reporter.advanced(len(chunk))
    return np.concatenate(chunks)


def prompt_tokens(token_ids: TokenIds, num_prompt: int) -> TokenIds:
    """Return the tokens of a sequence's rendered prompt, whose pooled state a gate reads.

    In a causal backbone this is the state at the beginning of the assistant's turn. If the whole
    prompt was cut, the first token of the sequence takes its place.
    """
    return token_ids[: max(1, num_prompt)]


def _compute(model: MultiHeadRewardModel, rows: _Rows, batching: dict[str, Any]) -> _Floats:
    """Compute the pooled states of rows, [P, K, D]; the sequences of a row form a group."""
    sequences = [sequence for row in rows for sequence in row]
    width = len(rows[0])
    state_ND = np.empty((len(sequences), model.hidden_size), dtype=np.float32)
    groups = [range(first, first + width) for first in range(0, len(sequences), width)]
    for batch in computed_batches(model, sequences, compute=model.embed, groups=groups, **batching):
        state_ND[batch.indices] = batch.value_NX
    return state_ND.reshape(len(rows), width, -1)


def _digest(model: MultiHeadRewardModel, rows: _Rows) -> str:
    """Return the SHA-256 of everything that the states depend on: weights, architecture, tokens."""
    parts = [architecture_text(model), parameter_digest(model.trunk)]
    digest = hashlib.sha256("\n".join(parts).encode())
    for sequences in zip(*rows, strict=True):
        add_sequences(digest, sequences)
    return digest.hexdigest()


def _metadata(state_PKD: _Floats, digest: str) -> dict[str, str]:
    return {"embeddings": digest, "content": hashlib.sha256(state_PKD.data).hexdigest()}


def _read(path: Path, *, digest: str) -> _Floats | None:
    """Read the states of a file; None if it is missing, damaged, or of another trunk."""
    if not path.is_file():
        return None
    with contextlib.suppress(SafetensorError), safe_open(path, framework="numpy") as file:
        state_PKD: _Floats = file.get_tensor(_STATES)
        if file.metadata() == _metadata(state_PKD, digest):
            return state_PKD
    _log.warning("%s: damaged; its embeddings are computed again", path)
    return None


def _write(path: Path, state_PKD: _Floats, *, digest: str) -> None:
    """Write the states of a file with their digests."""
    path.parent.mkdir(parents=True, exist_ok=True)
    full_disk = report_full_disk(
        path.parent, purpose="a file of pooled states", kept_work="finished files are kept"
    )
    with full_disk, atomic_path(path) as temporary:
        save_file({_STATES: state_PKD}, temporary, metadata=_metadata(state_PKD, digest))
