"""The pooled states that a frozen backbone gives sequences: computed once, kept on disk in pieces.

Suffixes: P pairs, N sequences, D hidden.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
from encore.training.examples import TokenTable, TrainingExamples

_log = logging.getLogger(__name__)

#: Pairs in one file of the cache: what a stopped process loses at most.
PAIRS_PER_CHUNK = 512

_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """The pooled states of a frozen backbone, which its heads would read.

    Attributes:
        chosen_PD: Of prompt and preferred response, shape [P, D], float32.
        rejected_PD: Of prompt and other response.
    """

    chosen_PD: _Floats
    rejected_PD: _Floats


def embed_examples(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    *,
    layout: LayoutName = "packed",
    cache: Path | None = None,
    tokens_per_microbatch: int = 16_384,
    pad_token_id: int = 0,
    reporter: Reporter = SILENT,
) -> Embeddings:
    """The pooled state of every response.

    Args:
        model: Its trunk is used as it is, its heads are not.
        examples: The P pairs.
        layout: How sequences are batched; it changes speed, not results beyond rounding.
        cache: A folder. States found there for this trunk and these tokens are read instead of
            computed; computed ones are written there, `PAIRS_PER_CHUNK` pairs a file.
        tokens_per_microbatch: The most tokens to compute at once; a longer sequence goes alone.
        pad_token_id: Any valid token: nothing attends to it.
        reporter: Hears of the pairs of each finished file.

    Raises:
        NoRoomError: The disk is full.
        OSError: The cache cannot be written.
    """
    work = _Embedding(
        model=model,
        tables={"chosen": examples.chosen, "rejected": examples.rejected},
        layout=layout,
        tokens_per_microbatch=tokens_per_microbatch,
        pad_token_id=pad_token_id,
    )
    found = work.run(cache, reporter)
    return Embeddings(chosen_PD=found["chosen"], rejected_PD=found["rejected"])


def embed_prompts(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    *,
    layout: LayoutName = "packed",
    cache: Path | None = None,
    tokens_per_microbatch: int = 16_384,
    pad_token_id: int = 0,
    reporter: Reporter = SILENT,
) -> _Floats:
    """The pooled state of every rendered prompt, shape [P, D], float32.

    Of a causal backbone that is the state where the assistant's turn begins, which the gate reads
    (`encore.training.gating_network`). A prompt that was cut away whole counts as its sequence's
    first token.
    Arguments as for `embed_examples`.
    """
    num_tokens_P = np.maximum(examples.prompt_tokens_P, 1)
    prompts = (examples.chosen[row][: num_tokens_P[row]] for row in range(examples.num_pairs))
    work = _Embedding(
        model=model,
        tables={"prompt": TokenTable.of(prompts)},
        layout="packed" if layout == "prefix-shared" else layout,
        tokens_per_microbatch=tokens_per_microbatch,
        pad_token_id=pad_token_id,
    )
    return work.run(cache, reporter)["prompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Embedding:
    """Sequences to embed, row by row: every table has one in each row."""

    model: MultiHeadRewardModel
    tables: Mapping[str, TokenTable]
    layout: LayoutName
    tokens_per_microbatch: int
    pad_token_id: int

    def run(self, cache: Path | None, reporter: Reporter) -> dict[str, _Floats]:
        """The states of each table, shape [P, D]."""
        digest = "" if cache is None else self.digest()
        num_rows = len(next(iter(self.tables.values())))
        chunks = []
        for start in range(0, num_rows, PAIRS_PER_CHUNK):
            rows = range(start, min(start + PAIRS_PER_CHUNK, num_rows))
            if cache is None:
                chunks.append(self.compute(rows))
            else:
                path = cache / digest[:16] / f"chunk-{start:08d}.safetensors"
                chunks.append(self.kept(rows, path=path, digest=digest))
            reporter.advanced(len(rows))
        empty_ND = np.empty((0, self.model.hidden_size), dtype=np.float32)
        return {
            name: np.concatenate([empty_ND, *(chunk[name] for chunk in chunks)])
            for name in self.tables
        }

    def digest(self) -> str:
        """What the result depends on: weights, architecture, pooling, tokens. Not the layout."""
        trunk = self.model.trunk
        parts = [architecture_text(self.model), self.model.pooling, parameter_digest(trunk)]
        digest = hashlib.sha256("\n".join(parts).encode())
        for name, table in self.tables.items():
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(table.offsets).data)
            digest.update(np.ascontiguousarray(table.flat).data)
        return digest.hexdigest()

    def kept(self, rows: range, *, path: Path, digest: str) -> dict[str, _Floats]:
        """Some rows' states, from the file if it is whole, else computed and written."""
        if path.is_file():
            try:
                with safe_open(path, framework="numpy") as file:
                    metadata = file.metadata() or {}
                    states = {name: file.get_tensor(name) for name in self.tables}
            except SafetensorError as error:
                _log.warning("%s: damaged (%s); its embeddings are computed again", path, error)
            else:
                if metadata == {"embeddings": digest, "content": _content_digest(states)}:
                    return states
                _log.warning("%s: not what was written; its embeddings are computed again", path)
        states = self.compute(rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"embeddings": digest, "content": _content_digest(states)}
        kept = "finished pieces are kept"
        with (
            named_when_full(path.parent, purpose="a piece of the hidden states", kept=kept),
            atomic_path(path) as temporary,
        ):
            save_file(states, temporary, metadata=metadata)
        return states

    def compute(self, rows: range) -> dict[str, _Floats]:
        """The states of some rows' sequences."""
        sequences = [table[row] for row in rows for table in self.tables.values()]
        width = len(self.tables)
        pairs = [(i, i + 1) for i in range(0, len(sequences), width)]
        state_ND = np.empty((len(sequences), self.model.hidden_size), dtype=np.float32)
        for batch in computed_batches(
            self.model,
            sequences,
            compute=self.model.embed,
            pad_token_id=self.pad_token_id,
            tokens_per_microbatch=self.tokens_per_microbatch,
            layout=self.layout,
            groups=pairs if self.layout == "prefix-shared" else None,
        ):
            state_ND[batch.indices] = batch.value_NX
        return {
            name: np.ascontiguousarray(state_ND[place::width])
            for place, name in enumerate(self.tables)
        }


def _content_digest(states: Mapping[str, _Floats]) -> str:
    digest = hashlib.sha256()
    for name, state_ND in sorted(states.items()):
        digest.update(f"{name} {state_ND.shape}\n".encode())
        digest.update(np.ascontiguousarray(state_ND).data)
    return digest.hexdigest()
