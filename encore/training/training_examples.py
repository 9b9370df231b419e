"""What a reward model is trained on: tokens and targets of every pair; which are held out.

Suffixes: P pairs, N sequences, R heads, S responses of a pair (chosen, rejected), G prompt groups.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.data.pairs import missing_pairs_error, read_pairs, records_of
from encore.data.records import PreferencePair
from encore.data.study import Study
from encore.training.training_config import Objective
from encore.warehouse import PairRatings, open_ratings
from encore.weighting.weigh import open_evidence
from encore.weighting.weight_vector import Origin

if TYPE_CHECKING:
    from encore.model.conversation import ConversationTokenizer, EncodedPair
    from encore.model.layouts import TokenIds

#: The one head of a model that learns from preferences instead of ratings.
REWARD_HEAD = "reward"
#: So many pairs have their texts in memory at a time.
_PAIRS_PER_CHUNK = 1024

_Floats = NDArray[np.float32]
_Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingExamples:
    """Pairs of a study, tokenised, in the order of (pair_id, source).

    The order does not depend on how the study was made. A rating is its target plus the mean of its
    head: ``target_PSR + mean_R``. `read_examples` gives ratings and means of 0; `centre` moves the
    means over.

    Attributes:
        head_ids: The R heads: rules in rule-set order, or `REWARD_HEAD` alone.
        pair_id_P: Id of each pair, shape [P], text.
        group_P: `group_of` each pair, shape [P].
        chosen: Tokens of prompt and preferred response.
        rejected: Tokens of prompt and other response.
        prompt_tokens_P: How many tokens of ``chosen`` are the rendered prompt, shape [P].
        target_PSR: What each head is to say of each response, shape [P, 2, R], NaN where a rating
            is missing; [P, 2, 0] for objective bradley-terry.
        mean_R: Taken off each head's ratings, shape [R].
        digest: SHA-256 of all of this, and of the pairs' sources, before centring.
        notes: What was left out, cut or missing, counted, a sentence each.
        ratings: Where the targets came from; None for objective bradley-terry.
        synthetic: What of the pairs and the ratings is synthetic, in words.
    """

    head_ids: tuple[str, ...]
    pair_id_P: NDArray[np.object_]
    group_P: NDArray[np.int64]
    chosen: Sequence[TokenIds]
    rejected: Sequence[TokenIds]
    prompt_tokens_P: NDArray[np.int32]
    target_PSR: _Floats
    mean_R: NDArray[np.float64]
    digest: str = ""
    notes: tuple[str, ...] = ()
    ratings: Origin | None = None
    synthetic: tuple[str, ...] = ()

    @property
    def num_pairs(self) -> int:
        """P."""
        return len(self.pair_id_P)

    @property
    def length_P(self) -> NDArray[np.int64]:
        """Tokens of both responses of each pair, each as if it stood alone, shape [P]."""
        both = zip(self.chosen, self.rejected, strict=True)
        return np.array([len(chosen) + len(rejected) for chosen, rejected in both], dtype=np.int64)


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

    Objective ``multi-head`` learns ratings (from the study unless ``ratings`` says where; of one
    ``run`` and ``judge``) and leaves out pairs that have none. ``bradley-terry`` learns which
    response was preferred, and reads no ratings. ``limit`` draws pairs by content hash. 70,000
    pairs of twice 300 tokens take 170 MB.

    Raises:
        InputError: No pairs in the study; no ratings, ratings of other pairs only, a rating that is
            there more than once.
    """
    pairs = read_pairs(study)
    if pairs.num_rows == 0:
        raise missing_pairs_error(study) or InputError(
            f"study {study.path}: it has no pairs to train on; run `encore ingest` first"
        )
    pairs = pairs.sort_by([("pair_id", "ascending"), ("source", "ascending")])
    notes: list[str] = []
    head_ids: tuple[str, ...] = (REWARD_HEAD,)
    origin, synthetic = None, study.synthetic
    if objective == "bradley-terry":
        pairs = pairs.slice(0, limit)
        target_PSR = np.empty((pairs.num_rows, 2, 0), dtype=np.float32)
    else:
        source = study.path if ratings is None else ratings
        opened = open_ratings(source, run=run, judge=judge)
        synthetic = tuple(dict.fromkeys((*synthetic, *opened.synthetic)))
        with open_evidence(opened) as evidence:
            rated, origin = evidence.read_pairs(), evidence.origin
        head_ids = rated.rule_ids
        label = str(source) if isinstance(source, str | Path) else "table"
        used_P, target_PSR, notes = _rated_rows(rated, pairs, label, limit)
        pairs = pairs.take(pa.array(used_P))
    examples = _encode(pairs, target_PSR, tokenizer, head_ids=head_ids, notes=notes)
    return dataclasses.replace(examples, ratings=origin, synthetic=synthetic)


