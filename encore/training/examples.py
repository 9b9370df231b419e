"""What a reward model is trained on: tokens of both responses of every pair, and their targets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from encore.data.pairs import read_pairs, records_of
from encore.data.records import PreferencePair
from encore.data.study import open_study
from encore.errors import InputError
from encore.training.groups import group_of
from encore.training.targets import Targets, read_targets
from encore.training.tokens import TokenTable

if TYPE_CHECKING:
    from encore.model.conversation import ConversationTokenizer

# Suffixes: P pairs, R heads.

Objective = Literal["multi-head", "bradley-terry"]

#: The one head of a model that learns from preferences instead of ratings.
REWARD_HEAD = "reward"
#: So many pairs have their texts in memory at a time.
_PAIRS_PER_CHUNK = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingExamples:
    """Pairs of a study, tokenised, in the order of their content hash.

    The order is that of (pair_id, source), so it does not depend on how the study was made.
    A rating is its target plus the mean of its head: ``target_*_PR + mean_R``. `read_examples`
    gives ratings and means of 0; `encore.training.splits.centre` moves the means over.

    Attributes:
        head_ids: The R heads: rules in rule-set order, or `REWARD_HEAD` alone.
        source_P: Data set of each pair, shape [P], text.
        pair_id_P: Id of each pair, shape [P], text.
        group_P: Content hash of the first human turn of each prompt, shape [P].
        chosen: Tokens of prompt and preferred response.
        rejected: Tokens of prompt and other response.
        prompt_tokens_P: How many tokens of ``chosen`` are the rendered prompt, shape [P].
        target_chosen_PR: What each head is to say of the preferred response, shape [P, R], NaN
            where a rating is missing; [P, 0] for objective bradley-terry.
        target_rejected_PR: The same of the other response.
        mean_R: Taken off each head's ratings, shape [R].
        digest: SHA-256 of all of this before centring.
        notes: What was left out, cut or missing, counted, a sentence each.
    """

    head_ids: tuple[str, ...]
    source_P: NDArray[np.object_]
    pair_id_P: NDArray[np.object_]
    group_P: NDArray[np.int64]
    chosen: TokenTable
    rejected: TokenTable
    prompt_tokens_P: NDArray[np.int32]
    target_chosen_PR: NDArray[np.float32]
    target_rejected_PR: NDArray[np.float32]
    mean_R: NDArray[np.float64]
    digest: str
    notes: tuple[str, ...] = ()

    @property
    def num_pairs(self) -> int:
        """P."""
        return len(self.pair_id_P)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences, each as if it stood alone."""
        return len(self.chosen.flat) + len(self.rejected.flat)

    def take(self, row_N: NDArray[np.int64]) -> TrainingExamples:
        """Some pairs, by index, in the order asked for. The digest says which."""
        rows = np.asarray(row_N, dtype=np.int64)
        return dataclasses.replace(
            self,
            source_P=self.source_P[rows],
            pair_id_P=self.pair_id_P[rows],
            group_P=self.group_P[rows],
            chosen=self.chosen.take(rows),
            rejected=self.rejected.take(rows),
            prompt_tokens_P=self.prompt_tokens_P[rows],
            target_chosen_PR=self.target_chosen_PR[rows],
            target_rejected_PR=self.target_rejected_PR[rows],
            digest=hashlib.sha256(self.digest.encode() + rows.tobytes()).hexdigest(),
        )


