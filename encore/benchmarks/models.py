"""Models on a benchmark: open one, score the pairs, give its rows and what one must know of it.

Suffixes: P pairs, 2 responses (chosen, rejected), R heads, D hidden.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from encore.benchmarks.benchmark_config import BenchmarkConfig
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.rows import TableRow, reward_row
from encore.benchmarks.scoring import ScoredBenchmark, encoded_pairs, score_benchmark
from encore.errors import InputError
from encore.model.opening import OpenedModel, open_reward_model
from encore.model_files import folder_digest
from encore.reporting import Reporter
from encore.scoring.scoring_run import HowToCompute
from encore.training.embeddings import embed, prompt_table
from encore.training.gate import RESULT_FILE
from encore.training.gating_network import GATE_FILE, WEIGHTS_FILE, TrainedGate, load_gate


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
        behind: The model, and the gate behind its own rows.
        backbone: Revision of the model that its training started from; None where not recorded.
    """

    scored: ScoredBenchmark
    rows: tuple[TableRow, ...]
    synthetic: tuple[str, ...]
    behind: ModelBehind
    backbone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Scores one model after the other on the same pairs.

    Attributes:
        pairs: Of the benchmark.
        root: Holds a folder for each model's head scores.
        config: How models are opened and compute.
        reporter: Told how far it is.
    """

    pairs: BenchmarkPairs
    root: Path
    config: BenchmarkConfig
    reporter: Reporter

    def heads(self, check_heads: Callable[[Sequence[str]], None]) -> ScoredModel:
        """Score the model whose heads are weighed, and its prompts where a gate reads them.

        Args:
            check_heads: Told the heads before anything is scored; raises where they are wrong.

        Raises:
            InputError: No such model, a single head, a gate of another model.
            EncoreError: As `score_benchmark`.
        """
        config = self.config
        assert config.model is not None, "the caller has looked"
        opened = self._open(config.model, revision=config.revision)
        if len(opened.model.head_ids) < 2:
            raise InputError(
                f"model {opened.name}: its only head is {opened.model.head_ids[0]!r}, there is "
                "nothing to weigh; give it as a reward model (--reward-model NAME=…)"
            )
        check_heads(opened.model.head_ids)
        gate = None if config.gate is None else _open_gate(config.gate, opened, config.model)
        scored = self._score(opened, shown=opened.name)
        rows = []
        if gate is not None:
            reward_P2 = self._gated_rewards(scored, opened, gate.trained)
            row = reward_row(
                "moe gate",
                reward_P2,
                pairs=self.pairs,
                kind="scheme",
                method="moe",
                uses_labels=True,
                synthetic=tuple(f"gate: {part}" for part in gate.synthetic),
                notes=gate.notes,
            )
            rows.append(row)
        return _scored_model(opened, scored, rows, shown=opened.name, gate=gate)

    def reward_model(self, name: str, model: str) -> ScoredModel:
        """Score a reward model with one head: a row of the table.

        Args:
            name: Of the row; the paper's method of that name stands beside it.
            model: With one head.

        Raises:
            InputError: No such model, or several heads and no weights.
            EncoreError: As `score_benchmark`.
        """
        opened = self._open(model, revision=self.config.row_revisions.get(name))
        if len(opened.model.head_ids) != 1:
            raise InputError(
                f"reward model {name!r} ({opened.name}): it has {len(opened.model.head_ids)} heads "
                "and says not how to weigh them; give it as --model, or fold its heads into one "
                "with `encore export` first"
            )
        scored = self._score(opened, shown=name)
        reward_P2 = scored.scores.score_P2R[:, :, 0].astype(np.float64)
        row = reward_row(name, reward_P2, pairs=self.pairs, method=name)
        return _scored_model(opened, scored, [row], shown=name)

    def _open(self, model: str, *, revision: str | None) -> OpenedModel:
        gc.collect()  # what is left of the model before makes room on the device
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return open_reward_model(
            model,
            device=self.config.device,
            dtype=self.config.dtype,
            max_length=self.config.max_length,
            revision=revision,
        )

    def _score(self, opened: OpenedModel, *, shown: str) -> ScoredBenchmark:
        config = self.config
        return score_benchmark(
            self.pairs,
            opened=opened,
            root=self.root,
            how=HowToCompute(
                layout=config.layout, tokens_per_microbatch=config.tokens_per_microbatch
            ),
            truncation=config.truncation,
            shown=shown,
            reporter=self.reporter,
        )

    def _gated_rewards(
        self, scored: ScoredBenchmark, opened: OpenedModel, gate: TrainedGate
    ) -> NDArray[np.float64]:
        """The gate's weighted sum of centred head scores, reward_P2, chosen first.

        The gate reads the state where the assistant's turn begins, so every prompt goes through the
        trunk once more; what is computed is kept beside the head scores.
        """
        title = f"{opened.name}, prompts of the gate"
        self.reporter.started(title, total=self.pairs.num_pairs)
        encoded = encoded_pairs(opened, self.pairs.pairs, truncation=self.config.truncation)
        chosen = [pair.chosen for pair in encoded]
        prompts = prompt_table(
            [one.token_ids for one in chosen], [one.num_prompt for one in chosen]
        )
        states = embed(
            opened.model,
            {"prompt": prompts},
            cache=scored.folder / "prompts",
            pad_token_id=opened.tokenizer.pad_token_id,
            reporter=self.reporter,
        )
        weight_PR = gate.weights(states["prompt"]).astype(np.float64)
        score_P2R = scored.scores.score_P2R.astype(np.float64)
        return np.asarray(np.einsum("pr,pcr->pc", weight_PR, score_P2R), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gate:
    """A gate that belongs to a model, as far as its folder says."""

    trained: TrainedGate
    digest: str
    synthetic: tuple[str, ...]
    notes: tuple[str, ...]


def _open_gate(gate: Path, opened: OpenedModel, model: str) -> _Gate:
    """A gate over the heads of a model; nothing is computed yet.

    Raises:
        InputError: No gate there, or one of other heads, of a trunk of another width, or of
            another model with heads of the same names.
    """
    trained = load_gate(gate, head_ids=opened.model.head_ids)
    num_inputs = trained.num_inputs
    if num_inputs != opened.model.hidden_size:
        raise InputError(
            f"gate {gate}: it reads states of {num_inputs} numbers, those of model {opened.name} "
            f"have {opened.model.hidden_size}; train a gate for this model with `encore gate`"
        )
    # Not of its report, which says how long the training took.
    parts = (hashlib.sha256((gate / name).read_bytes()) for name in (GATE_FILE, WEIGHTS_FILE))
    digest = hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()
    folder = Path(model).expanduser()  # the model's, or the run's around it; not there for the hub
    digests = [folder_digest(one) for one in (folder, folder / "model") if one.is_dir()]
    recorded = _recorded(gate)
    synthetic = tuple(recorded.get("synthetic", ()))
    if not recorded or not digests:
        unknown = f"gate {gate.name}: nothing says that it was trained for model {opened.name}"
        return _Gate(trained=trained, digest=digest, synthetic=synthetic, notes=(unknown,))
    if recorded["model"] not in {f"sha256:{one}" for one in digests}:
        raise InputError(
            f"gate {gate}: it was trained for another model ({recorded['model'][:19]}…) than "
            f"{opened.name}, whose heads have the same names; train one for this model with "
            "`encore gate`"
        )
    return _Gate(trained=trained, digest=digest, synthetic=synthetic, notes=())


def _recorded(gate: Path) -> Mapping[str, Any]:
    """What the gate's folder says of its training; nothing for a gate that came without it."""
    path = gate / RESULT_FILE
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
        return {"model": str(found["model"]), "synthetic": list(found["synthetic"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: it does not say for which model the gate was trained "
            f"({type(error).__name__}); train it again with `encore gate`"
        ) from error


def _scored_model(
    opened: OpenedModel,
    scored: ScoredBenchmark,
    rows: Sequence[TableRow],
    *,
    shown: str,
    gate: _Gate | None = None,
) -> ScoredModel:
    """With what the model's own record says; each row says it too."""
    metadata = opened.metadata
    synthetic = tuple(f"model {shown}: {part}" for part in metadata.get("synthetic", ()))
    marked = (
        replace(
            row,
            synthetic=(*synthetic, *row.synthetic),
            notes=(*scored.notes, *row.notes),
            num_cut_pairs=scored.num_cut_rows,
        )
        for row in rows
    )
    return ScoredModel(
        scored=scored,
        rows=tuple(marked),
        synthetic=synthetic,
        behind=ModelBehind(
            name=scored.model,
            digest=scored.model_digest,
            revision=metadata.get("revision"),
            gate=None if gate is None else gate.digest,
        ),
        backbone=metadata.get("backbone_identity", {}).get("revision"),
    )
