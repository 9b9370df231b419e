"""Near-duplicates among rules, by sentence embeddings (appendix Rule Set Construction).

The rules are compared in the file's order. A rule is dropped if its cosine to an earlier kept rule
is above the threshold; the most similar kept rule then represents it. So the first wording is kept,
every dropped rule is above the threshold to its representative, and no two kept rules are.
Connected components, the other common choice, would make one cluster of a chain A-B-C, and so drop
C for a rule A that it is not similar to.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.core.number_text import first_names
from encore.core.reporting import SILENT, Reporter
from encore.data.rule_sets import rule_file
from encore.rules.polarity import are_opposed
from encore.rules.pool import PoolRule, check_output, read_pool, write_pool
from encore.rules.rules_options import DedupeConfig
from encore.rules.sentence_embeddings import embed

#: The number of kept rules is reported for these thresholds and for the configured one.
THRESHOLDS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
#: Rows of the similarity matrix in memory at a time. For 10,000 rules they take 20 MB, and the
#: embeddings 15 MB. No similarity is stored, however many pairs are above a threshold.
_ROWS_AT_ONCE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupedPool:
    """Result of `dedupe`.

    Attributes:
        output: File of the kept rules.
        threshold: Cosine above which a rule was dropped.
        num_before: Number of rules in the pool.
        num_rules: Number of kept rules.
        rule_ids: Ids of the kept rules, in the order of the pool.
        clusters: Each kept rule for which others were dropped: ``rule_id``, ``title``, and the
            ``dropped`` rules, most similar first, each with its ``similarity``.
        kept_apart: Kept rules that would have been dropped if they did not seem to say the opposite
            (`encore.rules.polarity`): ``rule_id``, ``title``, and the ids of the similar kept
            rules, ``opposed_to``.
        num_rules_at: Number of kept rules by threshold.
        notes: What a person should read before going on, one sentence each.
    """

    output: str
    threshold: float
    num_before: int
    num_rules: int
    rule_ids: tuple[str, ...]
    clusters: tuple[dict[str, Any], ...]
    kept_apart: tuple[dict[str, Any], ...]
    num_rules_at: dict[str, int]
    notes: tuple[str, ...]


def dedupe(config: DedupeConfig, *, reporter: Reporter = SILENT) -> DedupedPool:
    """Drop near-duplicates of a pool and write the kept rules.

    The description and the rating text are compared, the title is not. A kept rule records the
    provenance of the rules that were dropped for it (`PoolRule.merged_from`).

    Raises:
        EncoreError: The pool cannot be read, or the embedding model is missing.
    """
    check_output(config.output, inputs=[rule_file(config.pool)])
    rules = read_pool(config.pool).rules
    # The paper does not say which texts it compares. A title would repeat the description.
    texts = [" ".join(filter(None, (rule.description, rule.rating_rule))) for rule in rules]
    # The packaged model knows English only: texts in other scripts all look alike to it.
    is_readable_N = np.array([config.model is not None or is_latin(text) for text in texts])
    # A row of zeros is similar to no other row.
    embedding_ND = embed(texts, model=config.model, reporter=reporter) * is_readable_N[:, None]
    thresholds = sorted({*THRESHOLDS, config.threshold})
    demands = [rule.rating_rule or rule.description for rule in rules]
    opposites: dict[int, list[int]] = {}  # kept rows to which a row is similar and opposed

    def may_be_opposite(row: int, kept_row: int) -> bool:
        if is_opposed := are_opposed(demands[row], demands[kept_row], counts_all_negations=True):
            opposites.setdefault(row, []).append(kept_row)
        return is_opposed

    representative_TN = find_near_duplicates(embedding_ND, thresholds, may_be_opposite)
    num_rules_T = (representative_TN == np.arange(len(rules))).sum(axis=1).tolist()
    representative_N = representative_TN[thresholds.index(config.threshold)]
    similarity_N = (embedding_ND * embedding_ND[representative_N]).sum(axis=1)
    clusters, kept = _clusters(rules, representative_N, similarity_N)
    is_kept_N = representative_N == np.arange(len(rules))
    kept_apart = _kept_apart(rules, opposites, embedding_ND, is_kept_N, threshold=config.threshold)
    write_pool(config.output, kept)
    unreadable = [rules[index].rule_id for index in np.flatnonzero(~is_readable_N)]
    return DedupedPool(
        output=str(config.output),
        threshold=config.threshold,
        num_before=len(rules),
        num_rules=len(kept),
        rule_ids=tuple(rule.rule_id for rule in kept),
        clusters=tuple(clusters),
        kept_apart=tuple(kept_apart),
        num_rules_at=dict(zip(map(str, thresholds), num_rules_T, strict=True)),
        notes=tuple(_notes(kept_apart, unreadable)),
    )


def _kept_apart(
    rules: Sequence[PoolRule],
    opposites: Mapping[int, Sequence[int]],
    embedding_ND: NDArray[np.float64],
    is_kept_N: NDArray[np.bool_],
    *,
    threshold: float,
) -> list[dict[str, Any]]:
    """Return the kept rules that demand the opposite of similar kept rules, with these."""
    kept_apart = []
    for row, opposed_rows in sorted(opposites.items()):
        similar = [
            kept_row
            for kept_row in dict.fromkeys(opposed_rows)
            if is_kept_N[kept_row] and embedding_ND[row] @ embedding_ND[kept_row] > threshold
        ]
        if is_kept_N[row] and similar:
            names = rules[row].model_dump(include={"rule_id", "title"})
            kept_apart.append(
                names | {"opposed_to": [rules[kept_row].rule_id for kept_row in similar]}
            )
    return kept_apart


def is_latin(text: str) -> bool:
    """Return True if at least half of a text's letters are of the Latin script."""
    letters = [character for character in text if character.isalpha()]
    num_latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    return 2 * num_latin >= len(letters)


