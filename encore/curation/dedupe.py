"""Near-duplicates among rules, by sentence embeddings (appendix Rule Set Construction).

The rules are gone through in the file's order. A rule stays unless its cosine to a rule before it
that stays is above the threshold; then it is dropped for the most similar of those. So the first
wording stays, every dropped rule is above the threshold to the rule that stays for it, and no two
rules that stay are. Connected components, the other common choice, would make one cluster of a
chain A-B-C, and so drop C for a rule A that it is not similar to.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A rule that is dropped.

    Attributes:
        similarity: Its cosine to the rule that stays.
        may_be_opposite: It may ask for the opposite. Embeddings hardly see a negation: "less
            harmful" and "more harmful" are near-duplicates to them.
    """

    rule_id: str
    title: str
    source: str
    similarity: float
    may_be_opposite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A rule that stays, and those that are dropped for it, the most similar first."""

    rule_id: str
    title: str
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduped:
    """The rules that stay, and why the others do not."""

    output: Path
    threshold: float
    num_before: int
    rules: tuple[PoolRule, ...]
    clusters: tuple[Cluster, ...]
    num_rules_at: dict[float, int]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON values, with the rules' ids in the place of the rules."""
        return {
            "output": str(self.output),
            "threshold": self.threshold,
            "num_before": self.num_before,
            "num_rules": len(self.rules),
            "rule_ids": [rule.rule_id for rule in self.rules],
            "clusters": [asdict(cluster) for cluster in self.clusters],
            "num_rules_at": [
                {"threshold": threshold, "num_rules": count}
                for threshold, count in self.num_rules_at.items()
            ],
            "notes": [*self.notes],
        }


def dedupe(config: DedupeConfig, *, reporter: Reporter = SILENT) -> Deduped:
    """Drop near-duplicates of a pool and write the rules that stay.

    Compared are the description and the rating text: what the rule asks, and not how it is called.
    A rule that stays remembers where the dropped ones come from.

    Raises:
        EncoreError: The pool cannot be read, or the embedding model is not there.
    """
    check_output(config.output, inputs=[rule_file(config.pool)])
    rules = read_pool(config.pool).rules
    texts = [compared_text(rule) for rule in rules]
    # The packaged model knows English: letters of other scripts all look alike to it.
    is_read_N = np.array([config.model is not None or is_latin(text) for text in texts])
    found = embed(texts, model=config.model, reporter=reporter)
    # A row of zeros is near nothing.
    embedding_ND = found.embedding_ND * is_read_N[:, None]
    thresholds = sorted({*THRESHOLDS, config.threshold})
    near = find_near_duplicates(embedding_ND, thresholds)
    place = thresholds.index(config.threshold)
    clusters, kept = _clusters(rules, near.stays_TN[place], near.similarity_TN[place])
    write_pool(config.output, kept)
    return Deduped(
        output=config.output,
        threshold=config.threshold,
        num_before=len(rules),
        rules=tuple(kept),
        clusters=tuple(clusters),
        num_rules_at=dict(zip(thresholds, near.num_kept, strict=True)),
        notes=tuple(_notes(rules, clusters, is_read_N=is_read_N, is_cut_N=found.is_cut_N)),
    )


def compared_text(rule: PoolRule) -> str:
    """What of a rule is embedded. The paper does not say; a title in it would be compared twice."""
    return " ".join(filter(None, (rule.description, rule.rating_rule)))


def is_latin(text: str) -> bool:
    """Whether most letters of a text are of the Latin script."""
    letters = [character for character in text if character.isalpha()]
    num_latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    return 2 * num_latin >= len(letters)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """Which rule stays for each rule, at each threshold.

    Attributes:
        stays_TN: Index of the rule that stays; its own for a rule that stays.
        similarity_TN: Its cosine to that rule; 1 for a rule that stays.
    """

    stays_TN: NDArray[np.int64]
    similarity_TN: NDArray[np.float32]

    @property
    def num_kept(self) -> list[int]:
        """The number of rules that stay at each threshold."""
        is_kept_TN = self.stays_TN == np.arange(self.stays_TN.shape[1])
        return [int(count) for count in is_kept_TN.sum(axis=1)]


def find_near_duplicates(
    embedding_ND: NDArray[np.float32], thresholds: Sequence[float]
) -> NearDuplicates:
    """Go through rows in their order; each stays unless it is near a row before it that stays.

    One pass over the cosines for all thresholds. Time N² · (D + T); memory N · (D + T) and one
    block of `_ROWS_AT_ONCE` · N cosines, whatever the cosines are.

    Args:
        embedding_ND: Rows of length 1; a row of zeros is near nothing.
        thresholds: Cosines from 0 to 1; near is what is above.
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
    return NearDuplicates(stays_TN=stays_TN, similarity_TN=similarity_TN)


def _clusters(
    rules: Sequence[PoolRule], stays_N: NDArray[np.int64], similarity_N: NDArray[np.float32]
) -> tuple[list[Cluster], list[PoolRule]]:
    """What was dropped for which rule, and the rules that stay with all their provenance."""
    dropped_for: dict[int, list[tuple[int, float]]] = {}
    for place, (stays, similarity) in enumerate(zip(stays_N, similarity_N, strict=True)):
        if stays != place:
            dropped_for.setdefault(int(stays), []).append((place, float(similarity)))
    clusters = []
    for stays, dropped in sorted(dropped_for.items()):
        most_similar_first = sorted(dropped, key=lambda one: -one[1])
        parts = tuple(_dropped(rules[place], rules[stays], at) for place, at in most_similar_first)
        clusters.append(
            Cluster(rule_id=rules[stays].rule_id, title=rules[stays].title, dropped=parts)
        )
    kept = []
    for place, rule in enumerate(rules):
        if stays_N[place] == place:
            copies = [rules[other] for other, _ in dropped_for.get(place, [])]
            kept.append(rule.absorbing(*copies))
    return clusters, kept


def _dropped(rule: PoolRule, stays: PoolRule, similarity: float) -> Dropped:
    return Dropped(
        rule_id=rule.rule_id,
        title=rule.title,
        source=rule.source,
        similarity=round(similarity, 4),
        may_be_opposite=are_opposed(
            rule.rating_rule or rule.description, stays.rating_rule or stays.description
        ),
    )


def _notes(
    rules: Sequence[PoolRule],
    clusters: Iterable[Cluster],
    *,
    is_read_N: NDArray[np.bool_],
    is_cut_N: NDArray[np.bool_],
) -> list[str]:
    opposite = [
        f"{one.rule_id} (for {cluster.rule_id})"
        for cluster in clusters
        for one in cluster.dropped
        if one.may_be_opposite
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