def read_examples(
    study: Path,
    *,
    tokenizer: ConversationTokenizer,
    objective: Objective,
    ratings: str | Path | Any | None = None,
    run: str | None = None,
    judge: str | None = None,
    limit: int | None = None,
) -> TrainingExamples:
    """The pairs of a study as training examples, not centred yet.

    Texts are read and tokenised in chunks; what stays are flat arrays: 70,000 pairs of twice 300
    tokens take 170 MB.

    Args:
        study: The study's directory.
        tokenizer: Renders and encodes conversations.
        objective: ``multi-head`` learns ratings, and leaves out pairs that have none;
            ``bradley-terry`` learns which response was preferred, and reads no ratings.
        ratings: Where the ratings are (None: in the study).
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.
        limit: Only so many pairs, drawn by content hash.

    Raises:
        InputError: No study or no pairs in it; no ratings, ratings of other pairs only, a rule
            without a single rating, a rating that is there more than once.
    """
    pairs = _sorted_pairs(study)
    notes: list[str] = []
    targets = None
    if objective == "multi-head":
        source = study if ratings is None else ratings
        found = read_targets(source, keys=_keys(pairs), run=run, judge=judge)
        row_P = np.flatnonzero(found.is_rated_P)[:limit]
        notes += _notes_on_ratings(found, found.take(row_P))
        pairs, targets = pairs.take(pa.array(row_P)), found.take(row_P)
    elif limit is not None:
        pairs = pairs.slice(0, limit)
    return _examples(pairs, targets, tokenizer=tokenizer, notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoded:
    """The tokens of some pairs."""

    chosen: TokenTable
    rejected: TokenTable
    prompt_tokens: NDArray[np.int32]
    group: NDArray[np.int64]
    num_cut_sequences: int
    num_cut_tokens: int


def _sorted_pairs(study: Path) -> pa.Table:
    pairs = read_pairs(open_study(study))
    if pairs.num_rows == 0:
        raise InputError(f"study {study}: it has no pairs to train on; run `encore ingest` first")
    order = pc.sort_indices(pairs, sort_keys=[("pair_id", "ascending"), ("source", "ascending")])
    return pairs.take(order)


def _keys(pairs: pa.Table) -> list[tuple[str, str]]:
    return list(zip(pairs["source"].to_pylist(), pairs["pair_id"].to_pylist(), strict=True))


def _examples(
    pairs: pa.Table,
    targets: Targets | None,
    *,
    tokenizer: ConversationTokenizer,
    notes: Sequence[str],
) -> TrainingExamples:
    encoded = _encode(pairs, tokenizer)
    no_target_PR = np.empty((pairs.num_rows, 0), dtype=np.float32)
    head_ids = (REWARD_HEAD,) if targets is None else targets.rule_ids
    examples = TrainingExamples(
        head_ids=head_ids,
        source_P=np.array(pairs["source"].to_pylist(), dtype=np.object_),
        pair_id_P=np.array(pairs["pair_id"].to_pylist(), dtype=np.object_),
        group_P=encoded.group,
        chosen=encoded.chosen,
        rejected=encoded.rejected,
        prompt_tokens_P=encoded.prompt_tokens,
        target_chosen_PR=no_target_PR if targets is None else targets.chosen_PR,
        target_rejected_PR=no_target_PR if targets is None else targets.rejected_PR,
        mean_R=np.zeros(len(head_ids)),
        digest="",
        notes=(*notes, *_notes_on_tokens(encoded)),
    )
    return dataclasses.replace(examples, digest=_digest(examples))


def _encode(pairs: pa.Table, tokenizer: ConversationTokenizer) -> _Encoded:
    parts = [
        _encode_chunk(records_of(pairs.slice(start, _PAIRS_PER_CHUNK)), tokenizer)
        for start in range(0, pairs.num_rows, _PAIRS_PER_CHUNK)
    ]
    return _Encoded(
        chosen=TokenTable.joined([part.chosen for part in parts]),
        rejected=TokenTable.joined([part.rejected for part in parts]),
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts]),
        group=np.concatenate([part.group for part in parts]),
        num_cut_sequences=sum(part.num_cut_sequences for part in parts),
        num_cut_tokens=sum(part.num_cut_tokens for part in parts),
    )


def _encode_chunk(pairs: Sequence[PreferencePair], tokenizer: ConversationTokenizer) -> _Encoded:
    encoded = tokenizer.encode_pairs(pairs)
    num_cut = [one.num_cut for pair in encoded for one in (pair.chosen, pair.rejected)]
    return _Encoded(
        chosen=TokenTable.of(pair.chosen.token_ids for pair in encoded),
        rejected=TokenTable.of(pair.rejected.token_ids for pair in encoded),
        prompt_tokens=np.array([pair.chosen.num_prompt for pair in encoded], dtype=np.int32),
        group=np.array([group_of(pair) for pair in pairs], dtype=np.int64),
        num_cut_sequences=sum(num > 0 for num in num_cut),
        num_cut_tokens=sum(num_cut),
    )


def _notes_on_ratings(found: Targets, used: Targets) -> list[str]:
    num_pairs, num_rated = len(found.chosen_PR), int(found.is_rated_P.sum())
    num_used = len(used.chosen_PR)
    num_ratings = used.chosen_PR.size + used.rejected_PR.size
    num_missing = int(np.isnan(used.chosen_PR).sum() + np.isnan(used.rejected_PR).sum())
    notes = []
    if num_rated < num_pairs:
        notes.append(
            f"{num_pairs - num_rated} of the study's {num_pairs} pairs have no rating and are "
            "left out"
        )
    if found.num_unknown:
        notes.append(f"{found.num_unknown} rated pairs are not in the study and are passed over")
    if num_used < num_rated:
        notes.append(f"{num_used} of {num_rated} rated pairs are used, as the limit says")
    if num_missing:
        notes.append(
            f"{num_missing} of {num_ratings} ratings are missing; no head learns from its own"
        )
    return notes


def _notes_on_tokens(encoded: _Encoded) -> list[str]:
    if not encoded.num_cut_sequences:
        return []
    num_sequences = len(encoded.chosen) + len(encoded.rejected)
    note = (
        f"{encoded.num_cut_sequences} of {num_sequences} sequences were too long and lost "
        f"{encoded.num_cut_tokens} tokens of their oldest text"
    )
    return [note]


def _digest(examples: TrainingExamples) -> str:
    keys = [examples.head_ids, examples.source_P.tolist(), examples.pair_id_P.tolist()]
    digest = hashlib.sha256(json.dumps(keys).encode())
    for array in (
        examples.chosen.offsets,
        examples.chosen.flat,
        examples.rejected.offsets,
        examples.rejected.flat,
        examples.prompt_tokens_P,
        examples.target_chosen_PR,
        examples.target_rejected_PR,
    ):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
