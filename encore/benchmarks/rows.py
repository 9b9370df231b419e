"""A row of a benchmark's table: a scheme's weights, a reward model or a judge, scored and compared.

Suffixes: P pairs, U units (`encore.benchmarks.units`), 2 responses (chosen, rejected).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.comparison import Comparison, compare_credits
from encore.benchmarks.definition import Ties
from encore.benchmarks.metrics import BenchmarkScore, benchmark_score, credit_of
from encore.benchmarks.metrics import score_margins as score_of
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.results import PairResults, StoredResults, read_pair_results
from encore.benchmarks.row_about import DrawSpread, RowAbout, RowKind
from encore.benchmarks.units import unit_credits, units_of_pairs
from encore.errors import InputError
from encore.weighting.vector import WeightVector

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRow:
    """One row.

    Attributes:
        name: For people, one of its own in a table.
        kind: What made it.
        method: The paper's row of the same method (`encore.paper.tables.PaperRow.method`); None
            where it has none.
        params: The scheme's parameters.
        score: On every subset and in all, with intervals over pairs.
        comparison: With the table's reference; None for the reference itself, and before
            `compared`.
        credit_P: Of each pair, 0 to 1; a mean over draws where there are several.
        credit_U: The same of each unit, which is what ``score`` counts.
        reward_P2: What credits were made from; None for a judge that compares, and for means.
        vector: The weights; None where there is no one vector.
        draws: Of rows that are a mean over draws.
        uses_labels: Whether weights were learnt from people's preferences on the training pairs.
        synthetic: What of it is synthetic, in words.
        notes: What a reader of its figures should know, a sentence each.
        judge: Of a judge's row: which; None where nobody said.
        scheme: Of a row of a file: that of its weights; None where it has none, or nobody said.
    """

    name: str
    kind: RowKind
    score: BenchmarkScore
    credit_P: _Floats
    credit_U: _Floats
    method: str | None = None
    params: Mapping[str, float | str] = field(default_factory=dict)
    comparison: Comparison | None = None
    reward_P2: _Floats | None = None
    vector: WeightVector | None = None
    draws: DrawSpread | None = None
    uses_labels: bool = False
    synthetic: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    judge: str | None = None
    scheme: str | None = None

    @property
    def is_mean(self) -> bool:
        """Whether it is a mean over draws, whose pairs are neither right nor wrong.

        Older files of results do not say so; a credit between the two does where ties are losses.
        """
        is_between = self.score.ties == "loss" and bool(np.any(self.credit_U % 1))
        return self.draws is not None or is_between

    @property
    def p_value(self) -> float | None:
        """McNemar's with the reference, where there is one (`Comparison.mcnemar_p`)."""
        return None if self.comparison is None else self.comparison.mcnemar_p

    @property
    def about(self) -> RowAbout:
        """What is kept of it beside what it gave every pair."""
        return RowAbout(
            kind=self.kind,
            params=dict(self.params),
            draws=self.draws,
            uses_labels=self.uses_labels,
            synthetic=self.synthetic,
            notes=self.notes,
            judge=self.judge,
            scheme=self.scheme if self.vector is None else self.vector.scheme,
        )

    @property
    def pair_results(self) -> PairResults | None:
        """What this row gave every pair, to be stored; None where its score is not made of that.

        That is a mean over draws where several pairs are one choice: a choice's mean does not
        follow from the means of its pairs.
        """
        if self.draws is not None and len(self.credit_U) != len(self.credit_P):
            return None
        return PairResults(
            name=self.name,
            ties=self.score.ties,
            credit_P=self.credit_P,
            reward_P2=self.reward_P2,
            about=self.about,
        )


def reward_row(
    name: str,
    reward_P2: _Floats,
    *,
    pairs: BenchmarkPairs,
    margin_P: _Floats | None = None,
    kind: RowKind = "model",
    method: str | None = None,
    params: Mapping[str, float | str] | None = None,
    vector: WeightVector | None = None,
    uses_labels: bool = False,
) -> TableRow:
    """A row of rewards: a pair is right if its chosen response has the higher one.

    A tie is worth what the benchmark says.

    Args:
        name: Of the row.
        reward_P2: Of each pair of ``pairs``, in their order.
        pairs: Of the benchmark.
        margin_P: Reward of chosen minus rejected, where it is known without the rounding of the
            two; default: their difference.
        kind: As in `TableRow`, like the following.
        method: As above.
        params: As above.
        vector: As above.
        uses_labels: As above.

    Raises:
        InputError: Rewards of other pairs, or one that is no number.
    """
    rewards = np.asarray(reward_P2, dtype=np.float64)
    if rewards.shape != (pairs.num_pairs, 2):
        raise InputError(
            f"row {name!r}: rewards of shape {rewards.shape} for {pairs.num_pairs} pairs; expected "
            "one for either response of each"
        )
    found_P = rewards[:, 0] - rewards[:, 1] if margin_P is None else margin_P
    ties = pairs.benchmark.ties
    credit_P = credit_of(found_P, ties=ties)
    return TableRow(
        name=name,
        kind=kind,
        method=method,
        params=dict(params or {}),
        score=score_of(found_P, pairs=pairs, ties=ties),
        credit_P=credit_P,
        credit_U=unit_credits(credit_P, units=units_of_pairs(pairs)),
        reward_P2=rewards,
        vector=vector,
        uses_labels=uses_labels,
    )


