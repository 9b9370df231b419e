"""Training examples: tokens and targets of every pair, and the choice of held-out pairs.

Suffixes: P pairs, N rated pairs, T training pairs, R heads, S responses of a pair (chosen,
rejected), G prompt groups.
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
from encore.model.model_options import MAX_SET_ASIDE_SHARE
from encore.model.template_refusals import find_refusals
from encore.training.training_options import Objective
from encore.warehouse import PairRatings, RatingKind, Scale, open_ratings
from encore.weighting.preference_head import PREFERENCE_HEAD
from encore.weighting.weigh import open_evidence
from encore.weighting.weight_vector import Origin

if TYPE_CHECKING:
    from encore.model.conversation import ConversationTokenizer, EncodedPair
    from encore.model.layouts import TokenIds

#: Id of the single head of a model that learns from preferences instead of ratings.
REWARD_HEAD = "reward"
#: Number of pairs whose texts are in memory at a time.
_PAIRS_PER_CHUNK = 1024

_Floats = NDArray[np.float32]
_Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingExamples:
    """Tokenised pairs of a study with their targets, ordered by (pair_id, source).

    The order does not depend on how the study was made. A rating is ``target_PSR + mean_R``. In the
    result of `read_examples` the means are 0; `centre` moves them from the targets to ``mean_R``.

    Attributes:
        head_ids: Id of each head: rules in rule-set order, after head 0 if there is one
            (`add_preference_head`); or `REWARD_HEAD` alone.
        pair_id_P: Id of each pair, shape [P].
        group_P: Prompt group of each pair (`prompt_group`), shape [P].
        chosen: Token ids of prompt and chosen response, one array a pair.
        rejected: Token ids of prompt and rejected response, one array a pair.
        prompt_tokens_P: Number of tokens of the rendered prompt in ``chosen``, shape [P].
        target_PSR: Target of each head for each response, shape [P, 2, R], NaN if a rating is
            missing, as all of head 0 are; [P, 2, 0] for objective bradley-terry.
        mean_R: Mean that was subtracted from each head's ratings, shape [R].
        digest: SHA-256 of all of the above, and of the pairs' sources, before centring and without
            head 0.
        notes: Sentences that count pairs left out, texts cut and ratings missing.
        ratings: Origin of the targets; None for objective bradley-terry.
        synthetic: Names of the synthetic parts of pairs and ratings; empty if there are none.
        num_set_aside: Number of pairs that the chat template refuses; they are left out.
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
    num_set_aside: int = 0

    @property
    def num_pairs(self) -> int:
        """Return P, the number of pairs."""
        return len(self.pair_id_P)

    @property
    def length_P(self) -> NDArray[np.int64]:
        """Return the tokens of both sequences of each pair, shape [P]; the prompt counts twice."""
        pairs = zip(self.chosen, self.rejected, strict=True)
        return np.array([len(chosen) + len(rejected) for chosen, rejected in pairs], dtype=np.int64)


