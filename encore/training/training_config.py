"""How a reward model, or a gate over its heads, is trained: frozen parameters.

Defaults are the paper's where it states them (section "Training": one epoch, learning rate 2e-5),
elsewhere usual choices of the field: the paper is silent on batch, schedule and optimizer.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from encore.core.config import StageConfig, option
from encore.data.study_config import RunChoice, StudyConfig
from encore.model.backbone_config import BackboneConfig, LayoutName

Objective = Literal["multi-head", "bradley-terry"]
Method = Literal["full", "lora", "probe"]
OptimizerName = Literal["auto", "adamw", "adamw-stochastic"]
HeadInit = Literal["zero", "probe", "own"]

_Positive = Annotated[int, Field(ge=1)]
_PositiveFloat = Annotated[float, Field(gt=0)]
_Decay = Annotated[float, Field(ge=0, lt=1)]

#: Optimizers that work in the backward pass free gradients at once only where a step is one pass.
MICROBATCH_TOKENS = {"cuda": 40_960, "cpu": 4_096}

#: Method probe solves the heads in closed form and takes no steps.
_WITH_STEPS = {"method": ("full", "lora")}
_WITH_ADAPTERS = {"method": ("lora",)}
_step_option = partial(option, group="Steps", only_for=_WITH_STEPS)
_memory_option = partial(option, group="Memory and speed")
_evaluation_option = partial(option, group="Evaluation and checkpoints")


class TrainingConfig(StageConfig):
    """One training run, given a backbone and a study."""

    objective: Objective = option(
        "multi-head",
        help="multi-head: regression on the ratings of every rule; bradley-terry: one head "
        "that ranks the chosen response first, from preferences alone (the paper's baseline).",
    )
    method: Method = option(
        "full",
        help="full: every weight (the paper); lora: low-rank adapters; probe: a frozen "
        "backbone with heads in closed form.",
    )
    epochs: int = _step_option(1, ge=1, le=100, help="Passes over the pairs (paper: 1).")
    learning_rate: float = _step_option(
        2e-5, gt=0, le=1, help="At its peak, after the warm-up (paper: 2e-5)."
    )
    batch_pairs: int = _step_option(
        32,
        ge=1,
        help="Pairs of an optimizer step, both responses of each (the paper does not say).",
    )
    warmup_steps: int = _step_option(
        10, ge=0, help="Steps until the learning rate peaks; it then falls linearly towards 0."
    )
    weight_decay: float = _step_option(
        0.0, ge=0, help="Of AdamW, decoupled (the paper does not say)."
    )
    adam_betas: tuple[_Decay, _Decay] = option(
        (0.9, 0.999), hidden=True, help="AdamW's averaging factors (its authors' values)."
    )
    adam_epsilon: float = option(1e-8, hidden=True, gt=0, help="AdamW's (its authors' value).")
    layout: LayoutName = _memory_option(
        "packed",
        help="How responses are put side by side: packed: end to end, no padding; "
        "prefix-shared: also computes a pair's common prompt once (causal backbones); sorted: "
        "padded rows of nearly equal length; single: one response at a time. All give a pair the "
        "same scores and gradients; sorted also changes which pairs share a step.",
    )
    tokens_per_microbatch: _Positive | None = _memory_option(
        None,
        help="Tokens of one forward and backward pass: bounds the memory of activations, "
        "changes no result but for rounding and dropout; default: 40,960 on a GPU, which holds a "
        "step of 32 pairs whole, 4,096 on a CPU.",
    )
    optimizer: OptimizerName = _memory_option(
        "auto",
        only_for=_WITH_STEPS,
        help="auto: adamw-stochastic for bfloat16 weights, adamw for float32 weights.",
    )
    clip_gradient: _PositiveFloat | None = _step_option(
        None,
        since=True,
        help="Scale each parameter's gradient down to this norm where its own is larger; default: "
        "no clipping. TRL clips the norm of the whole gradient at 1.0 (max_grad_norm).",
    )
    lora_rank: int = _memory_option(
        64, ge=1, only_for=_WITH_ADAPTERS, help="Rank of the adapters of method lora."
    )
    lora_alpha: int = _memory_option(
        128, ge=1, only_for=_WITH_ADAPTERS, help="Scale of the adapters, divided by their rank."
    )
    gradient_checkpointing: bool | None = _memory_option(
        None,
        only_for=_WITH_STEPS,
        help="Recompute activations in the backward pass; default: on a GPU, not on a CPU.",
    )
    evaluation_share: float = _evaluation_option(
        0.05, ge=0, lt=1, help="Share of the prompts held out for evaluation."
    )
    evaluate_every: _Positive | None = _evaluation_option(
        None, only_for=_WITH_STEPS, help="Steps between evaluations; default: 4 times an epoch."
    )
    checkpoint_every: _Positive | None = _evaluation_option(
        None,
        only_for=_WITH_STEPS,
        help="Steps between checkpoints; default: with every evaluation.",
    )
    keep_checkpoints: int = _evaluation_option(
        2, ge=1, only_for=_WITH_STEPS, help="Newest checkpoints that are kept."
    )
    head_init: HeadInit = _step_option(
        "zero",
        help="zero: every head starts at 0; probe: at its solution on the frozen backbone, "
        "for small backbones and few steps (Kumar et al., 2022); own: at the backbone's own "
        "one-label head.",
    )
    seed: int = option(
        0, group="Steps", ge=0, lt=2**63, help="Of the order, of dropout and of rounding."
    )
    max_steps: _Positive | None = _step_option(
        None, help="Stop after so many steps, if the epochs have more."
    )


class TrainConfig(RunChoice, TrainingConfig, StudyConfig):
    """`encore train`: which study and backbone, what is learnt from, where it goes."""

    backbone: BackboneConfig
    ratings: Path | None = option(
        None,
        identity=False,
        help="Ratings to learn, if not the study's own: Parquet, a folder of it, or a study.",
    )
    limit: int | None = option(
        None, ge=1, identity=False, help="Pilot: learn from this many pairs, by content hash."
    )
    out: Path | None = option(
        None,
        identity=False,
        metavar="DIR",
        help="The run's folder. Default: STUDY/training/RUN_KEY, a key of settings and data.",
    )

    @property
    def training(self) -> TrainingConfig:
        """The part that is hashed into the run's key."""
        return TrainingConfig(**{name: getattr(self, name) for name in TrainingConfig.model_fields})