def credit_row(
    name: str,
    credit_P: _Floats,
    *,
    pairs: BenchmarkPairs,
    ties: Ties = "half",
    kind: RowKind = "judge",
    method: str | None = None,
    reward_P2: _Floats | None = None,
) -> TableRow:
    """A row of credits that somebody else gave: a judge that compares, stored results.

    Args:
        name: Of the row.
        credit_P: 0 to 1 for each pair of ``pairs``, in their order.
        pairs: Of the benchmark.
        ties: What a tie was worth when they were given.
        kind: As in `TableRow`, like the following.
        method: As above.
        reward_P2: As above.

    Raises:
        InputError: Credits of other pairs, or outside [0, 1].
    """
    return TableRow(
        name=name,
        kind=kind,
        method=method,
        score=benchmark_score(credit_P, pairs=pairs, ties=ties),
        credit_P=credit_P,
        credit_U=unit_credits(credit_P, units=units_of_pairs(pairs)),
        reward_P2=reward_P2,
    )


def stored_rows(
    path: Path, *, pairs: BenchmarkPairs, name: str | None = None
) -> tuple[TableRow, ...]:
    """The rows of a file of results, such as a judge's, for a table on the same pairs.

    Args:
        path: As `encore.benchmarks.results.write_pair_results` wrote it.
        pairs: Of the benchmark.
        name: Of the row, beside the paper's method of that name; of several rows, what stands
            before the name of each. None: as in the file.

    Raises:
        InputError: No results, or results on other pairs.
    """
    found = read_pair_results(path)
    if len(found) == 1:
        shown = name or found[0].results.name
        row = _stored_row(found[0], path=path, pairs=pairs, whose=shown)
        return (replace(row, name=shown, method=shown),)
    rows = [_stored_row(one, path=path, pairs=pairs, whose=name) for one in found]
    return tuple(replace(row, name=f"{name}: {row.name}" if name else row.name) for row in rows)


def compared(
    rows: Sequence[TableRow], *, pairs: BenchmarkPairs, seed: int = 0
) -> tuple[TableRow, ...]:
    """The rows, each but the first with its difference to the first on the same units.

    Args:
        rows: The first is the reference.
        pairs: Of the benchmark.
        seed: Of the bootstrap.
    """
    if not rows:
        return ()
    units, reference = units_of_pairs(pairs), rows[0]
    others = [
        replace(
            row,
            comparison=compare_credits(
                row.credit_U,
                reference.credit_U,
                subset_P=units.subset_U,
                weighting=pairs.benchmark.weighting,
                seed=seed,
            ),
        )
        for row in rows[1:]
    ]
    return (reference, *others)


def _stored_row(
    stored: StoredResults, *, path: Path, pairs: BenchmarkPairs, whose: str | None
) -> TableRow:
    """A row with all that its file says of it; its notes and marks begin with whose they are."""

    def told(text: str) -> str:
        before = "" if whose is None else f"{whose}: "
        return text if text.startswith(before) else f"{before}{text}"

    _check_stored(stored, path=path, pairs=pairs)
    found = stored.results
    # Older files do not say what a row is; in them only a judge's tie counts one half.
    about = found.about or RowAbout(kind="judge" if found.ties == "half" else "model")
    order_P = _order_of(pairs, stored)
    row = credit_row(
        found.name,
        found.credit_P[order_P],
        pairs=pairs,
        ties=found.ties,
        kind=about.kind,
        reward_P2=None if found.reward_P2 is None else found.reward_P2[order_P],
    )
    this = f"benchmark {pairs.benchmark.name}"  # every table on it is marked so itself
    return replace(
        row,
        params=about.params,
        draws=about.draws,
        uses_labels=about.uses_labels,
        synthetic=tuple(told(part) for part in about.synthetic if part != this),
        notes=tuple(map(told, about.notes)),
        judge=about.judge,
        scheme=about.scheme,
    )


def _check_stored(stored: StoredResults, *, path: Path, pairs: BenchmarkPairs) -> None:
    benchmark = pairs.benchmark
    if (stored.benchmark, stored.data_digest) != (benchmark.name, pairs.digest):
        raise InputError(
            f"{path}: results on {stored.benchmark} {stored.data_digest[:12]}, not on "
            f"{benchmark.name} {pairs.digest[:12]}; only results on the same pairs can stand in "
            "one table: run both on the same data"
        )
    if stored.weighting != benchmark.weighting:
        raise InputError(
            f"{path}: results that count all {stored.weighting} of {benchmark.name} alike, not all "
            f"{benchmark.weighting}: two definitions of one name; run both with the same one"
        )


def _order_of(pairs: BenchmarkPairs, stored: StoredResults) -> NDArray[np.int64]:
    """Where each pair of the benchmark stands in a file."""
    keys = zip(stored.subset_P, stored.row_id_P, stored.pair_id_P, strict=True)
    place_of = {key: place for place, key in enumerate(keys)}
    ids = (pair.pair_id for pair in pairs.pairs)
    wanted = zip(pairs.subset_P, pairs.row_id_P, ids, strict=True)
    return np.array([place_of[key] for key in wanted], dtype=np.int64)
