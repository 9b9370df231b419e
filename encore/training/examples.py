"""What a reward model is trained on: tokens of both responses of every pair, and their targets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from encore.data.pairs import read_pairs, records_of
from encore.data.study import Study
from encore.errors import InputError
from encore.training.config import Objective
from encore.training.splits import group_of
from encore.warehouse import PairRatings, open_ratings
from encore.weighting.weigh import open_evidence

if TYPE_CHECKING:
    from encore.model.conversation import ConversationTokenizer

# Suffixes: P pairs, N sequences, R heads.

_Floats = NDArray[np.float32]
#: A pair's source and id.
_PairKey = tuple[str, str]

#: The one head of a model that learns from preferences instead of ratings.
REWARD_HEAD = "reward"
#: So many pairs have their texts in memory at a time.
_PAIRS_PER_CHUNK = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTable:
    """Sequences of token ids in one flat array: 4 bytes a token and 8 a sequence.

    Attributes:
        flat: The ids of all sequences, shape [tokens], int32.
        offsets: Where each sequence begins, and at the end where the last one stops, shape
            [N + 1], int64.
    """

    flat: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[NDArray[np.int32] | Sequence[int]]) -> Self:
        """A table of these sequences."""
        arrays = [np.asarray(sequence, dtype=np.int32) for sequence in sequences]
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        flat = np.concatenate([np.empty(0, dtype=np.int32), *arrays])
        return cls(flat=flat, offsets=np.r_[np.int64(0), np.cumsum(lengths)])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence, shape [N]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        """One sequence: a view, not a copy."""
        place = int(index)
        if not 0 <= place < len(self):
            raise IndexError(f"sequence {place} of a table of {len(self)}")
        return self.flat[self.offsets[place] : self.offsets[place + 1]]

    def take(self, row_N: NDArray[np.int64] | Sequence[int]) -> TokenTable:
        """Some sequences, in the order asked for."""
        return TokenTable.of(self[row] for row in row_N)


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
    study: Study,
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
        study: The study.
        tokenizer: Renders and encodes conversations.
        objective: ``multi-head`` learns ratings, and leaves out pairs that have none;
            ``bradley-terry`` learns which response was preferred, and reads no ratings.
        ratings: Where the ratings are (None: in the study).
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.
        limit: Only so many pairs, drawn by content hash.

    Raises:
        InputError: No pairs in the study; no ratings, ratings of other pairs only, a rule without
            a single rating, a rating that is there more than once.
    """
    pairs = read_pairs(study)
    if pairs.num_rows == 0:
        raise InputError(
            f"study {study.path}: it has no pairs to train on; run `encore ingest` first"
        )
    order = [("pair_id", "ascending"), ("source", "ascending")]
    pairs = pairs.take(pc.sort_indices(pairs, sort_keys=order))
    if objective == "bradley-terry":
        pairs = pairs.slice(0, limit)
        head_ids: tuple[str, ...] = (REWARD_HEAD,)
        notes: list[str] = []
        chosen_PR = rejected_PR = np.empty((pairs.num_rows, 0), dtype=np.float32)
    else:
        source = study.path if ratings is None else ratings
        label = str(source) if isinstance(source, str | Path) else "table"
        with open_evidence(open_ratings(source, run=run, judge=judge)) as evidence:
            rated = evidence.read_pairs()
        head_ids = rated.rule_ids
        used_P, (chosen_PR, rejected_PR), notes = _rated_rows(rated, pairs, label, limit)
        pairs = pairs.take(pa.array(used_P))
    tokens, notes_on_tokens = _encode(pairs, tokenizer)
    examples = TrainingExamples(
        head_ids=head_ids,
        source_P=np.array(pairs["source"].to_pylist(), dtype=np.object_),
        pair_id_P=np.array(pairs["pair_id"].to_pylist(), dtype=np.object_),
        target_chosen_PR=chosen_PR,
        target_rejected_PR=rejected_PR,
        mean_R=np.zeros(len(head_ids)),
        digest="",
        notes=(*notes, *notes_on_tokens),
        **tokens,
    )
    return dataclasses.replace(examples, digest=_digest(examples))


