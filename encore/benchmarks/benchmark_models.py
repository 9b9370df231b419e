"""Models on a benchmark: open one, score every pair under its heads once, give its rows.

Head scores are kept in a folder that `encore.scoring.head_scores.read_head_scores` reads:
``score.json`` and verified shards, of which a second call scores only those that are missing or
damaged.

Suffixes: P pairs, 2 responses (chosen, rejected), R heads, D hidden.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from encore.benchmarks.benchmark_config import BenchmarkConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.table_rows import RowMetadata, TableRow, reward_row
from encore.core.errors import EncoreError, InputError
from encore.core.files import file_sha256
from encore.core.model_files import folder_digest
from encore.core.reporting import SILENT, Reporter
from encore.data.records import PreferencePair
from encore.model.conversation import EncodedPair, EncodedResponse
from encore.model.opening import OpenedModel, open_reward_model
from encore.runs.shard_runner import RunReport, work_through
from encore.scoring.head_scores import HeadScores, read_head_scores
from encore.scoring.scoring_run import score_job, score_manifest
from encore.training.baselines.gate import RESULT_FILE
from encore.training.baselines.gating_network import (
    GATE_FILE,
    WEIGHTS_FILE,
    GatingNetwork,
    load_gate,
)
from encore.training.pooled_states import embed, prompt_tokens
from encore.weighting.weight_vector import head_weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredModel:
    """One model's head scores of a benchmark, its rows, and what one must know of it.

    Attributes:
        folder: Where the scores are kept.
        name: The model's, never a machine's path.
        scores: One row a pair of the benchmark, in its order, with its subset.
        num_cut_pairs: Pairs of which a response was too long and lost its oldest tokens.
        num_computed: Pairs scored by this call; 0 where all were there already.
        notes: What a reader should know of these scores, a sentence each.
        synthetic: What of the model is synthetic, in words.
        model_identity: Name of the model, digest of everything that its scores follow from,
            its revision (the hub's commit, or the digest of its content; None for a model of
            our training), and the digest of the gate that weighs its heads, if one does.
        backbone: Revision of the model that its training started from; None where not recorded.
        row: Its own; those of schemes over its heads are made elsewhere.
    """

    folder: Path
    name: str
    scores: HeadScores
    num_cut_pairs: int
    num_computed: int
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]
    model_identity: Mapping[str, str | None]
    backbone: str | None
    row: TableRow | None = None

    def with_metadata(self, row: TableRow, *, gate: str | None = None) -> TableRow:
        """A row from these scores, with what is known of the model and of the gate's digest."""
        noted = row.with_metadata(
            synthetic=(*row.metadata.synthetic, *self.synthetic),
            notes=(*row.metadata.notes, *self.notes),
            num_cut_pairs=self.num_cut_pairs,
        )
        return replace(noted, model_identity={**self.model_identity, "gate": gate})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Scores one model after the other on the same pairs.

    Attributes:
        pairs: Of the benchmark.
        root: Holds a folder for each model's head scores.
        config: How models are opened and compute.
        reporter: Told how far it is.
        shard_size: Pairs in one file: what a stopped process loses at most.
    """

    pairs: BenchmarkPairs
    root: Path
    config: BenchmarkConfig
    reporter: Reporter = SILENT
    shard_size: int = 1000

    def heads(self, rule_ids: Sequence[str]) -> ScoredModel:
        """Score the model whose heads are weighed, and its prompts where a gate reads them.

        Args:
            rule_ids: The rules that weigh the heads.

        Raises:
            InputError: No such model, a single head, heads of other rules, a gate of another model.
            EncoreError: As `score`.
        """
        config = self.config
        assert config.model is not None, "the caller has looked"
        opened = self._open(config.model, revision=config.revision)
        if len(opened.model.head_ids) < 2:
            raise InputError(
                f"model {opened.name}: its only head is {opened.model.head_ids[0]!r}, there is "
                "nothing to weigh; give it as a reward model (--reward-model NAME=…)"
            )
        head_weights(dict.fromkeys(rule_ids, 1.0), head_ids=opened.model.head_ids)
        gate = None if config.gate is None else open_gate(config.gate, opened, config.model)
        scored = self.score(opened, shown=opened.name)
        if config.gate is None or gate is None:
            return scored
        trained, metadata = gate
        reward_P2 = self._gated_rewards(scored, opened, trained)
        row = reward_row("moe gate", reward_P2, pairs=self.pairs, method="moe", metadata=metadata)
        digests = "".join(file_sha256(config.gate / name) for name in (GATE_FILE, WEIGHTS_FILE))
        row = scored.with_metadata(row, gate=hashlib.sha256(bytes.fromhex(digests)).hexdigest())
        return replace(scored, row=row, model_identity=row.model_identity or {})

    def reward_model(self, name: str, model: str) -> ScoredModel:
        """Score a reward model with one head: a row of the table.

        Args:
            name: Of the row; the paper's method of that name stands beside it.
            model: With one head.

        Raises:
            InputError: No such model, or several heads and no weights.
            EncoreError: As `score`.
        """
        opened = self._open(model, revision=self.config.row_revisions.get(name))
        if len(opened.model.head_ids) != 1:
            raise InputError(
                f"reward model {name!r}: it has {len(opened.model.head_ids)} heads, not one; "
                "give it as --model, or fold them into one with `encore export`"
            )
        scored = self.score(opened, shown=name)
        reward_P2 = scored.scores.score_P2R[:, :, 0].astype(np.float64)
        row = reward_row(name, reward_P2, pairs=self.pairs, method=name)
        return replace(scored, row=scored.with_metadata(row))

    def _open(self, model: str, *, revision: str | None) -> OpenedModel:
        gc.collect()  # what is left of the model before makes room on the device
        torch.cuda.empty_cache()
        how = self.config.model_dump(include={"device", "dtype", "max_length"})
        return open_reward_model(model, revision=revision, **how)

    def score(self, opened: OpenedModel, *, shown: str) -> ScoredModel:
        """The head scores of the pairs, in ``root/<key>``: computed, or found there.

        The same model and pairs always mean the same key: the data's own order changes no shard.
        Rows and the reporter call the model what is ``shown``.

        Raises:
            InputError: A pair that the model's template refuses; the folder holds something else.
            EncoreError: A score that is not finite, a full disk, too little memory on the device.
            KeyboardInterrupt: Finished shards are kept.
        """
        pairs, config, metadata = self.pairs, self.config, opened.metadata
        definition = pairs.benchmark.model_dump(include={"name", "version"})
        cut = {} if config.truncation == "encore" else {"truncation": config.truncation}
        manifest = score_manifest(
            opened,
            data_sha256=pairs.digest,
            num_pairs=pairs.num_pairs,
            shard_size=self.shard_size,
            further_identity={"benchmark": definition, **cut},
        )
        folder = self.root / manifest.score_key
        keys = [(pair.pair_id, pair.source) for pair in pairs.pairs]
        plan = sorted(range(len(keys)), key=keys.__getitem__)
        planned = [(pairs.pairs[place], pairs.subset_P[place]) for place in plan]
        job = score_job(
            folder,
            manifest,
            lambda shard: planned[shard.start : shard.stop],
            opened=opened,
            computing=config,
            encode=partial(encoded_pairs, opened, truncation=config.truncation),
            title=shown,
        )
        report = work_through(job, reporter=self.reporter)
        if report.failures:
            index, error = min(report.failures.items())
            raise EncoreError(f"{folder}: shard {index} of the head scores failed: {error}")
        about = {"name": opened.name, "digest": opened.digest}
        return ScoredModel(
            folder=folder,
            name=opened.name,
            scores=read_head_scores(folder).take(np.argsort(plan)),  # they are read in this order
            num_cut_pairs=report.total("num_cut_pairs"),
            num_computed=sum(one.num_rows // 2 for one in report.outcomes if one.counts),
            notes=tuple(_notes(opened, report, pairs, truncation=config.truncation)),
            synthetic=tuple(f"model {shown}: {part}" for part in metadata.get("synthetic", ())),
            model_identity={**about, "revision": metadata.get("revision"), "gate": None},
            backbone=metadata.get("backbone_identity", {}).get("revision"),
        )

    def _gated_rewards(
        self, scored: ScoredModel, opened: OpenedModel, gate: GatingNetwork
    ) -> NDArray[np.float64]:
        """The gate's weighted sum of centred head scores, reward_P2, chosen first.

        The gate reads the state where the assistant's turn begins, so every prompt goes through the
        trunk once more; what is computed is kept beside the head scores.
        """
        encoded = encoded_pairs(opened, self.pairs.pairs, truncation=self.config.truncation)
        state_P1D = embed(
            opened.model,
            [(prompt_tokens(pair.chosen.token_ids, pair.chosen.num_prompt),) for pair in encoded],
            cache=scored.folder / "prompts",
            pad_token_id=opened.tokenizer.pad_token_id,
            reporter=self.reporter,
        )
        weight_PR = gate.weights(state_P1D[:, 0]).astype(np.float64)
        score_P2R = scored.scores.score_P2R.astype(np.float64)
        return np.asarray(np.einsum("pr,pcr->pc", weight_PR, score_P2R), dtype=np.float64)


def encoded_pairs(
    opened: OpenedModel, pairs: Sequence[PreferencePair], *, truncation: str
) -> list[EncodedPair]:
    """The token ids of both responses of every pair, cut to the model's length.

    Args:
        opened: The model.
        pairs: Any pairs.
        truncation: ``encore`` keeps the token that every text of the model begins with.
            ``rewardbench`` cuts plainly from the left, as the `rewardbench` tool does.

    Raises:
        InputError: A pair that the model's template refuses.
    """
    if truncation == "encore":
        return opened.tokenizer.encode_pairs(pairs)
    whole, most = copy.copy(opened.tokenizer), opened.tokenizer.max_length
    whole.max_length = sys.maxsize

    def cut(one: EncodedResponse) -> EncodedResponse:
        num_cut = max(0, len(one.token_ids) - most)
        rest, num_prompt = one.token_ids[num_cut:], max(0, one.num_prompt - num_cut)
        return EncodedResponse(token_ids=rest, num_prompt=num_prompt, num_cut=num_cut)

    return [
        EncodedPair(chosen=cut(pair.chosen), rejected=cut(pair.rejected))
        for pair in whole.encode_pairs(pairs)
    ]


def _notes(
    opened: OpenedModel, report: RunReport, pairs: BenchmarkPairs, *, truncation: str
) -> Iterator[str]:
    if num_cut := report.total("num_cut_pairs"):
        how = "as" if truncation == "rewardbench" else "otherwise than"
        yield (
            f"{opened.name}: {num_cut} of {pairs.num_pairs} pairs are longer than "
            f"{opened.tokenizer.max_length} tokens and lost {report.total('num_cut_tokens')}, the "
            f"oldest; they are cut {how} the rewardbench tool cuts them"
        )
    # A downloaded model is rendered by our template for want of its own.
    if "Human: " in opened.tokenizer.template and "objective" not in opened.metadata:
        yield (
            f"{opened.name}: it reads conversations as plain Human/Assistant turns; right for a "
            "model that was trained on them, not for one that came without its chat template"
        )


def open_gate(gate: Path, opened: OpenedModel, model: str) -> tuple[GatingNetwork, RowMetadata]:
    """A gate over the heads of a model, and what its row says; nothing is computed yet.

    Raises:
        InputError: No gate there, one of other heads, or of another model with heads of the same
            names.
    """
    trained = load_gate(gate, head_ids=opened.model.head_ids)
    path = gate / RESULT_FILE
    try:
        found = json.loads(path.read_bytes())
        recorded, marks = found["model"], tuple(f"gate: {part}" for part in found["synthetic"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"it does not say for which model it was trained ({type(error).__name__})"
        raise InputError(f"{path}: {problem}; train it again with `encore gate`") from error
    folder = Path(model).expanduser()  # the model's, or the run's around it
    digests = [folder_digest(one) for one in (folder, folder / "model") if one.is_dir()]
    if recorded not in {f"sha256:{one}" for one in digests}:
        raise InputError(
            f"gate {gate}: it was trained for another model ({str(recorded)[:19]}…) than "
            f"{opened.name}; train one for this model with `encore gate`"
        )
    return trained, RowMetadata(kind="scheme", uses_labels=True, synthetic=marks)