def _rated_rows(
    rated: PairRatings, pairs: pa.Table, label: str, limit: int | None
) -> tuple[_Rows, _Floats, list[str]]:
    """Which pairs are learnt from, their ratings [P, S, R], NaN where missing, and notes."""
    keys = list(zip(pairs["source"].to_pylist(), pairs["pair_id"].to_pylist(), strict=True))
    row_of = {key: row for row, key in enumerate(keys)}
    rated_keys = zip(rated.source_P.tolist(), rated.pair_id_P.tolist(), strict=True)
    row_N = np.array([row_of.get(key, -1) for key in rated_keys], dtype=np.int64)
    is_known_N = row_N >= 0
    if not is_known_N.any():
        raise InputError(
            f"ratings {label}: none of its {rated.num_pairs} rated pairs (such as "
            f"{rated.pair_id_P[0]} of source {rated.source_P[0]}) is among the {len(keys)} pairs "
            f"of the study (such as {keys[0][1]} of source {keys[0][0]}); give the ratings of this "
            "study's pairs, or ingest what was rated under the source that the ratings name"
        )
    target_PSR = np.full((len(keys), 2, len(rated.rule_ids)), np.nan, dtype=np.float32)
    both_NSR = np.stack([rated.chosen_PR, rated.rejected_PR], axis=1)
    target_PSR[row_N[is_known_N]] = both_NSR[is_known_N]
    rated_P = np.flatnonzero(~np.isnan(target_PSR).all(axis=(1, 2)))
    used_PSR = target_PSR[rated_P[:limit]]
    num_left_out = len(keys) - len(rated_P), len(rated_P) - len(used_PSR)
    counted = (
        (num_left_out[0], f"of the study's {len(keys)} pairs have no rating and are left out"),
        ((~is_known_N).sum(), "rated pairs are not in the study and are passed over"),
        (num_left_out[1], f"of {len(rated_P)} rated pairs are left out, as the limit says"),
        (
            np.isnan(used_PSR).sum(),
            f"of {used_PSR.size} ratings are missing; no head learns from its own",
        ),
    )
    return rated_P[:limit], used_PSR, [f"{num} {text}" for num, text in counted if num]


def _encode(
    pairs: pa.Table,
    target_PSR: _Floats,
    tokenizer: ConversationTokenizer,
    *,
    head_ids: tuple[str, ...],
    notes: list[str],
) -> TrainingExamples:
    """The examples, of which only one chunk's texts are in memory at a time."""
    encoded: list[EncodedPair] = []
    groups: list[int] = []
    for start in range(0, pairs.num_rows, _PAIRS_PER_CHUNK):
        records = records_of(pairs.slice(start, _PAIRS_PER_CHUNK))
        groups += map(group_of, records)
        encoded += tokenizer.encode_pairs(records)
    num_cut = [response.num_cut for pair in encoded for response in pair]
    if any(num_cut):
        notes.append(
            f"{np.count_nonzero(num_cut)} of {len(num_cut)} sequences were too long and lost "
            f"{sum(num_cut)} tokens of their oldest text"
        )
    examples = TrainingExamples(
        head_ids=head_ids,
        pair_id_P=np.array(pairs["pair_id"].to_pylist(), dtype=np.object_),
        group_P=np.array(groups, dtype=np.int64),
        chosen=[pair.chosen.token_ids for pair in encoded],
        rejected=[pair.rejected.token_ids for pair in encoded],
        prompt_tokens_P=np.array([pair.chosen.num_prompt for pair in encoded], dtype=np.int32),
        target_PSR=target_PSR,
        mean_R=np.zeros(len(head_ids)),
        notes=tuple(notes),
    )
    return dataclasses.replace(examples, digest=_digest(examples, pairs["source"].to_pylist()))


