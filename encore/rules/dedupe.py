"""Near-duplicates among rules, by sentence embeddings (appendix Rule Set Construction).

The rules are gone through in the file's order. A rule stays unless its cosine to a rule before it
that stays is above the threshold; then it is dropped for the most similar of those. So the first
wording stays, every dropped rule is above the threshold to the rule that stays for it, and no two
rules that stay are. Connected components, the other common choice, would make one cluster of a
chain A-B-C, and so drop C for a rule A that it is not similar to.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.core.reporting import SILENT, Reporter
from encore.data.rule_sets import rule_file
from encore.rules.polarity import are_opposed
from encore.rules.pool import PoolRule, check_output, first_of, read_pool, write_pool
from encore.rules.rules_config import DedupeConfig
from encore.rules.sentence_embeddings import embed

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
    # What a rule asks. The paper does not say; a title in it would be compared twice.
    texts = [" ".join(filter(None, (rule.description, rule.rating_rule))) for rule in rules]
    # The packaged model knows English: letters of other scripts all look alike to it.
    is_read_N = np.array([config.model is not None or is_latin(text) for text in texts])
    # A row of zeros is near nothing.
    embedding_ND = embed(texts, model=config.model, reporter=reporter) * is_read_N[:, None]
    thresholds = sorted({*THRESHOLDS, config.threshold})
    stays_TN = find_near_duplicates(embedding_ND, thresholds)
    num_rules_T = (stays_TN == np.arange(len(rules))).sum(axis=1).tolist()
    stays_N = stays_TN[thresholds.index(config.threshold)]
    similarity_N = (embedding_ND * embedding_ND[stays_N]).sum(axis=1)
    clusters, kept = _clusters(rules, stays_N, similarity_N)
    write_pool(config.output, kept)
    unread = [rule.rule_id for rule, is_read in zip(rules, is_read_N, strict=True) if not is_read]
    return {
        "output": str(config.output),
        "threshold": config.threshold,
        "num_before": len(rules),
        "num_rules": len(kept),
        "rule_ids": [rule.rule_id for rule in kept],
        "clusters": clusters,
        "num_rules_at": dict(zip(map(str, thresholds), num_rules_T, strict=True)),
        "notes": [*_notes(clusters, unread)],
    }


def is_latin(text: str) -> bool:
    """Whether most letters of a text are of the Latin script."""
    letters = [character for character in text if character.isalpha()]
    num_latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    return 2 * num_latin >= len(letters)


def find_near_duplicates(
    embedding_ND: NDArray[np.float32], thresholds: Sequence[float]
) -> NDArray[np.int64]:
    """Go through rows in their order; each stays unless it is near a row before it that stays.

    One pass over the cosines for all thresholds. Time N² · (D + T); memory N · (D + T) and one
    block of `_ROWS_AT_ONCE` · N cosines, whatever the cosines are.

    Args:
        embedding_ND: Rows of length 1; a row of zeros is near nothing.
        thresholds: Cosines from 0 to 1; near is what is above.

    Returns:
        At each threshold, the index of the row that stays for each row: its own for a row that
        stays. Shape [T, N].
    """
    limit_T, num_rows = np.array(thresholds, dtype=np.float32), len(embedding_ND)
    stays_TN = np.tile(np.arange(num_rows), (len(thresholds), 1))
    is_kept_TN = np.zeros(stays_TN.shape, dtype=np.bool_)
    for start in range(0, num_rows, _ROWS_AT_ONCE):
        end = start + _ROWS_AT_ONCE
        similarity_BN = embedding_ND[start:end] @ embedding_ND[:end].T
        for row, similarity_N in enumerate(similarity_BN, start):
            # This row and later ones are not among those that stay yet.
            similarity_TN = np.where(is_kept_TN[:, :end], similarity_N, np.float32(-1))
            nearest_T = similarity_TN.argmax(axis=1)
            is_near_T = similarity_TN.max(axis=1) > limit_T
            stays_TN[is_near_T, row] = nearest_T[is_near_T]
            is_kept_TN[:, row] = ~is_near_T
    return stays_TN


def _clusters(
    rules: Sequence[PoolRule], stays_N: NDArray[np.int64], similarity_N: NDArray[np.float32]
) -> tuple[list[dict[str, Any]], list[PoolRule]]:
    """What was dropped for which rule, and the rules that stay with all their provenance."""
    dropped_for: dict[int, list[int]] = {}
    for place in np.argsort(-similarity_N, kind="stable").tolist():
        dropped_for.setdefault(int(stays_N[place]), []).append(place)
    clusters, kept = [], []
    for place, places in sorted(dropped_for.items()):
        stays, others = rules[place], [other for other in places if other != place]
        kept.append(stays.absorbing(*(rules[other] for other in others)))
        dropped = [
            {
                **rules[other].model_dump(include={"rule_id", "title", "source"}),
                "similarity": round(float(similarity_N[other]), 4),
                "may_be_opposite": are_opposed(_asked(rules[other]), _asked(stays)),
            }
            for other in others
        ]
        if dropped:
            clusters.append({"rule_id": stays.rule_id, "title": stays.title, "dropped": dropped})
    return clusters, kept


def _asked(rule: PoolRule) -> str:
    return rule.rating_rule or rule.description


def _notes(clusters: Iterable[Mapping[str, Any]], unread: Sequence[str]) -> Iterator[str]:
    opposite = [
        f"{one['rule_id']} (for {cluster['rule_id']})"
        for cluster in clusters
        for one in cluster["dropped"]
        if one["may_be_opposite"]
    ]
    if opposite:
        yield (
            f"{len(opposite):,} dropped rules may say the opposite of the rule that stays: read "
            f"them: {first_of(opposite)}"
        )
    if unread:
        yield (
            f"{len(unread):,} rules are in letters that the packaged model does not know; they "
            "stay without a comparison, --model FOLDER takes a model that knows them: "
            f"{first_of(unread)}"
        )
