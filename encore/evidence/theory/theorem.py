"""`encore theory` as a function: the paper's Theorem 1 on ratings or on a synthetic world."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.errors import InputError
from encore.evidence.theory.examination import Examination, examine
from encore.evidence.theory.statements import statements
from encore.evidence.theory.synthetic_worlds import CounterExample, counter_examples, noise_world
from encore.warehouse import Ratings, open_ratings, read_pairs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """The theorem on some pairs, and where its words mislead.

    Attributes:
        is_synthetic: Whether the pairs are made up; the counter-examples always are.
        examination: What was computed on the pairs.
        counter_examples: Synthetic cases against readings of the theorem.
        statements: What all this says and does not say, in plain words.
        notes: Plain sentences on what limits these figures.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are not in it.
    """

    is_synthetic: bool
    examination: Examination
    counter_examples: tuple[CounterExample, ...]
    statements: tuple[str, ...]
    notes: tuple[str, ...] = ()
    num_shards: int = 0
    num_missing_shards: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore theory --json``: the examination's fields beside the rest."""
        return {
            "is_synthetic": self.is_synthetic,
            **dataclasses.asdict(self.examination),
            "counter_examples": [dataclasses.asdict(one) for one in self.counter_examples],
            "statements": list(self.statements),
            "notes": list(self.notes),
        }


def theory(
    ratings: str | Path | Ratings | Any = None,
    *,
    synthetic: bool = False,
    tau: float = 2.0,
    seed: int = 0,
) -> Theory:
    """Bradley-Terry loss over rule weights: gradients at zero and learned weights beside entropy.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`; all sources are pooled.
        synthetic: Take a synthetic world instead, in which the theorem's premise holds: ten rules
            that are more and more noise.
        tau: Temperature of ENCORE's weights (the paper's default).
        seed: Of the synthetic world, of the weights near zero, and of the sample of pairs if there
            are too many for gradient descent.

    Raises:
        InputError: Ratings and synthetic both or neither, no ratings table, no pair that every
            rule rated fully.
    """
    if (ratings is None) != synthetic:
        raise InputError("theory: expected either ratings or the synthetic world (--synthetic)")
    opened = None if synthetic else open_ratings(ratings)
    pairs = read_pairs_of(opened) if opened else noise_world(seed=seed)
    found = examine(pairs, tau=tau, seed=seed)
    return Theory(
        is_synthetic=synthetic,
        examination=found,
        counter_examples=counter_examples(tau=tau),
        statements=statements(found),
        notes=tuple(_notes(found)),
        num_shards=opened.num_shards if opened else 0,
        num_missing_shards=opened.num_missing_shards if opened else 0,
    )


def _notes(found: Examination) -> Iterator[str]:
    if found.num_pairs_left_out:
        yield (
            f"{found.num_pairs_left_out:,} of {found.num_pairs + found.num_pairs_left_out:,} pairs "
            "are left out, because some rule has no rating of one of the responses"
        )
    if found.num_descent_pairs < found.num_pairs:
        yield (
            f"gradient descent looks at a seeded sample of {found.num_descent_pairs:,} of "
            f"{found.num_pairs:,} pairs; gradients at and near zero are of all of them"
        )
