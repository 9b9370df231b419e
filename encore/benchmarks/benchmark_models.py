"""Models on a benchmark: open a model, score every pair once, return its rows.

The head scores stay in a folder that `encore.scoring.head_scores.read_head_scores` reads:
``score.json`` and verified shards. A second call scores only missing or damaged shards.

Suffixes: P pairs, T pairs that the chat template takes, 2 responses (chosen, rejected), R heads,
D hidden.
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
from itertools import compress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from encore.benchmarks.benchmark_options import (
    BenchmarkConfig,
    BenchmarkRunOptions,
    BenchmarkScoringConfig,
)
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.table_rows import ComputedWith, RowMetadata, TableRow, reward_row
from encore.core.errors import EncoreError, InputError
from encore.core.files import file_sha256
from encore.core.model_files import folder_digest, local_path
from encore.core.reporting import SILENT, Reporter
from encore.data.records import PreferencePair
from encore.model.conversation import EncodedPair, EncodedResponse
from encore.model.held_out_scores import HeldOutScores
from encore.model.open_model import OpenedModel, open_reward_model
from encore.model.template_refusals import TemplateRefusals, find_refusals
from encore.runs.manifest import read_manifest
from encore.runs.worker import RunReport, work_through
from encore.scoring.head_scores import HeadScores, ScoreManifest, read_head_scores
from encore.scoring.scoring_run import Scoring, score_manifest
from encore.training.baselines.gate import RESULT_FILE
from encore.training.baselines.gating_network import (
    GATE_FILE,
    WEIGHTS_FILE,
    GatingNetwork,
    load_gate,
)
from encore.training.pooled_states import embed, prompt_tokens
from encore.weighting.preference_head import rule_heads
from encore.weighting.weight_vector import head_weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredModel:
    """Head scores of one model on a benchmark, with facts about the model.

    Attributes:
        folder: Folder of the scores.
        name: Name of the model, never a path of the machine.
        scores: Head scores of the benchmark's pairs, in their order.
        num_cut_pairs: Pairs with a response that was too long and lost its oldest tokens.
        num_computed: Pairs scored by this call. 0 if all scores were stored already.
        notes: Sentences for readers of these scores.
        synthetic: Labels of the synthetic parts of the model.
        model_identity: Name of the model, digest of everything that its scores follow from,
            its revision (the hub's commit, or the digest of its content; None for a model of
            our training), and the digest of the gate that weighs its heads, if one does.
        backbone: Revision of the model that its training started from. None if not recorded.
        num_set_aside_pairs: Pairs that the chat template refuses; they have no scores (NaN).
        row: Row of the reward model or gate. None for heads that schemes weigh.
        held_out: Scores of the pairs that a training with head 0 held out.
        computed_with: Settings and versions of the computation.
    """

    folder: Path
    name: str
    scores: HeadScores
    num_cut_pairs: int
    num_computed: int
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]
    model_identity: Mapping[str, str | None]
    computed_with: ComputedWith
    backbone: str | None
    num_set_aside_pairs: int = 0
    row: TableRow | None = None
    held_out: HeldOutScores | None = None

    def with_metadata(self, row: TableRow, *, gate: str | None = None) -> TableRow:
        """Return the row with notes, labels and identity of the model, and the gate's digest."""
        described = row.with_metadata(
            synthetic=(*row.metadata.synthetic, *self.synthetic),
            notes=(*row.metadata.notes, *self.notes),
            num_set_aside_pairs=self.num_set_aside_pairs,
            num_cut_pairs=self.num_cut_pairs,
            computed_with=self.computed_with,
        )
        return replace(described, model_identity={**self.model_identity, "gate": gate})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Scorer of several models, one after the other, on the same pairs.

    Attributes:
        pairs: Pairs of the benchmark.
        root: Folder with one folder of head scores per model.
        config: Models, data type and maximum length.
        how: Device, and how the models compute.
        reporter: Receives the progress, in pairs of each model.
        shard_size: Pairs per file: at most this many are lost when a process stops.
    """

    pairs: BenchmarkPairs
    root: Path
    config: BenchmarkConfig
    how: BenchmarkRunOptions = BenchmarkRunOptions()
    reporter: Reporter = SILENT
    shard_size: int = 1000

    def heads(self, rule_ids: Sequence[str]) -> ScoredModel:
        """Score the model whose heads are weighed, and its prompts if there is a gate.

        Args:
            rule_ids: Rules that have weights. They must be the model's heads, head 0 apart.

        Raises:
            InputError: The model is missing, has a single head or heads of other rules, or the gate
                belongs to another model.
            EncoreError: As for `score`.
        """
        config = self.config
        assert config.model is not None, "the caller checks this"
        opened = self._open(config.model, revision=config.revision)
        if len(opened.model.head_ids) < 2:
            raise InputError(
                f"model {opened.name}: its only head is {opened.model.head_ids[0]!r}, there is "
                "nothing to weigh; give it as a reward model (--reward-model NAME=…)"
            )
        head_weights(dict.fromkeys(rule_ids, 1.0), head_ids=rule_heads(opened.model.head_ids))
        gate = None if config.gate is None else open_gate(config.gate, opened, config.model)
        scored = self.score(opened, title=opened.name)
        if config.gate is None or gate is None:
            return scored
        network, metadata = gate
        reward_P2 = self._gated_rewards(scored, opened, network)
        row = reward_row("moe gate", reward_P2, pairs=self.pairs, method="moe", metadata=metadata)
        digests = "".join(file_sha256(config.gate / name) for name in (GATE_FILE, WEIGHTS_FILE))
        row = scored.with_metadata(row, gate=hashlib.sha256(bytes.fromhex(digests)).hexdigest())
        return replace(scored, row=row, model_identity=row.model_identity or {})

    def reward_model(self, name: str, model: str) -> ScoredModel:
        """Score a reward model with one head and make its row.

        Args:
            name: Name of the row. The paper's method of that name stands beside it.
            model: Folder or hub id of a model with one head.

        Raises:
            InputError: The model is missing or has several heads.
            EncoreError: As for `score`.
        """
        opened = self._open(model, revision=self.config.row_revisions.get(name))
        if len(opened.model.head_ids) != 1:
            raise InputError(
                f"reward model {name!r}: it has {len(opened.model.head_ids)} heads, not one; "
                "give it as --model, or fold them into one with `encore export`"
            )
        scored = self.score(opened, title=name)
        reward_P2 = scored.scores.score_P2R[:, :, 0].astype(np.float64)
        row = reward_row(name, reward_P2, pairs=self.pairs, method=name)
        return replace(scored, row=scored.with_metadata(row))

    def _open(self, model: str, *, revision: str | None) -> OpenedModel:
        gc.collect()  # free the device memory of the model before
        torch.cuda.empty_cache()
        settings = self.config.model_dump(include={"dtype", "max_length"})
        return open_reward_model(model, revision=revision, device=self.how.device, **settings)

    def score(self, opened: OpenedModel, *, title: str) -> ScoredModel:
        """Return the head scores of the pairs from ``root/<key>``; compute missing shards.

        The same model and pairs have the same key, whatever the order of the data.

        Args:
            opened: The opened reward model.
            title: Name of the model for the progress bar and the synthetic labels.

        Raises:
            InputError: The model's template refuses more than ``how.max_set_aside_share`` of the
                pairs, or the folder holds something else.
            EncoreError: A score is not finite, the disk is full, or the device lacks memory.
            KeyboardInterrupt: Finished shards are kept.
        """
        pairs, config = self.pairs, self.config
        refusals = find_refusals(opened.tokenizer, pairs.pairs)
        refusals.check(self.how.max_set_aside_share, model=opened.name)
        definition = pairs.benchmark.model_dump(include={"name", "version"})
        manifest = score_manifest(
            config,
            BenchmarkScoringConfig,
            opened,
            data_sha256=pairs.digest,
            num_pairs=pairs.num_pairs,
            shard_size=self.shard_size,
            refusals=refusals,
            benchmark=definition,
        )
        folder = self.root / manifest.score_key
        keys = [(pair.pair_id, pair.source) for pair in pairs.pairs]
        plan = sorted(range(len(keys)), key=keys.__getitem__)
        planned = [(pairs.pairs[index], pairs.subset_P[index]) for index in plan]
        scoring = Scoring(
            run_dir=folder,
            manifest=manifest,
            read_shard_pairs=lambda shard: planned[shard.start : shard.stop],
            opened=opened,
            computing=self.how,
            encode=partial(encoded_pairs, opened, truncation=config.truncation),
            title=title,
        )
        report = work_through(scoring.job(), reporter=self.reporter)
        if report.failures:
            index, error = min(report.failures.items())
            raise EncoreError(f"{folder}: shard {index} of the head scores failed: {error}")
        scores = read_head_scores(folder).take(np.argsort(plan))  # back in the order of pairs
        return self._scored_model(
            opened, scores, report, refusals=refusals, folder=folder, title=title
        )

    def _notes(
        self, opened: OpenedModel, report: RunReport, refusals: TemplateRefusals
    ) -> Iterator[str]:
        """Yield sentences on pairs that the model could not read as they are."""
        for note in refusals.notes:
            yield f"{opened.name}: {note}"
        if num_cut := report.total("num_cut_pairs"):
            manner = "the same way" if self.config.truncation == "rewardbench" else "another way"
            yield (
                f"{opened.name}: {num_cut} of {self.pairs.num_pairs} pairs are longer than "
                f"{opened.tokenizer.max_length} tokens and lost {report.total('num_cut_tokens')}, "
                f"the oldest; the rewardbench tool cuts them in {manner}"
            )
        # A downloaded model without a chat template gets ours.
        if "Human: " in opened.tokenizer.template and "objective" not in opened.metadata:
            yield (
                f"{opened.name}: it reads conversations as plain Human/Assistant turns; this is "
                "right for a model that was trained on such turns, wrong for one whose chat "
                "template is missing"
            )

    def _scored_model(
        self,
        opened: OpenedModel,
        scores: HeadScores,
        report: RunReport,
        *,
        refusals: TemplateRefusals,
        folder: Path,
        title: str,
    ) -> ScoredModel:
        """Return the scores of a model with facts about the model and notes for readers."""
        metadata = opened.metadata
        trunk = opened.model.trunk
        computed_with = ComputedWith.recorded(
            read_manifest(folder, ScoreManifest).versions,
            max_length=opened.tokenizer.max_length,
            dtype=str(trunk.dtype).removeprefix("torch."),
            attention=trunk.config._attn_implementation,  # no public name
        )
        return ScoredModel(
            folder=folder,
            name=opened.name,
            scores=scores,
            num_set_aside_pairs=refusals.num_set_aside,
            num_cut_pairs=report.total("num_cut_pairs"),
            num_computed=sum(
                shard.num_rows // 2 for shard in report.outcomes if shard.action == report.kind.DONE
            )
            - report.computed("num_set_aside_pairs"),
            notes=tuple(self._notes(opened, report, refusals)),
            synthetic=tuple(f"model {title}: {part}" for part in metadata.get("synthetic", ())),
            model_identity={
                "name": opened.name,
                "digest": opened.digest,
                "revision": metadata.get("revision"),
                "gate": None,
            },
            computed_with=computed_with,
            backbone=metadata.get("backbone_identity", {}).get("revision"),
            held_out=opened.held_out,
        )

    def _gated_rewards(
        self, scored: ScoredModel, opened: OpenedModel, gate: GatingNetwork
    ) -> NDArray[np.float64]:
        """Return the gate's weighted sum of centred head scores, reward_P2; NaN if not scored.

        The gate reads the hidden state at the beginning of the assistant's turn, so every prompt
        goes through the trunk once more. These states are stored beside the head scores.
        """
        is_scored_P = ~np.isnan(scored.scores.score_P2R[:, 0, 0])
        encoded = encoded_pairs(
            opened, list(compress(self.pairs.pairs, is_scored_P)), truncation=self.config.truncation
        )
        state_P1D = embed(
            opened.model,
            [(prompt_tokens(pair.chosen.token_ids, pair.chosen.num_prompt),) for pair in encoded],
            cache=scored.folder / "prompts",
            pad_token_id=opened.tokenizer.pad_token_id,
            reporter=self.reporter,
        )
        weight_TR = gate.weights(state_P1D[:, 0]).astype(np.float64)
        weight_PR = np.full((len(is_scored_P), weight_TR.shape[1]), np.nan)
        weight_PR[is_scored_P] = weight_TR
        rule_scores_P2R = scored.scores.score_P2R[:, :, -weight_PR.shape[1] :]  # without head 0
        score_P2R = rule_scores_P2R.astype(np.float64)
        return np.asarray(np.einsum("pr,pcr->pc", weight_PR, score_P2R), dtype=np.float64)


def encoded_pairs(
    opened: OpenedModel, pairs: Sequence[PreferencePair], *, truncation: str
) -> list[EncodedPair]:
    """Encode both responses of every pair, cut to the model's maximum length.

    Args:
        opened: Model whose tokenizer and template encode the pairs.
        pairs: Pairs to encode.
        truncation: ``encore`` keeps the token that every text of the model begins with.
            ``rewardbench`` removes the first tokens, as the `rewardbench` tool does.

    Raises:
        InputError: The model's template refuses a pair.
    """
    if truncation == "encore":
        return opened.tokenizer.encode_pairs(pairs)
    uncut, max_length = copy.copy(opened.tokenizer), opened.tokenizer.max_length
    uncut.max_length = sys.maxsize

    def cut(response: EncodedResponse) -> EncodedResponse:
        num_cut = max(0, len(response.token_ids) - max_length)
        return EncodedResponse(
            token_ids=response.token_ids[num_cut:],
            num_prompt=max(0, response.num_prompt - num_cut),
            num_cut=num_cut,
        )

    return [
        EncodedPair(chosen=cut(pair.chosen), rejected=cut(pair.rejected))
        for pair in uncut.encode_pairs(pairs)
    ]


def open_gate(gate: Path, opened: OpenedModel, model: str) -> tuple[GatingNetwork, RowMetadata]:
    """Load a gate over the heads of a model, and the metadata of its row.

    Raises:
        InputError: The gate is missing or was trained for another model or other heads.
    """
    network = load_gate(gate, head_ids=rule_heads(opened.model.head_ids))
    path = gate / RESULT_FILE
    try:
        result = json.loads(path.read_bytes())
        recorded, labels = result["model"], tuple(f"gate: {part}" for part in result["synthetic"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"it does not say for which model it was trained ({type(error).__name__})"
        raise InputError(f"{path}: {problem}; train it again with `encore gate`") from error
    folder = local_path(model)  # of the model, or of the training run that contains it
    digests = [folder_digest(path) for path in (folder, folder / "model") if path.is_dir()]
    if recorded not in {f"sha256:{digest}" for digest in digests}:
        raise InputError(
            f"gate {gate}: it was trained for another model ({str(recorded)[:19]}…) than "
            f"{opened.name}; train one for this model with `encore gate`"
        )
    return network, RowMetadata(kind="scheme", uses_labels=True, synthetic=labels)