def _digest(examples: TrainingExamples, sources: Sequence[str]) -> str:
    keys = [examples.head_ids, sources, examples.pair_id_P.tolist()]
    digest = hashlib.sha256(json.dumps(keys).encode())
    add_sequences(digest, examples.chosen)
    add_sequences(digest, examples.rejected)
    digest.update(examples.prompt_tokens_P.data)
    for side in (0, 1):
        digest.update(np.ascontiguousarray(examples.target_PSR[:, side]).data)
    return digest.hexdigest()


def add_sequences(digest: hashlib._Hash, sequences: Sequence[TokenIds]) -> None:
    """Make sequences part of a digest: where each one ends, and every token."""
    ends = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
    digest.update(ends.data)
    for token_ids in sequences:
        digest.update(token_ids.data)


# --- held-out pairs and centres -----------------------------------------------------------------


class Split(NamedTuple):
    """Rows of examples to learn from and to measure on, ascending; no prompt group is in both."""

    train_rows: _Rows
    evaluation_rows: _Rows


def group_of(pair: PreferencePair) -> int:
    """A content hash of the prompt's first human turn, as a signed 64-bit number.

    Conversations that begin alike continue alike: pairs of one group are never parted between
    training and evaluation.
    """
    first = next((turn.content for turn in pair.prompt if turn.role == "user"), "")
    digest = hashlib.sha256(first.strip().encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def place_of(group: int, *, seed: int) -> float:
    """Where a group falls in [0, 1), evenly spread: it depends on its text and the seed alone."""
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2.0**48  # 48 bits: exact in a float, never 1


def split(examples: TrainingExamples, *, evaluation_share: float, seed: int) -> Split:
    """A share of the prompt groups, drawn by content hash, for evaluation.

    The draw depends on a group's text and the seed alone: more data moves no pair from one side to
    the other, and a larger share only adds to the evaluation. Where a share above 0 draws no group,
    as it may in a handful of pairs, the group nearest to being drawn is held out.

    Args:
        examples: The pairs.
        evaluation_share: From 0 (none) to below 1.
        seed: Of the draw.

    Raises:
        InputError: No pair left to learn from.
    """
    group_G, index_P = np.unique(examples.group_P, return_inverse=True)
    place_P = np.array([place_of(int(group), seed=seed) for group in group_G])[index_P]
    is_evaluated_P = place_P < evaluation_share
    if evaluation_share > 0 and len(group_G) > 1 and not is_evaluated_P.any():
        is_evaluated_P = place_P == place_P.min()
    if is_evaluated_P.all():
        raise InputError(
            f"evaluation_share {evaluation_share}: all {examples.num_pairs} pairs fall into the "
            "evaluation and none is left to learn from; give a smaller share or more pairs"
        )
    return Split(np.flatnonzero(~is_evaluated_P), np.flatnonzero(is_evaluated_P))


def centre(examples: TrainingExamples, *, train_rows: _Rows) -> TrainingExamples:
    """The same examples with each head's mean over the training pairs taken off its targets.

    Bias-free heads learn centred targets, so that composing them folds exactly into one head.
    Evaluation pairs are centred by the same means and have no part in them. Chosen and rejected
    responses count together. Objective bradley-terry has no targets, so nothing changes.

    Raises:
        InputError: A head without a rating in any training pair.
    """
    if examples.target_PSR.size == 0:
        return examples
    target_TSR = examples.target_PSR[train_rows]
    num_R = (~np.isnan(target_TSR)).sum(axis=(0, 1))
    for head_id in compress(examples.head_ids, num_R == 0):
        raise InputError(
            f"rule {head_id}: it has no rating in any of the {len(train_rows)} training pairs, so "
            "its head has nothing to learn; leave the rule out of the ratings, rate more pairs or "
            "take another seed"
        )
    sum_R = np.nansum(target_TSR, axis=(0, 1), dtype=np.float64)
    return move_centres(examples, sum_R / num_R)


def move_centres(examples: TrainingExamples, offset_R: NDArray[np.float64]) -> TrainingExamples:
    """The same ratings, counted from centres that lie ``offset_R`` higher, shape [R]."""
    return dataclasses.replace(
        examples,
        target_PSR=(examples.target_PSR - offset_R).astype(np.float32),
        mean_R=examples.mean_R + offset_R,
    )
