"""Models on a benchmark: open one, score the pairs, give its rows and what one must know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from encore.benchmarks.gated import OpenedGate, gated_rewards, open_gate
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.rows import TableRow, reward_row
from encore.benchmarks.scoring import ScoredBenchmark, score_benchmark
from encore.errors import InputError
from encore.model.opening import OpenedModel, open_reward_model
from encore.scores.run import HowToCompute

#: Told what is being scored, how many pairs are done, and of how many.
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How models are opened: see `encore.model.opening.open_reward_model`.

    Attributes:
        device: Where they go.
        dtype: Of their trunks.
        max_length: In tokens.
        revision: Of the hub id of the model whose heads are weighed.
        row_revisions: Of the hub ids of reward models, by the name of their row.
    """

    device: str | None = None
    dtype: str = "auto"
    max_length: int | None = None
    revision: str | None = None
    row_revisions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """What is the same for all models of a table.

    Attributes:
        pairs: Of the benchmark.
        root: Holds a folder for each model's head scores.
        opening: How models are opened.
        how: How they compute.
        on_progress: Told how far it is.
    """

    pairs: BenchmarkPairs
    root: Path
    opening: Opening
    how: HowToCompute
    on_progress: OnProgress | None = None

    def open(self, model: str | Path, *, revision: str | None = None) -> OpenedModel:
        """A model, ready to score."""
        return open_reward_model(
            model,
            device=self.opening.device,
            dtype=self.opening.dtype,
            max_length=self.opening.max_length,
            revision=revision,
        )

    def score(self, opened: OpenedModel, *, shown: str) -> ScoredBenchmark:
        """Its head scores, computed or found."""
        return score_benchmark(
            self.pairs,
            opened=opened,
            root=self.root,
            how=self.how,
            on_progress=self.progress_of(shown),
        )

    def progress_of(self, what: str) -> Callable[[int, int], None] | None:
        """Progress under a name."""
        on_progress = self.on_progress
        if on_progress is None:
            return None
        return lambda num_done, num_pairs: on_progress(what, num_done, num_pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBehind:
    """The model that a row's rewards come from.

    Attributes:
        name: Its name, never a machine's path.
        digest: SHA-256 of everything that its scores follow from.
        revision: The hub's commit, or the digest of its content; None for a model of our training.
        gate: SHA-256 over the files of the gate that weighs its heads; None where none does.
    """

    name: str
    digest: str
    revision: str | None
    gate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredModel:
    """One model's part of a table.

    Attributes:
        scored: Its head scores.
        rows: Its own rows; those of schemes over its heads are made elsewhere.
        synthetic: What of it is synthetic, in words.
        revision: The hub's commit, or the digest of its content; None for a model of our training.
        backbone: The same of the model that its training started from; None where not recorded.
        gate: SHA-256 over the files of the gate behind its own rows; None without one.
    """

    scored: ScoredBenchmark
    rows: tuple[TableRow, ...]
    synthetic: tuple[str, ...]
    revision: str | None = None
    backbone: str | None = None
    gate: str | None = None

    @property
    def behind(self) -> ModelBehind:
        """What is behind rows that weigh its heads, but for the gate's."""
        return ModelBehind(
            name=self.scored.model, digest=self.scored.model_digest, revision=self.revision
        )

    @classmethod
    def of(
        cls, opened: OpenedModel, scored: ScoredBenchmark, rows: Sequence[TableRow], *, shown: str
    ) -> Self:
        """With what the model's own record says; each row says it too."""
        recorded: Sequence[str] = opened.metadata.get("synthetic", ())
        synthetic = tuple(f"model {shown}: {part}" for part in recorded)
        return cls(
            scored=scored,
            rows=tuple(
                replace(
                    row,
                    synthetic=(*synthetic, *row.synthetic),
                    notes=(*scored.notes, *row.notes),
                )
                for row in rows
            ),
            synthetic=synthetic,
            revision=opened.metadata.get("revision"),
            backbone=opened.metadata.get("backbone_identity", {}).get("revision"),
        )


def score_heads(
    scorer: Scorer,
    model: str | Path,
    *,
    gate: Path | None = None,
    check_heads: Callable[[Sequence[str]], None] | None = None,
) -> ScoredModel:
    """Score the model whose heads are weighed, and its prompts where a gate reads them.

    Args:
        scorer: What is the same for all.
        model: With at least two heads.
        gate: A folder of `encore gate` over them: the paper's row "MoE".
        check_heads: Told the heads before anything is scored; raises where they are wrong.

    Raises:
        InputError: No such model, a single head, a gate of another model.
        EncoreError: As `score_benchmark`.
    """
    opened = scorer.open(model, revision=scorer.opening.revision)
    if len(opened.model.head_ids) < 2:
        raise InputError(
            f"model {opened.name}: its only head is {opened.model.head_ids[0]!r}, there is "
            "nothing to weigh; give it as a reward model (--reward-model NAME=…)"
        )
    if check_heads is not None:
        check_heads(opened.model.head_ids)
    opened_gate = None if gate is None else open_gate(gate, opened=opened, model=model)
    scored = scorer.score(opened, shown=opened.name)
    rows = () if opened_gate is None else (_gated_row(scorer, opened, scored, opened_gate),)
    found = ScoredModel.of(opened, scored, rows, shown=opened.name)
    return replace(found, gate=None if opened_gate is None else opened_gate.digest)


def score_reward_model(scorer: Scorer, name: str, model: str | Path) -> ScoredModel:
    """Score a reward model with one head: a row of the table.

    Args:
        scorer: What is the same for all.
        name: Of the row; the paper's method of that name stands beside it.
        model: With one head.

    Raises:
        InputError: No such model, or several heads and no weights.
        EncoreError: As `score_benchmark`.
    """
    opened = scorer.open(model, revision=scorer.opening.row_revisions.get(name))
    if len(opened.model.head_ids) != 1:
        raise InputError(
            f"reward model {name!r} ({opened.name}): it has {len(opened.model.head_ids)} heads "
            "and says not how to weigh them; give it as --model, or fold its heads into one with "
            "`encore export` first"
        )
    scored = scorer.score(opened, shown=name)
    reward_P2 = scored.scores.score_P2R[:, :, 0].astype(np.float64)
    row = reward_row(name, reward_P2, pairs=scorer.pairs, method=name)
    return ScoredModel.of(opened, scored, (row,), shown=name)


def _gated_row(
    scorer: Scorer, opened: OpenedModel, scored: ScoredBenchmark, gate: OpenedGate
) -> TableRow:
    reward_P2 = gated_rewards(
        scored.scores,
        scorer.pairs,
        opened=opened,
        gate=gate.trained,
        cache=scored.folder / "prompts",
        on_progress=scorer.progress_of(f"{opened.name}, prompts of the gate"),
    )
    row = reward_row(
        "moe gate", reward_P2, pairs=scorer.pairs, kind="scheme", method="moe", uses_labels=True
    )
    synthetic = tuple(f"gate: {part}" for part in gate.synthetic)
    return replace(row, synthetic=synthetic, notes=gate.notes)