class GateConfig(StageConfig):
    """How a gate is built and trained; defaults as in ArmoRM (Wang et al., 2024)."""

    hidden_size: int = option(1024, hidden=True, ge=1, help="Units of a hidden layer.")
    num_hidden_layers: int = option(3, hidden=True, ge=1, help="Hidden layers.")
    dropout: float = option(0.2, hidden=True, ge=0, lt=1, help="After each hidden layer.")
    temperature: float = option(10.0, hidden=True, gt=0, help="Of the softmax over heads.")
    learning_rate: float = option(1e-3, hidden=True, gt=0, help="AdamW's, falling as a cosine.")
    weight_decay: float = option(0.0, hidden=True, ge=0, help="AdamW's.")
    num_steps: int = option(2000, name="steps", ge=1, help="Optimizer steps.")
    batch_pairs: int = option(1024, hidden=True, ge=1, help="Pairs a step, drawn anew each time.")
    seed: int = option(0, ge=0, help="Of initial weights, batches and dropout.")


class TrainGateConfig(StudyConfig):
    """`encore gate`: a gate over the heads of one model."""

    model: Path = option(
        metavar="MODEL", help="What `encore train` wrote, e.g. study/training/KEY/model."
    )
    gate: GateConfig = GateConfig()
    limit: int | None = option(None, ge=1, help="Pilot: this many pairs, by content hash.")
    out: Path | None = option(
        None, metavar="DIR", identity=False, help="The gate's folder; default: beside MODEL."
    )
