"""A row of a benchmark's table: a scheme's weights, a reward model or a judge, scored and compared.

Suffixes: P pairs, U units (`encore.benchmarks.metrics`), 2 responses (chosen, rejected), R heads,
V weight vectors, B vectors of one block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.comparison import Comparison, compare_credits
from encore.benchmarks.definition import Ties
from encore.benchmarks.metrics import (
    BenchmarkScore,
    benchmark_score,
    credit_of,
    score_margins,
    score_units,
    unit_credits,
    unit_weights,
    units_of_pairs,
)
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.results import (
    DrawSpread,
    PairResults,
    RowAbout,
    RowKind,
    StoredResults,
    read_pair_results,
    refuse_other_pairs,
)
from encore.errors import InputError
from encore.weighting.vector import WeightVector

#: Margins held at a time: 32 MB.
_BLOCK_CELLS = 4_000_000

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRow:
    """One row.

    Attributes:
        name: For people, one of its own in a table.
        kind: What made it.
        method: The paper's row of the same method (`encore.benchmarks.paper_tables`); None where
            it has none.
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
        num_cut_pairs: Pairs whose text was cut to the model's length: no other tool's result on
            them compares. None where nobody said.
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
    num_cut_pairs: int | None = None
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
    def pair_results(self) -> PairResults | None:
        """What this row gave every pair, to be stored; None where its score is not made of that.

        That is a mean over draws where several pairs are one choice: a choice's mean does not
        follow from the means of its pairs.
        """
        if self.draws is not None and len(self.credit_U) != len(self.credit_P):
            return None
        same = ("kind", "draws", "uses_labels", "synthetic", "notes", "num_cut_pairs", "judge")
        about = RowAbout(
            params=dict(self.params),
            scheme=self.scheme if self.vector is None else self.vector.scheme,
            **{name: getattr(self, name) for name in same},
        )
        return PairResults(
            name=self.name,
            ties=self.score.ties,
            credit_P=self.credit_P,
            reward_P2=self.reward_P2,
            about=about,
        )


