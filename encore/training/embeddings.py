"""What a frozen backbone makes of sequences: computed once and kept, piece by piece, on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from encore.files import atomic_path
from encore.model.digest import architecture_text, parameter_digest
from encore.model.layouts import LayoutName
from encore.model.reward_model import MultiHeadRewardModel
from encore.model.scoring import computed_batches
from encore.training.disk import named_when_full
from encore.training.examples import TrainingExamples
from encore.training.tokens import TokenTable

# Suffixes: P pairs, N sequences, D hidden.

_log = logging.getLogger(__name__)

#: Pairs in one file of the cache: what a stopped process loses at most.
PAIRS_PER_CHUNK = 512

_Floats = NDArray[np.float32]
#: Told how many pairs are done, and of how many.
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """The pooled states of a frozen backbone, which its heads would read.

    Attributes:
        chosen_PD: Of prompt and preferred response, shape [P, D], float32.
        rejected_PD: Of prompt and other response.
    """

    chosen_PD: _Floats
    rejected_PD: _Floats

    def take(self, row_N: NDArray[np.int64]) -> Embeddings:
        """Some pairs, by index."""
        return Embeddings(chosen_PD=self.chosen_PD[row_N], rejected_PD=self.rejected_PD[row_N])


def embed_examples(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    *,
    layout: LayoutName = "packed",
    cache: Path | None = None,
    tokens_per_microbatch: int = 16_384,
    pad_token_id: int = 0,
    on_progress: OnProgress | None = None,
) -> Embeddings:
    """The pooled state of every response.

    Args:
        model: Its trunk is used as it is, its heads are not.
        examples: The P pairs.
        layout: How sequences are batched; it changes speed, not results beyond rounding.
        cache: A folder. What is found there for this trunk and these tokens is read instead of
            computed; what is computed is written there, `PAIRS_PER_CHUNK` pairs a file.
        tokens_per_microbatch: The most tokens to compute at once; a longer sequence goes alone.
        pad_token_id: Any valid token: nothing attends to it.
        on_progress: Told about finished pairs.

    Raises:
        NoRoomError: The disk is full.
        OSError: The cache cannot be written.
    """
    work = _Work(
        model=model,
        tables={"chosen": examples.chosen, "rejected": examples.rejected},
        layout=layout,
        tokens_per_microbatch=tokens_per_microbatch,
        pad_token_id=pad_token_id,
    )
    found = _embed(work, cache=cache, on_progress=on_progress)
    return Embeddings(chosen_PD=found["chosen"], rejected_PD=found["rejected"])


def embed_prompts(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    *,
    layout: LayoutName = "packed",
    cache: Path | None = None,
    tokens_per_microbatch: int = 16_384,
    pad_token_id: int = 0,
    on_progress: OnProgress | None = None,
) -> _Floats:
    """The pooled state of every rendered prompt, shape [P, D], float32.

    Of a causal backbone that is the state where the assistant's turn begins, which the gate reads
    (`encore.training.gating_network`). A prompt that was cut away whole counts as its sequence's
    first token.
    Arguments as for `embed_examples`.
    """
    num_tokens_P = np.maximum(examples.prompt_tokens_P, 1)
    prompts = (examples.chosen[row][: num_tokens_P[row]] for row in range(examples.num_pairs))
    work = _Work(
        model=model,
        tables={"prompt": TokenTable.of(prompts)},
        layout="packed" if layout == "prefix-shared" else layout,
        tokens_per_microbatch=tokens_per_microbatch,
        pad_token_id=pad_token_id,
    )
    return _embed(work, cache=cache, on_progress=on_progress)["prompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Sequences to embed, row by row: every table has one in each row."""

    model: MultiHeadRewardModel
    tables: Mapping[str, TokenTable]
    layout: LayoutName
    tokens_per_microbatch: int
    pad_token_id: int

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.tables.values())))

    def digest(self) -> str:
        """What the result depends on: weights, architecture, pooling, tokens. Not the layout."""
        parts = [
            architecture_text(self.model),
            self.model.pooling,
            parameter_digest(self.model.trunk),
        ]
        digest = hashlib.sha256("\n".join(parts).encode())
        for name, table in self.tables.items():
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(table.offsets).data)
            digest.update(np.ascontiguousarray(table.flat).data)
        return digest.hexdigest()


def _embed(
    work: _Work, *, cache: Path | None, on_progress: OnProgress | None
) -> dict[str, _Floats]:
    folder, digest = None, ""
    if cache is not None:
        digest = work.digest()
        folder = cache / digest[:16]
        folder.mkdir(parents=True, exist_ok=True)
    chunks = []
    for start in range(0, work.num_rows, PAIRS_PER_CHUNK):
        rows = range(start, min(start + PAIRS_PER_CHUNK, work.num_rows))
        path = None if folder is None else folder / f"chunk-{start:08d}.safetensors"
        chunks.append(_chunk(work, rows, path=path, digest=digest))
        if on_progress is not None:
            on_progress(rows.stop, work.num_rows)
    if not chunks:
        empty_ND = np.empty((0, work.model.hidden_size), dtype=np.float32)
        return dict.fromkeys(work.tables, empty_ND)
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in work.tables}


def _chunk(work: _Work, rows: range, *, path: Path | None, digest: str) -> dict[str, _Floats]:
    """Some rows' states, from the disk if they are there."""
    if path is None:
        return _compute(work, rows)
    found = _read_chunk(path, names=tuple(work.tables), num_rows=len(rows), digest=digest)
    if found is not None:
        return found
    states = _compute(work, rows)
    metadata = {"embeddings": digest, "content": _content_digest(states)}
    kept = "finished pieces are kept"
    with (
        named_when_full(path.parent, purpose="a piece of the hidden states", kept=kept),
        atomic_path(path) as temporary,
    ):
        save_file(states, temporary, metadata=metadata)
    return states


def _read_chunk(
    path: Path, *, names: Sequence[str], num_rows: int, digest: str
) -> dict[str, _Floats] | None:
    """What a file of the cache holds; None if it is not there or not what was written."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            states = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        _log.warning("%s: damaged (%s); its embeddings are computed again", path, error)
        return None
    is_whole = all(len(state) == num_rows for state in states.values())
    expected = {"embeddings": digest, "content": _content_digest(states)}
    if metadata != expected or not is_whole:
        _log.warning("%s: not what was written; its embeddings are computed again", path)
        return None
    return states


def _content_digest(states: Mapping[str, _Floats]) -> str:
    digest = hashlib.sha256()
    for name, state_ND in sorted(states.items()):
        digest.update(f"{name} {state_ND.shape}\n".encode())
        digest.update(np.ascontiguousarray(state_ND).data)
    return digest.hexdigest()


def _compute(work: _Work, rows: range) -> dict[str, _Floats]:
    """The states of some rows' sequences."""
    sequences = [table[row] for row in rows for table in work.tables.values()]
    width = len(work.tables)
    is_shared = work.layout == "prefix-shared"
    state_ND = np.empty((len(sequences), work.model.hidden_size), dtype=np.float32)
    for batch in computed_batches(
        work.model,
        sequences,
        compute=work.model.embed,
        pad_token_id=work.pad_token_id,
        tokens_per_microbatch=work.tokens_per_microbatch,
        layout=work.layout,
        groups=[(i, i + 1) for i in range(0, len(sequences), width)] if is_shared else None,
    ):
        state_ND[batch.indices] = batch.value_NX
    return {
        name: np.ascontiguousarray(state_ND[place::width]) for place, name in enumerate(work.tables)
    }
