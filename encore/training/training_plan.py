"""Estimate the memory and tokens of a training run, without loading a model.

Memory is the peak of one process, by arithmetic. Time depends on the device, so it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from encore.core.config import StageConfig, option
from encore.core.errors import EncoreError, InputError
from encore.core.model_files import local_path
from encore.core.shown_record import ShownRecord
from encore.model.backbone_options import BackboneConfig, LayoutName
from encore.model.backbone_shape import BackboneShape, find_shape, flops_per_token
from encore.model.model_options import set_aside_option
from encore.training.training_options import MICROBATCH_TOKENS, Method, TrainingConfig

if TYPE_CHECKING:
    from encore.data.study import Study

_GIB = 1024**3
_FLOAT32 = 4
#: Workspace that cuBLAS keeps on Hopper.
_LIBRARY_BYTES = 32 * 1024**2
_CHARACTERS_PER_TOKEN = 4
#: Share of all tokens that the two responses of a pair have in common, measured on HH.
_SHARED_SHARE = 0.365
#: Largest share of padding in rows of layout ``sorted``.
_SORTED_PADDING = 0.02
_TRAINING: dict[str, Any] = dict(TrainingConfig.model_fields)
_BACKBONE: dict[str, Any] = dict(BackboneConfig.model_fields)


class PlanTrainConfig(StageConfig):
    """Options of `encore plan train`: what memory and tokens of a training depend on."""

    backbone: str = option("llama-3.1-8b", metavar="MODEL")
    """Folder with config.json, hub id, or llama-3.1-8b, llama-3-70b, qwen3-8b, minilm…"""
    revision: str | None = _BACKBONE["revision"]
    recipe: str = option("full-stochastic", metavar="RECIPE")
    """full-stochastic, lora, probe or full-float32; the table has all of them."""
    pairs: int | None = option(None, ge=1)
    """Number of preference pairs, instead of STUDY."""
    tokens_per_response: float | None = option(None, ge=1)
    """With --pairs: mean tokens of a response with its prompt."""
    max_length: int = _BACKBONE["max_length"]
    chat_template: str | None = _BACKBONE["chat_template"]
    max_set_aside_share: float = set_aside_option()
    layout: LayoutName = _TRAINING["layout"]
    batch_pairs: int = _TRAINING["batch_pairs"]
    tokens_per_microbatch: int | None = _TRAINING["tokens_per_microbatch"]
    gradient_checkpointing: bool | None = _TRAINING["gradient_checkpointing"]
    epochs: int = _TRAINING["epochs"]
    lora_rank: int = _TRAINING["lora_rank"]


class Recipe(NamedTuple):
    """A way to train.

    Attributes:
        method: Method of `encore train`.
        weight_bytes: Bytes of a weight, an activation, a gradient, and each of AdamW's averages.
        options: Options of `encore train` for this recipe.
    """

    method: Method
    weight_bytes: int
    options: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeMemory:
    """The peak memory of a recipe in one process, by part.

    Attributes:
        options: Options of `encore train` for this recipe.
        weights_gib: Weights and adapters, in GiB.
        gradients_gib: Gradients that exist at the same time, in GiB.
        optimizer_states_gib: Both averages of AdamW, in GiB.
        activations_gib: Activations that are kept for the backward pass, in GiB.
        workspace_gib: Intermediate results of the backward pass and of cuBLAS, in GiB.
        total_gib: Sum of the parts, in GiB.
    """

    options: str
    weights_gib: float
    gradients_gib: float
    optimizer_states_gib: float
    activations_gib: float
    workspace_gib: float
    total_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTokens:
    """Number and length of the training pairs.

    Attributes:
        num_pairs: Number of pairs, without those that are set aside.
        mean_length: Mean tokens of a response with its prompt, cut at the maximum length.
        origin: Sentence that says how the numbers are known.
        max_length: Longest conversation in tokens.
        num_set_aside: Number of pairs that the backbone's chat template refuses. None if it was not
            tried on the pairs.
        notes: Sentences on the pairs that are set aside or partly read, or on why the template was
            not tried.
    """

    num_pairs: int
    mean_length: float
    origin: str
    max_length: int
    num_set_aside: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingPlan(ShownRecord):
    """Memory and tokens of a training run.

    Attributes:
        model: Backbone: ``name``, ``num_parameters`` and ``gflop_per_token`` (10^9 operations).
        recipe: Name of the chosen recipe.
        recipes: Memory of each recipe by name, in the order of recommendation.
        tokens: Number and length of the pairs.
        computed_tokens: Tokens that the chosen recipe computes, by layout.
    """

    model: dict[str, Any]
    recipe: str
    recipes: dict[str, RecipeMemory]
    tokens: PlannedTokens
    computed_tokens: dict[str, int]


#: Recipes in the order in which they are recommended.
RECIPES = {
    "full-stochastic": Recipe("full", 2, "--method full --optimizer adamw-stochastic"),
    "lora": Recipe("lora", 2, "--method lora"),
    "probe": Recipe("probe", 2, "--method probe"),
    "full-float32": Recipe("full", 4, "--method full --dtype float32 --optimizer adamw"),
}


def plan_training(study: Study | None, config: PlanTrainConfig) -> TrainingPlan:
    """Estimate the memory of every recipe and the tokens of every layout.

    Args:
        study: Study whose pairs are counted; None uses the counts of the config.
        config: Model and settings. A maximum length above the model's is lowered to it.

    Raises:
        InputError: The recipe or model is unknown, the layout does not fit the model, or its chat
            template refuses more than ``config.max_set_aside_share`` of the pairs.
    """
    shape = find_shape(config.backbone, revision=config.revision)
    if config.recipe not in RECIPES:
        raise InputError(f"recipe {config.recipe!r}: expected one of {', '.join(RECIPES)}")
    if config.layout == "prefix-shared" and not shape.is_causal:
        raise InputError(f"layout prefix-shared: backbone {shape.name!r} is an encoder; use packed")
    max_length = min(config.max_length, shape.max_length)
    config = config.model_copy(update={"max_length": max_length})
    tokens = _count_tokens(study, config) if study else _tokens_from_average(config)
    step_tokens = _largest_step_tokens(config, tokens)
    return TrainingPlan(
        model={
            "name": shape.name,
            "num_parameters": shape.num_parameters,
            "gflop_per_token": round(flops_per_token(shape) / 1e9, 3),
        },
        recipe=config.recipe,
        recipes={
            name: _recipe_memory(recipe, shape, config, step_tokens=step_tokens)
            for name, recipe in RECIPES.items()
        },
        tokens=tokens,
        computed_tokens=_computed_tokens(config, shape, tokens),
    )


def _largest_step_tokens(config: PlanTrainConfig, tokens: PlannedTokens) -> int:
    """Return the tokens of the largest among some thousand steps: mean and four deviations.

    The standard deviation of a conversation's length is about its mean.
    """
    pairs = min(config.batch_pairs, tokens.num_pairs)
    step_tokens = 2 * tokens.mean_length * (pairs + 4 * pairs**0.5)
    if config.layout == "prefix-shared":
        step_tokens -= 2 * pairs * tokens.mean_length * _SHARED_SHARE
    return int(min(step_tokens, 2 * pairs * config.max_length))


def _recipe_memory(
    recipe: Recipe, shape: BackboneShape, config: PlanTrainConfig, *, step_tokens: int
) -> RecipeMemory:
    """Estimate the memory of a recipe for steps of so many tokens. Heads are too small to count.

    With stochastic rounding, the gradient of a weight is freed during the backward pass, if a step
    is one pass.
    """
    # A longer pair is a microbatch of its own.
    budget = max(config.tokens_per_microbatch or MICROBATCH_TOKENS["cuda"], 2 * config.max_length)
    is_one_pass = step_tokens <= budget and config.layout in ("packed", "prefix-shared")
    is_full = recipe.method == "full"
    trained = shape.num_parameters * recipe.weight_bytes if is_full else 0
    gradients = trained
    if is_full and recipe.weight_bytes == 2 and is_one_pass:
        gradients = shape.num_layer_parameters * recipe.weight_bytes
    adapters = 0  # in bfloat16
    if recipe.method == "lora":
        adapters = shape.num_layers * sum(map(sum, shape.matrices)) * config.lora_rank * 2
    activations, workspace = _pass_memory(recipe, shape, config, min(budget, step_tokens))
    parts = {
        "weights": shape.num_parameters * recipe.weight_bytes + adapters,
        "gradients": gradients + adapters,
        "optimizer_states": 2 * (trained + adapters),
        "activations": activations,
        "workspace": workspace + _LIBRARY_BYTES,
    }
    parts["total"] = sum(parts.values())
    gib = {f"{part}_gib": round(num_bytes / _GIB, 3) for part, num_bytes in parts.items()}
    return RecipeMemory(options=recipe.options, **gib)


def _pass_memory(
    recipe: Recipe, shape: BackboneShape, config: PlanTrainConfig, tokens: int
) -> tuple[int, int]:
    """Return the bytes of activations and of workspace of one pass over so many tokens.

    With gradient checkpointing, a pass keeps the inputs of all layers and the activations of the
    layer that is recomputed. Otherwise it keeps the activations of all layers. Flash attention
    never holds the scores of all pairs of tokens.
    """
    size, hidden, inner = recipe.weight_bytes, shape.hidden_size, shape.intermediate_size
    # Vectors of the inner width: the feed-forward block's gate, activated gate, up and product (in
    # an encoder: before and after the activation).
    num_inner = 4 if shape.is_causal else 2
    if recipe.method == "probe":  # keeps nothing for a backward pass
        return tokens * (size * ((num_inner - 1) * inner + 2 * hidden) + _FLOAT32 * hidden), 0
    # With attention's inputs and output, and the float32 inputs and results of the norms.
    widths = 2 * (shape.num_heads + shape.num_kv_heads) * shape.head_size + num_inner * inner
    layer = size * (widths + 4 * hidden) + 2 * _FLOAT32 * hidden
    kept = shape.num_layers * layer
    if config.gradient_checkpointing is not False:
        kept = shape.num_layers * size * hidden + layer
    activations = tokens * (kept + (size + _FLOAT32) * hidden)
    # The backward pass adds the gradients of a layer's output and of its widest vector. The dense
    # gradient of the embedding table comes last, when the activations are freed.
    workspace = tokens * size * (inner + hidden)
    if recipe.method == "full":
        workspace = max(workspace, shape.num_embedding_parameters * size - activations)
    return activations, workspace


def _computed_tokens(
    config: PlanTrainConfig, shape: BackboneShape, tokens: PlannedTokens
) -> dict[str, int]:
    """Return the tokens that the chosen recipe computes with every layout."""
    epochs = 1 if RECIPES[config.recipe].method == "probe" else config.epochs
    computed_shares = {"packed": 1.0, "sorted": 1 / (1 - _SORTED_PADDING)}
    if shape.is_causal:
        computed_shares["prefix-shared"] = 1 - _SHARED_SHARE
    num_tokens = 2 * tokens.num_pairs * epochs * tokens.mean_length
    return {layout: round(num_tokens * share) for layout, share in computed_shares.items()}


def _tokens_from_average(config: PlanTrainConfig) -> PlannedTokens:
    """Return the counts of the config, with the mean length cut at the maximum."""
    pairs, mean = config.pairs, config.tokens_per_response
    assert pairs is not None and mean is not None, "checked by the command"  # noqa: PT018
    return PlannedTokens(
        num_pairs=pairs,
        mean_length=min(mean, config.max_length),
        origin=f"{pairs:,} pairs of {mean:g} tokens a response with its prompt",
        max_length=config.max_length,
    )


def _count_tokens(study: Study, config: PlanTrainConfig) -> PlannedTokens:
    """Estimate the counts of a study from the characters of its texts, cut at the maximum."""
    from encore.data.pairs import read_pairs, records_of

    table = read_pairs(study)
    if table.num_rows == 0:
        raise InputError(
            f"study {study.path}: no pairs; run `encore ingest {study.path} SOURCE` first"
        )
    refused_rows, notes = _try_template(study, config)
    if refused_rows:
        table = table.take([row for row in range(table.num_rows) if row not in refused_rows])
    num_pairs, max_length = table.num_rows, config.max_length
    lengths = [
        (sum(len(turn.content) for turn in pair.prompt) + len(text)) / _CHARACTERS_PER_TOKEN
        for pair in records_of(table)
        for text in (pair.chosen, pair.rejected)
    ]
    mean = sum(min(length, max_length) for length in lengths) / len(lengths)
    return PlannedTokens(
        num_pairs=num_pairs,
        mean_length=max(mean, 1.0),
        origin=f"{num_pairs:,} pairs at {_CHARACTERS_PER_TOKEN} characters a token, not tokenised",
        max_length=max_length,
        num_set_aside=None if refused_rows is None else len(refused_rows),
        notes=notes,
    )


def _try_template(study: Study, config: PlanTrainConfig) -> tuple[set[int] | None, tuple[str, ...]]:
    """Try the backbone's chat template on every pair of a study, as `encore train` does.

    Returns:
        The rows of the pairs that it refuses, None if it was not tried; and sentences on either.

    Raises:
        InputError: The template refuses a larger share of the pairs than the config allows.
    """
    from encore.data.pairs import iter_pairs
    from encore.model.template_refusals import find_refusals

    not_tried = "the chat template was not tried on the pairs"
    if not local_path(config.backbone).is_dir() and "/" not in config.backbone:
        advice = "give the backbone as a folder or hub id to count those that it refuses"
        return None, (f"{not_tried}: {config.backbone} is a shape alone; {advice}",)
    try:
        from encore.model.load_backbone import load_tokenizer

        fields = {
            "model": config.backbone,
            **config.model_dump(include={"revision", "max_length", "chat_template"}),
            "init": "random",  # no weights are needed
        }
        tokenizer = load_tokenizer(BackboneConfig.model_validate(fields))
    except (EncoreError, ImportError) as error:
        return None, (f"{not_tried}: {error}",)
    refusals = find_refusals(tokenizer, iter_pairs(study))
    refusals.check(config.max_set_aside_share, model=config.backbone)
    rows = {row for row, reason in enumerate(refusals.reason_P) if reason is not None}
    return rows, refusals.notes
