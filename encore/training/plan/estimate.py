"""What a training run will take, before anything is loaded: memory, hours, and what would fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from encore.errors import InputError
from encore.training.config import MICROBATCH_TOKENS
from encore.training.plan.flops import flops_per_token
from encore.training.plan.gpus import Gpu
from encore.training.plan.lengths import LAYOUTS, Lengths
from encore.training.plan.memory import Load, MemoryTable, memory_table
from encore.training.plan.recipes import RECIPES, Recipe
from encore.training.plan.shapes import ModelShape

_GIB = 1024**3
_SECONDS_PER_HOUR = 3600
#: Of full training's operations: four a frozen weight instead of six; adapters' own are few.
_LORA_SHARE = 4 / 6
#: The optimizer is named where it takes more than this share of a step.
_SLOW_OPTIMIZER = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run is asked to do; the defaults are those of `encore train`.

    ``utilisation`` is the share of the GPU's dense bfloat16 peak that useful arithmetic gets, as
    `encore.training.plan.flops.mfu` counts it: 40 % is what well-kept training of dense models
    reaches on such GPUs.
    """

    layout: str = "packed"
    batch_pairs: int = 32
    tokens_per_microbatch: int = MICROBATCH_TOKENS["cuda"]
    is_checkpointed: bool = True
    epochs: int = 1
    num_heads: int = 10
    lora_rank: int = 64
    utilisation: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutHours:
    """Tokens and time of a run with responses put side by side in one way."""

    layout: str
    computed_tokens: int
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeMemory:
    """What a recipe needs and whether the GPU has it."""

    recipe: Recipe
    memory: MemoryTable
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A recipe that fits, with the microbatch that it fits with."""

    recipe: Recipe
    tokens_per_microbatch: int
    memory: MemoryTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEstimate:
    """The plan of one run.

    Attributes:
        shape: The backbone.
        gpu: One of it.
        recipe: The asked one.
        settings: The asked ones.
        lengths: Of the pairs.
        largest_step: Tokens of the fullest step, about.
        memory: Of the asked recipe.
        fits: Whether it fits in what the GPU has for tensors.
        recipes: Every recipe with the same settings.
        hours: Every layout with the asked recipe.
        advice: What fits, where the asked recipe does not; None also where nothing does.
        gflop_per_token: Forward and backward, without recomputation and attention over the
            sequence.
        optimizer_seconds: Of a step, at the memory's full bandwidth.
        notes: What the reader should know, a sentence each.
    """

    shape: ModelShape
    gpu: Gpu
    recipe: Recipe
    settings: Settings
    lengths: Lengths
    largest_step: int
    memory: MemoryTable
    fits: bool
    recipes: tuple[RecipeMemory, ...]
    hours: tuple[LayoutHours, ...]
    advice: Advice | None
    gflop_per_token: float
    optimizer_seconds: float
    notes: tuple[str, ...]


def estimate_training(
    shape: ModelShape, *, recipe: Recipe, gpu: Gpu, lengths: Lengths, settings: Settings
) -> TrainingEstimate:
    """Memory, hours and a recipe that fits.

    Raises:
        InputError: a backbone that cannot be trained here, or sequences longer than it knows.
    """
    _check(shape, lengths=lengths, layout=settings.layout)
    largest_step = lengths.largest_step(settings.batch_pairs, layout=settings.layout)
    needs = _Needs(shape=shape, gpu=gpu, lengths=lengths, settings=settings, step=largest_step)
    recipes = tuple(needs.of(other) for other in RECIPES)
    memory = next(found for found in recipes if found.recipe == recipe)
    hours = tuple(
        _hours(shape, recipe=recipe, gpu=gpu, lengths=lengths, settings=settings, layout=layout)
        for layout in LAYOUTS
        if shape.is_causal or layout != "prefix-shared"
    )
    per_token = flops_per_token(shape)
    optimizer_seconds = _optimizer_bytes(memory.memory) / (gpu.bandwidth_gbps * 1e9)
    step_seconds = largest_step * per_token / (_peak(gpu, recipe) * settings.utilisation)
    return TrainingEstimate(
        shape=shape,
        gpu=gpu,
        recipe=recipe,
        settings=settings,
        lengths=lengths,
        largest_step=largest_step,
        memory=memory.memory,
        fits=memory.fits,
        recipes=recipes,
        hours=hours,
        advice=None if memory.fits else needs.advice(recipe),
        gflop_per_token=per_token / 1e9,
        optimizer_seconds=optimizer_seconds,
        notes=(
            *needs.notes(recipe),
            *_note_on_optimizer(optimizer_seconds, step_seconds=step_seconds),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """Memory of recipes for one model, GPU and set of pairs."""

    shape: ModelShape
    gpu: Gpu
    lengths: Lengths
    settings: Settings
    step: int

    def load(self, tokens_per_microbatch: int) -> Load:
        # A pair beyond the budget gets a microbatch of its own.
        longest_pair = 2 * self.lengths.max_length
        budget = max(tokens_per_microbatch, min(longest_pair, self.step))
        return Load(
            num_tokens=min(budget, self.step),
            is_accumulating=self.step > budget or self.settings.layout not in _ONE_ROW,
            is_checkpointed=self.settings.is_checkpointed,
            num_heads=self.settings.num_heads,
            lora_rank=self.settings.lora_rank,
        )

    def of(self, recipe: Recipe, *, tokens_per_microbatch: int | None = None) -> RecipeMemory:
        budget = tokens_per_microbatch or self.settings.tokens_per_microbatch
        memory = memory_table(self.shape, recipe, self.load(budget))
        return RecipeMemory(recipe=recipe, memory=memory, fits=memory.total <= self.gpu.usable_gib)

    def advice(self, asked: Recipe) -> Advice | None:
        """The asked recipe with a smaller microbatch, else the first recipe that fits."""
        for recipe in (asked, *(other for other in RECIPES if other != asked)):
            if recipe.options is None:
                continue
            for budget in self._budgets():
                found = self.of(recipe, tokens_per_microbatch=budget)
                if found.fits:
                    return Advice(recipe=recipe, tokens_per_microbatch=budget, memory=found.memory)
        return None

    def notes(self, recipe: Recipe) -> tuple[str, ...]:
        if not (
            recipe.is_in_backward and self.load(self.settings.tokens_per_microbatch).is_accumulating
        ):
            return ()
        held = self.of(recipe).memory.gradients
        alone = replace(self, settings=replace(self.settings, layout="packed"))
        freed = alone.of(recipe, tokens_per_microbatch=self.step).memory.gradients
        note = (
            f"a step has up to about {self.step:,} tokens, in microbatches of "
            f"{self.settings.tokens_per_microbatch:,}: between them gradients are kept "
            f"({held:.1f} GiB instead of {freed:.1f}); a packed microbatch that holds a whole step "
            "would free them as it goes"
        )
        return (note,)

    def _budgets(self) -> list[int]:
        budgets = [self.settings.tokens_per_microbatch]
        while budgets[-1] // 2 >= 2 * self.lengths.max_length:
            budgets.append(budgets[-1] // 2)
        return budgets


#: Layouts in which a whole step can be one row.
_ONE_ROW = ("packed", "prefix-shared")


def _check(shape: ModelShape, *, lengths: Lengths, layout: str) -> None:
    if layout == "prefix-shared" and not shape.is_causal:
        raise InputError(
            f"layout prefix-shared: backbone {shape.name!r} is an encoder, whose prompt changes "
            "with its response; use layout packed"
        )
    if shape.has_softcap:
        raise InputError(
            f"backbone {shape.name!r}: its attention scores are capped (attn_logit_softcapping), "
            "which ENCORE does not train; use a Llama, Mistral, Qwen or BERT kind of model"
        )
    if lengths.max_length > shape.max_length:
        raise InputError(
            f"maximum length {lengths.max_length}: backbone {shape.name!r} knows "
            f"{shape.max_length} positions; give at most that"
        )


def _hours(
    shape: ModelShape,
    *,
    recipe: Recipe,
    gpu: Gpu,
    lengths: Lengths,
    settings: Settings,
    layout: str,
) -> LayoutHours:
    length = lengths.max_length if layout == "padded" else lengths.attention_length
    per_token = _recipe_flops(shape, recipe, sequence_length=length)
    passes = 1 if recipe.method == "probe" else settings.epochs
    computed = passes * lengths.computed_tokens(layout)
    seconds = computed * per_token / (_peak(gpu, recipe) * settings.utilisation)
    return LayoutHours(layout=layout, computed_tokens=computed, hours=seconds / _SECONDS_PER_HOUR)


def _recipe_flops(shape: ModelShape, recipe: Recipe, *, sequence_length: float) -> float:
    """Operations a token: a frozen matrix has no gradient of its own, a probe no backward pass."""
    is_training = recipe.method != "probe"
    full = flops_per_token(shape, sequence_length=sequence_length, is_training=is_training)
    return full * _LORA_SHARE if recipe.method == "lora" else full


def _peak(gpu: Gpu, recipe: Recipe) -> float:
    return 1e12 * (gpu.fp32_tflops if recipe.weight_bytes == 4 else gpu.bf16_tflops)


def _optimizer_bytes(memory: MemoryTable) -> float:
    """Read and written by one update: weights and states both ways, gradients once.

    Frozen weights are read by no optimizer: without gradients there is nothing to do.
    """
    if not memory.optimizer_states:
        return 0.0
    share = min(1.0, memory.optimizer_states / memory.weights)  # adapters: little of the weights
    return (2 * share * memory.weights + memory.gradients + 2 * memory.optimizer_states) * _GIB


def _note_on_optimizer(optimizer_seconds: float, *, step_seconds: float) -> tuple[str, ...]:
    share = optimizer_seconds / (step_seconds + optimizer_seconds)
    if share < _SLOW_OPTIMIZER:
        return ()
    note = f"updating the weights takes about {share:.0%} of a step, at best"
    return (f"{note}; more pairs a step would make it rarer",)
