"""How pairs came out under each rule: counts that add up over parts, files and sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Suffixes: P patterns, R rules.

_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairOutcomes:
    """Wins, losses and ties of each rule, and how often two rules agree.

    Attributes:
        num_pairs: All pairs, also those that a rule did not rate fully.
        wins_R: Pairs whose chosen response the rule rates higher, shape [R].
        losses_R: Pairs whose rejected response it rates higher, shape [R].
        ties_R: Pairs with two equal ratings, shape [R].
        sign_gram_RR: S'S with S = sign(chosen - rejected), one row per pair and 0 where a rating
            is missing, shape [R, R].
    """

    num_pairs: int
    wins_R: _Counts
    losses_R: _Counts
    ties_R: _Counts
    sign_gram_RR: _Counts


def outcomes_of_patterns(
    patterns: pa.Table, *, pattern_rule_ids: Sequence[str], rule_ids: Sequence[str]
) -> dict[str, PairOutcomes]:
    """The outcomes of each source in a result of ``pair_patterns.sql``.

    Args:
        patterns: The result.
        pattern_rule_ids: The rule of each digit of a pattern (result of ``rule_ids.sql``).
        rule_ids: The R rules, in the order of the outcomes; may hold more than the patterns do.
    """
    place_of = {rule_id: place for place, rule_id in enumerate(rule_ids)}
    places = np.array([place_of[rule_id] for rule_id in pattern_rule_ids])
    source_P = patterns["source"].to_numpy()
    num_pairs_P = patterns["num_pairs"].to_numpy()
    bits = {name: _digits(patterns[name]) for name in ("wins", "losses", "ties")}
    outcomes = {}
    for source in dict.fromkeys(source_P.tolist()):
        rows = source_P == source
        outcomes[source] = _outcomes(
            num_pairs_P[rows],
            {name: digits_PR[rows] for name, digits_PR in bits.items()},
            places=places,
            num_rules=len(rule_ids),
        )
    return outcomes


def add_outcomes(outcomes: Iterable[PairOutcomes]) -> PairOutcomes:
    """The outcomes of disjoint sets of pairs together."""
    parts = list(outcomes)
    return PairOutcomes(
        num_pairs=sum(part.num_pairs for part in parts),
        wins_R=np.sum([part.wins_R for part in parts], axis=0),
        losses_R=np.sum([part.losses_R for part in parts], axis=0),
        ties_R=np.sum([part.ties_R for part in parts], axis=0),
        sign_gram_RR=np.sum([part.sign_gram_RR for part in parts], axis=0),
    )


def take_rules(outcomes: PairOutcomes, places: Sequence[int]) -> PairOutcomes:
    """The outcomes of some rules, in the order of ``places``."""
    return PairOutcomes(
        num_pairs=outcomes.num_pairs,
        wins_R=outcomes.wins_R[places],
        losses_R=outcomes.losses_R[places],
        ties_R=outcomes.ties_R[places],
        sign_gram_RR=outcomes.sign_gram_RR[np.ix_(places, places)],
    )


def _digits(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """One row per text of 0s and 1s, all of one length."""
    texts = column.to_pylist()
    digits = np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8)
    return np.asarray(digits.reshape(len(texts), -1) == ord("1"))


def _outcomes(
    num_pairs_P: _Counts,
    bits: dict[str, NDArray[np.bool_]],
    *,
    places: NDArray[np.int64],
    num_rules: int,
) -> PairOutcomes:
    def count(name: str) -> _Counts:
        count_R = np.zeros(num_rules, dtype=np.int64)
        count_R[places] = num_pairs_P @ bits[name]
        return count_R

    # Products of counts and signs are whole numbers far below 2^53: exact in floating point, where
    # the matrix product is fast.
    sign_PR = bits["wins"].astype(np.float64) - bits["losses"]
    gram_RR = np.zeros((num_rules, num_rules), dtype=np.int64)
    gram_RR[np.ix_(places, places)] = (sign_PR * num_pairs_P[:, None]).T @ sign_PR
    return PairOutcomes(
        num_pairs=int(num_pairs_P.sum()),
        wins_R=count("wins"),
        losses_R=count("losses"),
        ties_R=count("ties"),
        sign_gram_RR=gram_RR,
    )