def _rated_rows(
    rated: PairRatings, pairs: pa.Table, label: str, limit: int | None
) -> tuple[NDArray[np.int64], _Floats, list[str]]:
    """Which pairs are learnt from, their ratings [2, P, R], NaN where missing, and notes."""
    keys = list(zip(pairs["source"].to_pylist(), pairs["pair_id"].to_pylist(), strict=True))
    row_of = {key: row for row, key in enumerate(keys)}
    rated_keys = zip(rated.source_P.tolist(), rated.pair_id_P.tolist(), strict=True)
    row_N = np.array([row_of.get(key, -1) for key in rated_keys], dtype=np.int64)
    is_known_N = row_N >= 0
    if not is_known_N.any():
        raise InputError(_why_none_match(label, rated, keys))
    target_SPR = np.full((2, len(keys), len(rated.rule_ids)), np.nan, dtype=np.float32)
    for target_PR, rating_NR in zip(target_SPR, (rated.chosen_PR, rated.rejected_PR), strict=True):
        target_PR[row_N[is_known_N]] = rating_NR[is_known_N]
    is_missing_SPR = np.isnan(target_SPR)
    is_unrated_R = np.asarray(is_missing_SPR.all(axis=(0, 1)))
    for rule_id, is_unrated in zip(rated.rule_ids, is_unrated_R.tolist(), strict=True):
        if is_unrated:
            raise InputError(
                f"ratings {label}: rule {rule_id} has no rating of any of the {len(keys)} pairs to "
                "learn from, so its head has nothing to learn; leave the rule out of the ratings "
                "or rate it again"
            )
    rated_P = np.flatnonzero(~is_missing_SPR.all(axis=(0, 2)))
    used_P = rated_P[:limit]
    notes = _notes_on_ratings(
        target_SPR[:, used_P], len(rated_P), len(keys), int((~is_known_N).sum())
    )
    return used_P, target_SPR[:, used_P], notes


def _why_none_match(label: str, rated: PairRatings, keys: Sequence[_PairKey]) -> str:
    message = (
        f"ratings {label}: none of its {rated.num_pairs} rated pairs is among the "
        f"{len(keys)} pairs of the study"
    )
    ids = {pair_id for _, pair_id in keys}
    if ids.intersection(rated.pair_id_P.tolist()):
        found = ", ".join(sorted(set(rated.source_P.tolist())))
        expected = ", ".join(sorted({source for source, _ in keys}))
        return (
            f"{message}: the ids are the same, the sources are not (ratings: {found}; study: "
            f"{expected}); ingest the data under the label that the ratings name as source"
        )
    return (
        f"{message} (for example pair {rated.pair_id_P[0]!r}; the study has {keys[0][1]!r}); give "
        "the ratings of this study's pairs, or ingest the data that was rated"
    )


def _notes_on_ratings(
    used_SPR: _Floats, num_rated: int, num_pairs: int, num_unknown: int
) -> list[str]:
    num_missing, num_used = int(np.isnan(used_SPR).sum()), used_SPR.shape[1]
    notes = []
    if num_rated < num_pairs:
        notes.append(
            f"{num_pairs - num_rated} of the study's {num_pairs} pairs have no rating and are "
            "left out"
        )
    if num_unknown:
        notes.append(f"{num_unknown} rated pairs are not in the study and are passed over")
    if num_used < num_rated:
        notes.append(f"{num_used} of {num_rated} rated pairs are used, as the limit says")
    if num_missing:
        notes.append(
            f"{num_missing} of {used_SPR.size} ratings are missing; no head learns from its own"
        )
    return notes


def _encode(pairs: pa.Table, tokenizer: ConversationTokenizer) -> tuple[dict[str, Any], list[str]]:
    """The fields of `TrainingExamples` that follow from the texts, read in chunks, and notes."""
    chosen, rejected, prompt_tokens, groups = [], [], [], []
    num_cut: list[int] = []
    for start in range(0, pairs.num_rows, _PAIRS_PER_CHUNK):
        records = records_of(pairs.slice(start, _PAIRS_PER_CHUNK))
        groups += [group_of(pair) for pair in records]
        for encoded in tokenizer.encode_pairs(records):
            chosen.append(np.asarray(encoded.chosen.token_ids, dtype=np.int32))
            rejected.append(np.asarray(encoded.rejected.token_ids, dtype=np.int32))
            prompt_tokens.append(encoded.chosen.num_prompt)
            num_cut += [encoded.chosen.num_cut, encoded.rejected.num_cut]
    fields = {
        "chosen": TokenTable.of(chosen),
        "rejected": TokenTable.of(rejected),
        "prompt_tokens_P": np.array(prompt_tokens, dtype=np.int32),
        "group_P": np.array(groups, dtype=np.int64),
    }
    if not any(num_cut):
        return fields, []
    note = (
        f"{sum(num > 0 for num in num_cut)} of {len(num_cut)} sequences were too long and lost "
        f"{sum(num_cut)} tokens of their oldest text"
    )
    return fields, [note]


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
