"""The pooled states that a frozen backbone gives sequences: computed once, kept on disk in pieces.

Suffixes: P rows of the tables, N sequences, D hidden.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from encore.files import atomic_path
from encore.model.layouts import LayoutName
from encore.model.opening import architecture_text, parameter_digest
from encore.model.reward_model import MultiHeadRewardModel
from encore.model.scoring import computed_batches
from encore.reporting import SILENT, Reporter
from encore.training.disk import named_when_full
from encore.training.examples import TokenTable

_log = logging.getLogger(__name__)

#: Rows in one file of the cache: what a stopped process loses at most.
PAIRS_PER_CHUNK = 512

_Floats = NDArray[np.float32]
_States = dict[str, _Floats]


def embed(
    model: MultiHeadRewardModel,
    tables: Mapping[str, TokenTable],
    *,
    layout: LayoutName = "packed",
    cache: Path | None = None,
    tokens_per_microbatch: int = 16_384,
    pad_token_id: int = 0,
    reporter: Reporter = SILENT,
) -> dict[str, NDArray[np.float32]]:
    """The pooled state of every sequence of some tables, which heads would read: [P, D] by table.

    Args:
        model: Its trunk is used as it is, its heads are not.
        tables: By name, of one length: each row has a sequence in every table. In the layout
            prefix-shared the sequences of a row share their beginning.
        layout: How sequences are batched; it changes speed, not results beyond rounding.
        cache: A folder. States found there for this trunk and these tokens are read instead of
            computed; computed ones are written there, `PAIRS_PER_CHUNK` rows a file.
        tokens_per_microbatch: The most to compute at once; a longer sequence goes alone.
        pad_token_id: Any valid token: nothing attends to it.
        reporter: Hears of the rows of each finished file.

    Raises:
        NoRoomError: The disk is full.
    """
    num_rows = len(next(iter(tables.values())))
    if layout == "prefix-shared" and len(tables) == 1:
        layout = "packed"
    how: dict[str, Any] = {"layout": layout, "tokens_per_microbatch": tokens_per_microbatch}
    how["pad_token_id"] = pad_token_id
    digest = "" if cache is None else _digest(model, tables)
    chunks: list[_States] = []
    for start in range(0, num_rows, PAIRS_PER_CHUNK):
        rows = range(start, min(start + PAIRS_PER_CHUNK, num_rows))
        path = cache and cache / digest[:16] / f"chunk-{start:08d}.safetensors"
        states = path and _read(path, names=list(tables), digest=digest)
        if not states:
            states = _compute(model, tables, rows, how)
            if path:
                _write(path, states, digest=digest)
        chunks.append(states)
        reporter.advanced(len(rows))
    chunks = chunks or [_compute(model, tables, range(0), how)]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in tables}


def prompt_table(
    sequences: Sequence[NDArray[np.int32]] | TokenTable, num_prompt_P: Sequence[int]
) -> TokenTable:
    """The rendered prompts that sequences begin with, to `embed` what a gate reads.

    Of a causal backbone their state is the one where the assistant's turn begins. A prompt that was
    cut away whole counts as its sequence's first token.

    Args:
        sequences: One of each pair.
        num_prompt_P: How many of their tokens are the prompt.
    """
    return TokenTable.of(sequences[row][: max(1, num)] for row, num in enumerate(num_prompt_P))


def _compute(
    model: MultiHeadRewardModel, tables: Mapping[str, TokenTable], rows: range, how: dict[str, Any]
) -> _States:
    sequences = [table[row] for row in rows for table in tables.values()]
    state_ND = np.empty((len(sequences), model.hidden_size), dtype=np.float32)
    width = len(tables)
    groups = [range(first, first + width) for first in range(0, len(sequences), width)]
    for batch in computed_batches(model, sequences, compute=model.embed, groups=groups, **how):
        state_ND[batch.indices] = batch.value_NX
    return {name: np.ascontiguousarray(state_ND[i::width]) for i, name in enumerate(tables)}


def _digest(model: MultiHeadRewardModel, tables: Mapping[str, TokenTable]) -> str:
    """What the result depends on: weights, architecture, pooling, tokens. Not the layout."""
    parts = [architecture_text(model), model.pooling, parameter_digest(model.trunk)]
    digest = hashlib.sha256("\n".join(parts).encode())
    for name, table in tables.items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(table.offsets).data)
        digest.update(np.ascontiguousarray(table.flat).data)
    return digest.hexdigest()


def _metadata(states: _States, digest: str) -> dict[str, str]:
    content = hashlib.sha256()
    for name, state_ND in sorted(states.items()):
        content.update(f"{name} {state_ND.shape}\n".encode())
        content.update(np.ascontiguousarray(state_ND).data)
    return {"embeddings": digest, "content": content.hexdigest()}


def _read(path: Path, *, names: Sequence[str], digest: str) -> _States | None:
    """The states of a file; None where it is not there, damaged or another's."""
    if not path.is_file():
        return None
    with contextlib.suppress(SafetensorError), safe_open(path, framework="numpy") as file:
        states = {name: file.get_tensor(name) for name in names}
        if file.metadata() == _metadata(states, digest):
            return states
    _log.warning("%s: not what was written; its embeddings are computed again", path)
    return None


def _write(path: Path, states: _States, *, digest: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = "finished pieces are kept"
    with (
        named_when_full(path.parent, purpose="a piece of the hidden states", kept=kept),
        atomic_path(path) as temporary,
    ):
        save_file(states, temporary, metadata=_metadata(states, digest))
