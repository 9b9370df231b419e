"""Near-duplicates among rules, by sentence embeddings (appendix Rule Set Construction).

The rules are gone through in the file's order. A rule stays unless its cosine to a rule before it
that stays is above the threshold; then it is dropped for the most similar of those. So the first
wording stays, every dropped rule is above the threshold to the rule that stays for it, and no two
rules that stay are. Connected components, the other common choice, would make one cluster of a
chain A-B-C, and so drop C for a rule A that it is not similar to.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.curation.curation_config import DedupeConfig
from encore.curation.embeddings import embed
from encore.curation.polarity import are_opposed
from encore.curation.pool import PoolRule, check_output, first_of, read_pool, write_pool
from encore.data.rules import rule_file
from encore.reporting import SILENT, Reporter

#: For which the number of rules is counted beside the one that is asked for.
THRESHOLDS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
#: Rows of the similarity matrix at a time. 10,000 rules take 20 MB for them, beside 15 MB for the
#: embeddings: no similarity is kept, however many pairs are above a threshold.
_ROWS_AT_ONCE = 512


def dedupe(config: DedupeConfig, *, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Drop near-duplicates of a pool and write the rules that stay.

    Compared are the description and the rating text: what the rule asks, and not how it is called.
    A rule that stays remembers where the dropped ones come from.

    Returns:
        JSON values: the ``rule_ids``, ``clusters`` of a rule that stays and those ``dropped`` for
        it, the most similar first, the number of rules by threshold, and ``notes``.

    Raises:
        EncoreError: The pool cannot be read, or the embedding model is not there.
    """
    check_output(config.output, inputs=[rule_file(config.pool)])
    rules = read_pool(config.pool).rules
    texts = [compared_text(rule) for rule in rules]
    embedding_ND, is_cut_N = embed(texts, model=config.model, reporter=reporter)
    # The packaged model knows English: letters of other scripts all look alike to it.
    is_read_N = np.array([config.model is not None or is_latin(text) for text in texts])
    thresholds = sorted({*THRESHOLDS, config.threshold})
    # A row of zeros is near nothing.
    stays_TN, similarity_TN = find_near_duplicates(embedding_ND * is_read_N[:, None], thresholds)
    num_rules_T = (stays_TN == np.arange(len(rules))).sum(axis=1).tolist()
    at = thresholds.index(config.threshold)
    clusters, kept = _clusters(rules, stays_TN[at].tolist(), similarity_TN[at].tolist())
    write_pool(config.output, kept)
    return {
        "output": str(config.output),
        "threshold": config.threshold,
        "num_before": len(rules),
        "num_rules": len(kept),
        "rule_ids": [rule.rule_id for rule in kept],
        "clusters": clusters,
        "num_rules_at": [
            {"threshold": threshold, "num_rules": count}
            for threshold, count in zip(thresholds, num_rules_T, strict=True)
        ],
        "notes": _notes(rules, clusters, is_read_N=is_read_N, is_cut_N=is_cut_N),
    }


def compared_text(rule: PoolRule) -> str:
    """What of a rule is embedded. The paper does not say; a title in it would be compared twice."""
    return " ".join(filter(None, (rule.description, rule.rating_rule)))


def is_latin(text: str) -> bool:
    """Whether most letters of a text are of the Latin script."""
    letters = [character for character in text if character.isalpha()]
    num_latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    return 2 * num_latin >= len(letters)


