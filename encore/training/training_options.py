"""Options of `encore train` and `encore gate`.

Defaults are the paper's where it states them (section "Training": one epoch, learning rate 2e-5).
The paper does not state batch size, schedule and optimizer: there they are usual choices.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from encore.core.config import StageConfig, option
from encore.data.study_options import RatingTableOptions, RunChoice, StudyFolder
from encore.model.backbone_options import BackboneConfig, LayoutName
from encore.model.model_options import set_aside_option

Objective = Literal["multi-head", "bradley-terry"]
Method = Literal["full", "lora", "probe"]
OptimizerName = Literal["auto", "adamw", "adamw-stochastic"]
HeadInit = Literal["zero", "probe", "own"]
PreferenceHead = Literal["none", "joint", "frozen"]

_Decay = Annotated[float, Field(ge=0, lt=1)]

#: Default tokens of one pass by type of device. On a GPU a step is usually one pass: only then does
#: an optimizer that works in the backward pass free each gradient at once.
MICROBATCH_TOKENS = {"cuda": 40_960, "cpu": 4_096}

#: Operations of a method as a share of full training. A frozen weight needs four of six operations,
#: because it has no gradient of its own; a probe computes only the forward pass.
OPERATION_SHARES: dict[Method, float] = {"full": 1.0, "lora": 4 / 6, "probe": 2 / 6}

#: Method probe solves the heads in closed form and takes no steps.
_WITH_STEPS = {"method": ("full", "lora")}
_WITH_ADAPTERS = {"method": ("lora",)}
_step_option = partial(option, group="Steps", only_for=_WITH_STEPS)
_memory_option = partial(option, group="Memory and speed")
_evaluation_option = partial(option, group="Evaluation and checkpoints")


class TrainingConfig(StageConfig):
    """Settings of a training run, without its study and backbone."""

    objective: Objective = option("multi-head")
    """multi-head: one head for each rule, trained on ratings; bradley-terry: one head trained on
    preferences alone (the paper's baseline)."""
    method: Method = option("full")
    """full: train every weight (the paper); lora: low-rank adapters; probe: solve the heads in
    closed form on the frozen backbone."""
    epochs: int = _step_option(1, ge=1, le=100)
    """Passes over the pairs (paper: 1)."""
    learning_rate: float = _step_option(2e-5, gt=0, le=1)
    """Peak of the learning rate, after the warm-up (paper: 2e-5)."""
    batch_pairs: int = _step_option(32, ge=1)
    """Pairs of an optimizer step, with both responses of each (not in the paper)."""
    warmup_steps: int = _step_option(10, ge=0)
    """Steps until the learning rate peaks; it then falls linearly towards 0."""
    weight_decay: float = _step_option(0.0, ge=0)
    """Decoupled weight decay of AdamW (not in the paper)."""
    adam_betas: tuple[_Decay, _Decay] = option((0.9, 0.999), hidden=True)
    """Averaging factors of AdamW (its authors' values)."""
    adam_epsilon: float = option(1e-8, hidden=True, gt=0)
    """Epsilon of AdamW (its authors' value)."""
    layout: LayoutName = _memory_option("packed")
    """Layout of responses in a batch. packed: one after the other, no padding; prefix-shared:
    packed, and a pair's common prompt is computed once (causal backbones); sorted: padded rows of
    nearly equal length; single: one response at a time. Scores and gradients of a pair are the
    same; sorted also changes which pairs share a step."""
    tokens_per_microbatch: int | None = _memory_option(None, ge=1)
    """Tokens of one forward and backward pass. It limits the memory of activations; results change
    only by rounding and dropout. Default: 40,960 on a GPU, enough for a step of 32 pairs, 4,096 on
    a CPU."""
    optimizer: OptimizerName = _memory_option("auto", only_for=_WITH_STEPS)
    """Optimizer; auto: adamw-stochastic for bfloat16 weights, adamw for float32 weights."""
    clip_gradient: float | None = _step_option(None, gt=0)
    """Largest norm of each parameter's gradient; a larger gradient is scaled down. Default: no
    clipping. TRL clips the norm of the whole gradient at 1.0 (max_grad_norm)."""
    lora_rank: int = _memory_option(64, ge=1, only_for=_WITH_ADAPTERS)
    """Rank of the adapters of method lora."""
    lora_alpha: int = _memory_option(128, ge=1, only_for=_WITH_ADAPTERS)
    """Scale of the adapters, divided by their rank."""
    gradient_checkpointing: bool | None = _memory_option(None, only_for=_WITH_STEPS)
    """Recompute activations in the backward pass. Default: on a GPU, not on a CPU."""
    evaluation_share: float = _evaluation_option(0.05, ge=0, lt=1)
    """Share of the prompts held out for evaluation."""
    evaluate_every: int | None = _evaluation_option(None, ge=1, only_for=_WITH_STEPS)
    """Steps between evaluations. Default: 4 times an epoch."""
    checkpoint_every: int | None = _evaluation_option(None, ge=1, only_for=_WITH_STEPS)
    """Steps between checkpoints. Default: after every evaluation."""
    keep_checkpoints: int = _evaluation_option(2, ge=1, only_for=_WITH_STEPS)
    """Number of newest checkpoints to keep."""
    head_init: HeadInit = _step_option("zero")
    """Start of every head. zero: 0; probe: its solution on the frozen backbone, for small backbones
    and few steps (Kumar et al., 2022); own: the backbone's head with one label, for objective
    bradley-terry."""
    preference_head: PreferenceHead = option("none", group="Steps")
    """Head 0, a reward head before the heads of the rules. joint: it learns preferences in the same
    steps, and starts at the backbone's head with one label if there is one; frozen: it stays this
    head, and no preference is learnt; none: no head 0."""
    rating_loss_weight: float = _step_option(
        1.0, gt=0, only_for={**_WITH_STEPS, "preference_head": ("joint",)}
    )
    """Weight of the loss of ratings beside that of preferences (SMORM's lambda: 1 in its script,
    0.1 in its class)."""
    seed: int = option(0, group="Steps", ge=0, lt=2**63)
    """Seed of pair order, dropout and rounding."""
    max_steps: int | None = _step_option(None, ge=1)
    """Most steps of the run, if the epochs have more."""

    @property
    def learns_preferences(self) -> bool:
        """Return True if the first head learns preferences: the loss then needs whole pairs."""
        return self.objective == "bradley-terry" or self.preference_head == "joint"

    @property
    def first_rule(self) -> int:
        """Return the index of the first rule's head: 1 if there is a head 0, else 0."""
        return int(self.preference_head != "none")


class TrainingRunConfig(RatingTableOptions, RunChoice, TrainingConfig):
    """Options of one training: backbone, training data, settings and output folder."""

    backbone: BackboneConfig
    ratings: StudyFolder | None = option(None)
    """Ratings to learn: a Parquet file, a folder of them, or a study. Default: those of the study.
    """
    limit: int | None = option(None, ge=1)
    """Pilot: most pairs to learn from, by content hash."""
    out: Path | None = option(None, metavar="DIR")
    """Folder of the run. Default: STUDY/training/RUN_KEY, a key of settings and data."""
    max_set_aside_share: float = set_aside_option()

    @property
    def training(self) -> TrainingConfig:
        """Return the settings that are part of the run's identity."""
        return TrainingConfig(**{name: getattr(self, name) for name in TrainingConfig.model_fields})


class SeedsConfig(StageConfig):
    """Number of models that `encore train` trains."""

    num_seeds: int = option(1, name="seeds", group="Steps", ge=1, le=100)
    """Number of models, with seeds SEED, SEED + 1, …: each is a run of its own, and a training is
    one draw. A seed also holds out other prompts."""


class GateConfig(StageConfig):
    """Network and training of a gate, with the defaults of ArmoRM (Wang et al., 2024)."""

    hidden_size: int = option(1024, hidden=True, ge=1)
    """Units of a hidden layer."""
    num_hidden_layers: int = option(3, hidden=True, ge=1)
    """Hidden layers."""
    dropout: float = option(0.2, hidden=True, ge=0, lt=1)
    """Rate after each hidden layer."""
    temperature: float = option(10.0, hidden=True, gt=0)
    """Temperature of the softmax over heads."""
    learning_rate: float = option(1e-3, hidden=True, gt=0)
    """First learning rate of AdamW; it falls as a cosine."""
    weight_decay: float = option(0.0, hidden=True, ge=0)
    """Weight decay of AdamW."""
    num_steps: int = option(2000, name="steps", ge=1)
    """Number of optimizer steps."""
    batch_pairs: int = option(1024, hidden=True, ge=1)
    """Pairs of a step, drawn for each."""
    seed: int = option(0, ge=0)
    """Seed of initial weights, batches and dropout."""


class GateTrainingConfig(StageConfig):
    """Options of the training of a gate: model, and settings of a gate over the model's heads."""

    model: Path = option(metavar="MODEL")
    """Model folder of `encore train`, e.g. study/training/KEY/model."""
    gate: GateConfig = GateConfig()
    limit: int | None = option(None, ge=1)
    """Pilot: most pairs, by content hash."""
    out: Path | None = option(None, metavar="DIR")
    """Folder of the gate. Default: beside MODEL."""
    max_set_aside_share: float = set_aside_option()
