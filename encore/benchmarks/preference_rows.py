"""Rows of a model with head 0: head 0 alone, and composed with weighted rules.

Suffixes: P pairs, 2 responses (chosen, rejected), R heads.
"""

from __future__ import annotations

from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.metrics import units_of_pairs
from encore.benchmarks.table_rows import RowMetadata, TableRow, reward_row
from encore.core.errors import InputError
from encore.core.number_text import points
from encore.model.held_out_scores import HeldOutScores
from encore.scoring.head_scores import HeadScores
from encore.weighting.head_mix import HeadMix, mix_heads
from encore.weighting.preference_head import PREFERENCE_HEAD, Beta
from encore.weighting.scheme import Evidence
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import load_scheme
from encore.weighting.weight_vector import WeightVector

#: Schemes whose weights of rules are composed with head 0, at their default parameters.
_SCHEMES = ("uniform", "encore")


def preference_rows(
    scores: HeadScores,
    held_out: HeldOutScores | None,
    *,
    pairs: BenchmarkPairs,
    evidence: Evidence,
    beta: Beta | None = None,
    seed: int = 0,
) -> tuple[tuple[TableRow, ...], tuple[str, ...]]:
    """Return the rows of a model with head 0, and notes.

    They are head 0 alone, head 0 + uniform, head 0 + encore, and head 0 + best: the scheme and the
    beta that `encore.weighting.head_mix` chooses on labels. Each composed row has a note on its
    difference to head 0 alone.

    Args:
        scores: Scores of the pairs under all heads, head 0 first.
        held_out: Scores of the pairs that the model's training held out.
        pairs: Pairs of the benchmark.
        evidence: Ratings of the training study.
        beta: Factor of the rules in the rows of the two schemes; None: 1.
        seed: Seed of the test's draws (`compare_credits`).
    """
    preference = {head_id: float(head_id == PREFERENCE_HEAD) for head_id in scores.head_ids}
    start = reward_row(
        "head 0 alone",
        scores.compose(preference),
        pairs=pairs,
        metadata=RowMetadata(kind="scheme", params={"rule": PREFERENCE_HEAD}, scheme="single"),
        weights=preference,
    )

    def mixed(name: str, vector: WeightVector, factor: Beta | None) -> tuple[TableRow, HeadMix]:
        """Return head 0 composed with weighted rules, and its row."""
        rule_weights = dict(zip(vector.rule_ids, vector.weights, strict=True))
        mix = mix_heads(rule_weights, held_out, head_ids=scores.head_ids, beta=factor)
        metadata = RowMetadata(
            kind="scheme",
            params={**vector.params, "beta": mix.beta},
            uses_labels=mix.uses_labels,
            scheme=vector.scheme,
            notes=() if mix.note is None else (f"{name} ({vector.scheme}): {mix.note}",),
        )
        reward_P2 = scores.compose(mix.weights)
        return reward_row(name, reward_P2, pairs=pairs, metadata=metadata, weights=mix.weights), mix

    vectors = [load_scheme(scheme).weigh(evidence, SchemeOptions()) for scheme in _SCHEMES]
    try:
        rows = [mixed(f"head 0 + {vector.scheme}", vector, beta)[0] for vector in vectors]
        candidates = [mixed("head 0 + best", vector, "auto") for vector in vectors]
    except InputError as error:
        return (start,), (f"head 0 + rules left out: {error}",)
    rows.append(min(candidates, key=lambda candidate: candidate[1].held_out_loss)[0])
    notes = [f"{row.name}: {_difference(row, start, pairs=pairs, seed=seed)}" for row in rows]
    return (start, *rows), tuple(notes)


def _difference(row: TableRow, start: TableRow, *, pairs: BenchmarkPairs, seed: int) -> str:
    """Return a sentence on the row's difference to head 0 alone on the same pairs."""
    comparison = row.compared_with(
        start, units=units_of_pairs(pairs), weighting=pairs.benchmark.weighting, seed=seed
    )
    low, high = points(comparison.ci_low), points(comparison.ci_high)
    is_worse = "; it is worse than the head that it starts from" * (comparison.ci_high < 0)
    return (
        f"{points(comparison.difference)} points against {start.name}, 95 % interval {low} to "
        f"{high}{is_worse}"
    )
