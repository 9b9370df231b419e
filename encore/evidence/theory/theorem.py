"""`encore theory` as a function: the paper's Theorem 1 on ratings or on a synthetic world."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.errors import InputError
from encore.evidence.paired_input import PairedInput, read_paired
from encore.evidence.theory.counter_examples import CounterExample, counter_examples
from encore.evidence.theory.descent import STEPS
from encore.evidence.theory.examination import Examination, examine
from encore.evidence.theory.words import statements
from encore.evidence.theory.worlds import noise_world


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
    ratings: str | Path | Any = None,
    *,
    synthetic: bool = False,
    tau: float = 2.0,
    seed: int = 0,
    steps: Sequence[int] = STEPS,
    run: str | None = None,
    judge: str | None = None,
) -> Theory:
    """Bradley–Terry loss over rule weights: gradients at zero and learned weights beside entropy.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`; all sources are pooled.
        synthetic: Take a synthetic world instead, in which the theorem's premise holds: ten rules
            that are more and more noise (`encore.evidence.theory.worlds.noise_world`).
        tau: Temperature of ENCORE's weights (the paper's default).
        seed: Of the synthetic world, of the weights near zero, and of the sample of pairs if there
            are too many for gradient descent.
        steps: After how many steps of gradient descent to look, ascending.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.

    Raises:
        InputError: Ratings and synthetic both or neither, no ratings table, no pair that every
            rule rated fully, impossible steps.
    """
    if (ratings is None) != synthetic:
        raise InputError("theory: expected either ratings or the synthetic world (--synthetic)")
    if not steps or list(steps) != sorted(set(steps)) or steps[0] < 1:
        raise InputError(f"steps {list(steps)}: expected whole numbers from 1 on, ascending")
    source = (
        PairedInput(label="synthetic world", pairs=noise_world(seed=seed))
        if synthetic
        else read_paired(ratings, run=run, judge=judge)
    )
    found = examine(source.pairs, tau=tau, seed=seed, steps=steps)
    return Theory(
        is_synthetic=synthetic,
        examination=found,
        counter_examples=counter_examples(tau=tau),
        statements=statements(found),
        notes=tuple(_notes(found)),
        num_shards=source.num_shards,
        num_missing_shards=source.num_missing_shards,
    )


def _notes(found: Examination) -> list[str]:
    notes = []
    if found.num_pairs_left_out:
        notes.append(
            f"{found.num_pairs_left_out:,} of {found.num_pairs + found.num_pairs_left_out:,} pairs "
            "are left out, because some rule has no rating of one of the responses"
        )
    if found.num_descent_pairs < found.num_pairs:
        notes.append(
            f"gradient descent looks at a seeded sample of {found.num_descent_pairs:,} of "
            f"{found.num_pairs:,} pairs; gradients at and near zero are of all of them"
        )
    return notes