def find_near_duplicates(
    embedding_ND: NDArray[np.float32], thresholds: Sequence[float]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Go through rows in their order; each stays unless it is near a row before it that stays.

    One pass over the cosines for all thresholds. Time N² · (D + T); memory N · (D + T) and one
    block of `_ROWS_AT_ONCE` · N cosines, whatever the cosines are.

    Args:
        embedding_ND: Rows of length 1; a row of zeros is near nothing.
        thresholds: Cosines from 0 to 1 in rising order; near is what is above.

    Returns:
        At each threshold, the index of the row that stays for each row, and the cosine to it: its
        own index and 1 for a row that stays. Shape [T, N].
    """
    num_rows, num_thresholds = len(embedding_ND), len(thresholds)
    limit_T1 = np.array(thresholds, dtype=np.float32)[:, None]
    stays_TN = np.tile(np.arange(num_rows), (num_thresholds, 1))
    similarity_TN = np.ones((num_thresholds, num_rows), dtype=np.float32)
    is_kept_TN = np.ones((num_thresholds, num_rows), dtype=np.bool_)
    for start in range(0, num_rows, _ROWS_AT_ONCE):
        end = min(start + _ROWS_AT_ONCE, num_rows)
        similarity_BN = embedding_ND[start:end] @ embedding_ND[:end].T
        for row in range(start, end):
            earlier_N = similarity_BN[row - start, :row]
            # Most rules are near none of those before them.
            if not row or earlier_N.max() <= limit_T1[0, 0]:
                continue
            kept_similarity_TN = np.where(is_kept_TN[:, :row], earlier_N, -np.inf)
            nearest_T = kept_similarity_TN.argmax(axis=1)
            similarity_T = earlier_N[nearest_T]
            is_near_T = kept_similarity_TN.max(axis=1) > limit_T1[:, 0]
            is_kept_TN[:, row] = ~is_near_T
            stays_TN[is_near_T, row] = nearest_T[is_near_T]
            similarity_TN[is_near_T, row] = similarity_T[is_near_T]
    return stays_TN, similarity_TN


def _clusters(
    rules: Sequence[PoolRule], stays_N: Sequence[int], similarity_N: Sequence[float]
) -> tuple[list[dict[str, Any]], list[PoolRule]]:
    """What was dropped for which rule, and the rules that stay with all their provenance."""
    dropped_for: dict[int, list[int]] = {}
    for place in sorted(range(len(rules)), key=lambda one: -similarity_N[one]):
        if stays_N[place] != place:
            dropped_for.setdefault(stays_N[place], []).append(place)
    clusters = []
    for stays, places in sorted(dropped_for.items()):
        dropped = [
            {"rule_id": rules[place].rule_id, "title": rules[place].title}
            | {"source": rules[place].source, "similarity": round(similarity_N[place], 4)}
            | {"may_be_opposite": are_opposed(_asked(rules[place]), _asked(rules[stays]))}
            for place in places
        ]
        stays_as = {"rule_id": rules[stays].rule_id, "title": rules[stays].title}
        clusters.append({**stays_as, "dropped": dropped})
    kept = [
        rule.absorbing(*(rules[other] for other in dropped_for.get(place, ())))
        for place, rule in enumerate(rules)
        if stays_N[place] == place
    ]
    return clusters, kept


def _asked(rule: PoolRule) -> str:
    return rule.rating_rule or rule.description


def _notes(
    rules: Sequence[PoolRule],
    clusters: Iterable[Mapping[str, Any]],
    *,
    is_read_N: NDArray[np.bool_],
    is_cut_N: NDArray[np.bool_],
) -> list[str]:
    opposite = [
        f"{one['rule_id']} (for {cluster['rule_id']})"
        for cluster in clusters
        for one in cluster["dropped"]
        if one["may_be_opposite"]
    ]
    found = {
        "dropped rules may say the opposite of the rule that stays: read them": opposite,
        "rules are in letters that the packaged model does not know; they stay without a "
        "comparison, --model FOLDER takes a model that knows them": _ids(rules, ~is_read_N),
        "texts are longer than what the model reads, and compared by their beginnings": _ids(
            rules, is_cut_N
        ),
    }
    return [f"{len(ids):,} {what}: {first_of(ids)}" for what, ids in found.items() if ids]


def _ids(rules: Sequence[PoolRule], is_meant_N: NDArray[np.bool_]) -> list[str]:
    return [rules[place].rule_id for place in np.flatnonzero(is_meant_N)]