def find_near_duplicates(
    embedding_ND: NDArray[np.float32],
    thresholds: Sequence[float],
    must_be_kept_apart: Callable[[int, int], bool] = lambda _row, _kept_row: False,
) -> NDArray[np.int64]:
    """Find the kept row that represents each row, in one pass over the cosines.

    Rows are read in order; a row is kept unless its cosine to an earlier kept row, from which it
    need not be kept apart, is above the threshold. Time N² · (D + T); memory N · (D + T) and one
    block of `_ROWS_AT_ONCE` · N cosines, whatever the cosines are.

    Args:
        embedding_ND: One embedding of length 1 a row; a row of zeros is similar to no other row.
        thresholds: Cosines from 0 to 1. Rows above a threshold are near-duplicates.
        must_be_kept_apart: Function of a row and an earlier, similar row that is kept; True if the
            later one is no duplicate of it.

    Returns:
        Index of each row's representative at each threshold, shape [T, N]. A kept row represents
        itself.
    """
    limit_T, num_rows = np.array(thresholds, dtype=np.float32), len(embedding_ND)
    representative_TN = np.tile(np.arange(num_rows), (len(thresholds), 1))
    is_kept_TN = np.zeros(representative_TN.shape, dtype=np.bool_)
    for start in range(0, num_rows, _ROWS_AT_ONCE):
        end = start + _ROWS_AT_ONCE
        similarity_BN = embedding_ND[start:end] @ embedding_ND[:end].T
        for row, similarity_N in enumerate(similarity_BN, start):
            # is_kept_TN is still False for this row and later ones.
            while True:
                similarity_TN = np.where(is_kept_TN[:, :end], similarity_N, np.float32(-1))
                nearest_T = similarity_TN.argmax(axis=1)
                is_near_T = similarity_TN.max(axis=1) > limit_T
                nearest = np.unique(nearest_T[is_near_T]).tolist()
                apart = [kept_row for kept_row in nearest if must_be_kept_apart(row, kept_row)]
                if not apart:
                    break
                similarity_N[apart] = -1  # look for the next nearest
            representative_TN[is_near_T, row] = nearest_T[is_near_T]
            is_kept_TN[:, row] = ~is_near_T
    return representative_TN


def _clusters(
    rules: Sequence[PoolRule],
    representative_N: NDArray[np.int64],
    similarity_N: NDArray[np.float32],
) -> tuple[list[dict[str, Any]], list[PoolRule]]:
    """Return the clusters with dropped rules, and the kept rules with all their provenance."""
    # The rules dropped for each kept rule, most similar first.
    duplicates: dict[int, list[int]] = {index: [] for index in np.unique(representative_N).tolist()}
    for index in np.argsort(-similarity_N, kind="stable").tolist():
        if representative_N[index] != index:
            duplicates[int(representative_N[index])].append(index)
    clusters, kept = [], []
    for kept_index, indices in duplicates.items():
        representative = rules[kept_index]
        kept.append(representative.absorbing(*(rules[index] for index in indices)))
        dropped = [
            {
                **rules[index].model_dump(include={"rule_id", "title", "source"}),
                "similarity": round(float(similarity_N[index]), 4),
            }
            for index in indices
        ]
        if dropped:
            names = representative.model_dump(include={"rule_id", "title"})
            clusters.append({**names, "dropped": dropped})
    return clusters, kept


def _notes(kept_apart: Sequence[Mapping[str, Any]], unreadable: Sequence[str]) -> Iterator[str]:
    if kept_apart:
        pairs = [f"{rule['rule_id']} (beside {rule['opposed_to'][0]})" for rule in kept_apart]
        yield (
            f"{len(pairs):,} rules are similar to another one but seem to say the opposite; they "
            f"were kept: {first_names(pairs)}"
        )
    if unreadable:
        yield (
            f"{len(unreadable):,} rules are in a script that the packaged model cannot read; they "
            "were kept without a comparison (--model FOLDER names a model for their language): "
            f"{first_names(unreadable)}"
        )