def read_examples(
    study: Study,
    *,
    tokenizer: ConversationTokenizer,
    objective: Objective,
    ratings: str | Path | Any | None = None,
    run: str | None = None,
    judge: str | None = None,
    limit: int | None = None,
    max_set_aside_share: float = MAX_SET_ASIDE_SHARE,
    scale: Scale | None = None,
    rule_columns: str | None = None,
    rating: RatingKind | None = None,
) -> TrainingExamples:
    """Read the pairs of a study as training examples that are not centred yet.

    70,000 pairs with two sequences of 300 tokens take 170 MB.

    Args:
        study: Opened study with the pairs.
        tokenizer: Tokenizer of the backbone.
        objective: ``multi-head`` learns ratings and leaves out pairs without any.
            ``bradley-terry`` learns which response was chosen, and reads no ratings.
        ratings: Ratings to learn: a path or an Arrow table. None reads those of the study.
        run: Key of the rating run to read, or a unique prefix of it.
        judge: Name of the judge whose ratings are read.
        limit: Most pairs, drawn by content hash.
        max_set_aside_share: Largest share of these pairs that the chat template may refuse.
        scale: Ends of the scale of a table's ratings (`open_ratings`).
        rule_columns: Columns of a wide table that are rules, likewise.
        rating: The kind of rating to learn, likewise.

    Raises:
        InputError: The study has no pairs; there are no ratings, or only of other pairs; a rating
            occurs twice; or the chat template refuses a larger share of the pairs.
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
        opened = open_ratings(
            study if ratings is None else ratings,
            run=run,
            judge=judge,
            scale=scale,
            rule_columns=rule_columns,
            rating=rating,
        )
        synthetic = tuple(dict.fromkeys((*synthetic, *opened.synthetic)))
        with open_evidence(opened) as evidence:
            rated, origin = evidence.read_pairs(), evidence.origin
        head_ids = rated.rule_ids
        row_P, target_PSR, notes = _match_ratings(rated, pairs, opened.label, limit)
        pairs = pairs.take(pa.array(row_P))
    batches = pairs.to_batches(_PAIRS_PER_CHUNK)
    refusals = find_refusals(tokenizer, (pair for batch in batches for pair in records_of(batch)))
    refusals.check(max_set_aside_share, model=tokenizer.name)
    notes = [*notes, *refusals.notes]
    if refusals.num_set_aside:
        is_taken_P = np.array([reason is None for reason in refusals.reason_P])
        pairs, target_PSR = pairs.filter(pa.array(is_taken_P)), target_PSR[is_taken_P]
    examples = _encode(pairs, target_PSR, tokenizer, head_ids=head_ids, notes=notes)
    return dataclasses.replace(
        examples, ratings=origin, synthetic=synthetic, num_set_aside=refusals.num_set_aside
    )


def _match_ratings(
    rated: PairRatings, pairs: pa.Table, label: str, limit: int | None
) -> tuple[_Rows, _Floats, list[str]]:
    """Match ratings with the pairs of the study.

    Returns:
        The rows of the rated pairs, at most ``limit``; their ratings, shape [P, S, R], NaN if
        missing; and notes that count what was left out or missing.
    """
    keys = list(zip(pairs["source"].to_pylist(), pairs["pair_id"].to_pylist(), strict=True))
    row_by_key = {key: row for row, key in enumerate(keys)}
    rated_keys = zip(rated.source_P.tolist(), rated.pair_id_P.tolist(), strict=True)
    row_N = np.array([row_by_key.get(key, -1) for key in rated_keys], dtype=np.int64)
    is_in_study_N = row_N >= 0
    if not is_in_study_N.any():
        raise InputError(
            f"ratings {label}: none of its {rated.num_pairs} rated pairs (such as "
            f"{rated.pair_id_P[0]} of source {rated.source_P[0]}) is among the {len(keys)} pairs "
            f"of the study (such as {keys[0][1]} of source {keys[0][0]}); give the ratings of this "
            "study's pairs, or ingest what was rated under the source that the ratings name"
        )
    target_PSR = np.full((len(keys), 2, len(rated.rule_ids)), np.nan, dtype=np.float32)
    rating_NSR = np.stack([rated.chosen_PR, rated.rejected_PR], axis=1)
    target_PSR[row_N[is_in_study_N]] = rating_NSR[is_in_study_N]
    rated_rows = np.flatnonzero(~np.isnan(target_PSR).all(axis=(1, 2)))
    row_P = rated_rows[:limit]
    target_PSR = target_PSR[row_P]
    num_not_applicable = 0
    if rated.not_applicable_2PR is not None:
        is_read_N = np.isin(row_N, row_P)
        num_not_applicable = int(rated.not_applicable_2PR[:, is_read_N].sum())
    counts = (
        (
            len(keys) - len(rated_rows),
            f"of the study's {len(keys)} pairs have no rating and are left out",
        ),
        ((~is_in_study_N).sum(), "rated pairs are not in the study and are left out"),
        (
            len(rated_rows) - len(row_P),
            f"of {len(rated_rows)} rated pairs are left out, because of the limit",
        ),
        (
            np.isnan(target_PSR).sum() - num_not_applicable,
            f"of {target_PSR.size} ratings are missing; their heads do not learn from them",
        ),
        (
            num_not_applicable,
            f"of {target_PSR.size} responses and rules do not apply; the heads do not learn there",
        ),
    )
    return row_P, target_PSR, [f"{count} {text}" for count, text in counts if count]


def _encode(
    pairs: pa.Table,
    target_PSR: _Floats,
    tokenizer: ConversationTokenizer,
    *,
    head_ids: tuple[str, ...],
    notes: list[str],
) -> TrainingExamples:
    """Tokenise pairs into examples. Only the texts of one chunk are in memory at a time."""
    encoded: list[EncodedPair] = []
    groups: list[int] = []
    for start in range(0, pairs.num_rows, _PAIRS_PER_CHUNK):
        records = records_of(pairs.slice(start, _PAIRS_PER_CHUNK))
        groups += map(prompt_group, records)
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
    """Return the SHA-256 of ids, tokens and targets, with the source of each pair."""
    keys = [examples.head_ids, sources, examples.pair_id_P.tolist()]
    digest = hashlib.sha256(json.dumps(keys).encode())
    add_sequences(digest, examples.chosen)
    add_sequences(digest, examples.rejected)
    digest.update(examples.prompt_tokens_P.data)
    for side in (0, 1):
        digest.update(np.ascontiguousarray(examples.target_PSR[:, side]).data)
    return digest.hexdigest()


def add_sequences(digest: hashlib._Hash, sequences: Sequence[TokenIds]) -> None:
    """Update a digest with the ends and the tokens of sequences."""
    ends = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
    digest.update(ends.data)
    for token_ids in sequences:
        digest.update(token_ids.data)


# --- held-out pairs and centres -----------------------------------------------------------------


class Split(NamedTuple):
    """Rows of the training pairs and of the held-out pairs, in ascending order.

    No prompt group has pairs in both.
    """

    train_rows: _Rows
    evaluation_rows: _Rows


def prompt_group(pair: PreferencePair) -> int:
    """Return a hash of the prompt's first user turn, as a signed 64-bit number.

    Conversations with the same first turn are similar, so pairs of one group are never divided
    between training and evaluation.
    """
    first_turn = next((turn.content for turn in pair.prompt if turn.role == "user"), "")
    digest = hashlib.sha256(first_turn.strip().encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def group_draw(group: int, *, seed: int) -> float:
    """Return a uniform number in [0, 1) that depends only on the group and the seed."""
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2.0**48  # 48 bits: exact in a float, never 1


def split(examples: TrainingExamples, *, evaluation_share: float, seed: int) -> Split:
    """Hold out a share of the prompt groups for evaluation.

    The choice depends only on a group's text and the seed. So more data moves no pair between
    training and evaluation, and a larger share only adds held-out pairs. If a share above 0 holds
    out no group, as may happen with a few pairs, the group with the lowest draw is held out.

    Args:
        examples: Pairs to divide into two parts.
        evaluation_share: Share of the groups, from 0 (none) to below 1.
        seed: Seed of the draw.

    Raises:
        InputError: No training pair is left.
    """
    group_G, index_P = np.unique(examples.group_P, return_inverse=True)
    draw_P = np.array([group_draw(int(group), seed=seed) for group in group_G])[index_P]
    is_evaluated_P = draw_P < evaluation_share
    if evaluation_share > 0 and len(group_G) > 1 and not is_evaluated_P.any():
        is_evaluated_P = draw_P == draw_P.min()
    if is_evaluated_P.all():
        raise InputError(
            f"evaluation_share {evaluation_share}: all {examples.num_pairs} pairs fall into the "
            "evaluation and none is left to learn from; give a smaller share or more pairs"
        )
    return Split(np.flatnonzero(~is_evaluated_P), np.flatnonzero(is_evaluated_P))


def centre(examples: TrainingExamples, *, train_rows: _Rows) -> TrainingExamples:
    """Subtract from all targets each head's mean over the training pairs.

    Heads have no bias and learn centred targets, so that their weighted sum folds exactly into one
    head. Held-out pairs do not influence the means. Chosen and rejected responses count equally.
    Objective bradley-terry has no targets, so its examples are returned as they are.

    Raises:
        InputError: A head has no rating in any training pair.
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


def add_preference_head(examples: TrainingExamples) -> TrainingExamples:
    """Return centred examples with head 0 before the heads of the rules.

    Head 0 has no ratings: its targets are missing. It learns which response was chosen.

    Raises:
        InputError: A rule has the id of head 0.
    """
    if PREFERENCE_HEAD in examples.head_ids:
        raise InputError(
            f"rule {PREFERENCE_HEAD!r}: head 0 has this id; expected another id of the rule: rate "
            "it under another id, or train with --preference-head none"
        )
    return dataclasses.replace(
        examples,
        head_ids=(PREFERENCE_HEAD, *examples.head_ids),
        target_PSR=np.insert(examples.target_PSR, 0, np.nan, axis=2),
        mean_R=np.insert(examples.mean_R, 0, 0.0),
    )


def move_centres(examples: TrainingExamples, offset_R: NDArray[np.float64]) -> TrainingExamples:
    """Return the same ratings with means that are higher, and targets lower, by ``offset_R``."""
    return dataclasses.replace(
        examples,
        target_PSR=(examples.target_PSR - offset_R).astype(np.float32),
        mean_R=examples.mean_R + offset_R,
    )