def reward_row(
    name: str,
    reward_P2: _Floats,
    *,
    pairs: BenchmarkPairs,
    margin_P: _Floats | None = None,
    kind: RowKind = "model",
    **more: Any,
) -> TableRow:
    """A row of rewards: a pair is right if its chosen response has the higher one.

    A tie is worth what the benchmark says.

    Args:
        name: Of the row.
        reward_P2: Of each pair of ``pairs``, in their order.
        pairs: Of the benchmark.
        margin_P: Reward of chosen minus rejected, where it is known without the rounding of the
            two; default: their difference.
        kind: As in `TableRow`.
        **more: Further fields of `TableRow`.

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
        score=score_margins(found_P, pairs=pairs, ties=ties),
        credit_P=credit_P,
        credit_U=unit_credits(credit_P, units=units_of_pairs(pairs)),
        reward_P2=rewards,
        **more,
    )


def credit_row(
    name: str,
    credit_P: _Floats,
    *,
    pairs: BenchmarkPairs,
    ties: Ties = "half",
    kind: RowKind = "judge",
    **more: Any,
) -> TableRow:
    """A row of credits that somebody else gave: a judge that compares, stored results.

    Args:
        name: Of the row.
        credit_P: 0 to 1 for each pair of ``pairs``, in their order.
        pairs: Of the benchmark.
        ties: What a tie was worth when they were given.
        kind: As in `TableRow`.
        **more: Further fields of `TableRow`.

    Raises:
        InputError: Credits of other pairs, or outside [0, 1].
    """
    return TableRow(
        name=name,
        kind=kind,
        score=benchmark_score(credit_P, pairs=pairs, ties=ties),
        credit_P=credit_P,
        credit_U=unit_credits(credit_P, units=units_of_pairs(pairs)),
        **more,
    )


def mean_row(
    name: str, margin_PR: _Floats, weight_VR: _Floats, *, pairs: BenchmarkPairs, **more: Any
) -> TableRow:
    """The mean of many weightings of the heads, with their spread.

    The score is the mean of the scores, subset by subset. Its interval is over pairs: it says what
    other pairs would do to this mean. What another draw would do is in ``draws``.

    Args:
        name: Of the row.
        margin_PR: Score of the chosen minus that of the rejected response, float64.
        weight_VR: At least one weight vector.
        pairs: Of the benchmark.
        **more: Further fields of `TableRow`.
    """
    units, ties = units_of_pairs(pairs), pairs.benchmark.ties
    weight_U = unit_weights(units.subset_U, weighting=pairs.benchmark.weighting)
    num_vectors, num_pairs = len(weight_VR), len(margin_PR)
    total_P, total_U = np.zeros(num_pairs), np.zeros(len(weight_U))
    headline_V = np.empty(num_vectors)
    block = max(_BLOCK_CELLS // max(num_pairs, 1), 1)  # 1,000 vectors x 70,000 pairs do not fit
    for start in range(0, num_vectors, block):
        stop = min(start + block, num_vectors)
        credit_BP = credit_of(weight_VR[start:stop] @ margin_PR.T, ties=ties)
        credit_BU = unit_credits(credit_BP, units=units)
        headline_V[start:stop] = credit_BU @ weight_U
        total_P += credit_BP.sum(axis=0)
        total_U += credit_BU.sum(axis=0)
    low, high = np.quantile(headline_V, [0.025, 0.975])
    mean = float(headline_V.mean())
    credit_U = total_U / num_vectors
    return TableRow(
        name=name,
        kind="scheme",
        score=score_units(credit_U, pairs=pairs, ties=ties),
        credit_P=total_P / num_vectors,
        credit_U=credit_U,
        draws=DrawSpread(num_draws=num_vectors, mean=mean, low=float(low), high=float(high)),
        **more,
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
    return tuple(
        row if row is rows[0] else replace(row, comparison=paired(row, rows[0], pairs, seed=seed))
        for row in rows
    )


def paired(
    first: TableRow, second: TableRow, pairs: BenchmarkPairs, *, seed: int = 0
) -> Comparison:
    """The first row against the second on the same units."""
    return compare_credits(
        first.credit_U,
        second.credit_U,
        subset_P=units_of_pairs(pairs).subset_U,
        weighting=pairs.benchmark.weighting,
        seed=seed,
    )


def told_apart(rows: Sequence[TableRow], *, pairs: BenchmarkPairs, seed: int = 0) -> str:
    """Which of some rows the benchmark's pairs tell apart, in a sentence.

    Two rows are told apart where the 95 % interval of their paired difference leaves out 0.

    Args:
        rows: Two or more.
        pairs: Of the benchmark.
        seed: Of the bootstrap.
    """
    both = [(one, other) for place, one in enumerate(rows) for other in rows[place + 1 :]]
    found = []
    for one, other in both:
        comparison = paired(one, other, pairs, seed=seed)
        if comparison.ci_low > 0 or comparison.ci_high < 0:
            found.append(f"{one.name} from {other.name}")
    names = f"{', '.join(row.name for row in rows[:-1])} and {rows[-1].name}"
    if not found:
        return f"these {pairs.num_pairs} pairs tell apart no two of {names}"
    told = f"{len(found)} of {len(both)} pairs of {names}: {'; '.join(found)}"
    return f"these {pairs.num_pairs} pairs tell apart {told}"


def _stored_row(
    stored: StoredResults, *, path: Path, pairs: BenchmarkPairs, whose: str | None
) -> TableRow:
    """A row with all that its file says of it; its notes and marks begin with whose they are."""

    def told(text: str) -> str:
        before = "" if whose is None else f"{whose}: "
        return text if text.startswith(before) else f"{before}{text}"

    benchmark, found = pairs.benchmark, stored.results
    refuse_other_pairs(str(path), stored.on, (benchmark.name, pairs.digest, benchmark.weighting))
    # Older files do not say what a row is; in them only a judge's tie counts one half.
    about = found.about or RowAbout(kind="judge" if found.ties == "half" else "model")
    order_P = stored.order_of(pairs.keys)
    this = f"benchmark {benchmark.name}"  # every table on it is marked so itself
    own = {name: getattr(about, name) for name in RowAbout.model_fields}
    own["synthetic"] = tuple(told(part) for part in about.synthetic if part != this)
    own["notes"] = tuple(map(told, about.notes))
    return credit_row(
        found.name,
        found.credit_P[order_P],
        pairs=pairs,
        ties=found.ties,
        reward_P2=None if found.reward_P2 is None else found.reward_P2[order_P],
        **own,
    )
