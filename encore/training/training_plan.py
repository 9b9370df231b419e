"""What a training run will need before anything is loaded: memory by part, hours, and what fits.

Memory is that of one process when it is fullest, hours are those of training alone. A plan is a
dictionary of plain JSON values: GiB, tokens, hours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from encore.core.config import StageConfig, option
from encore.core.errors import InputError
from encore.model.backbone_config import BackboneConfig, LayoutName
from encore.model.backbone_shape import BackboneShape, find_shape, flops_per_token
from encore.model.gpus import UTILISATION, find_gpu
from encore.training.training_config import MICROBATCH_TOKENS, Method, TrainingConfig

if TYPE_CHECKING:
    from encore.data.study import Study

_GIB = 1024**3
_FLOAT32 = 4
#: cuBLAS keeps 32 MiB on Hopper.
_LIBRARY_BYTES = 32 * 1024**2
#: Of full training's operations: four a frozen weight instead of six; a probe only goes forward.
_SHARES = {"full": 1.0, "lora": 4 / 6, "probe": 2 / 6}
_CHARACTERS_PER_TOKEN = 4
#: Tokens that the two responses of a pair share with each other, of all tokens: measured on HH.
_SHARED_SHARE = 0.365
#: Rows of layout ``sorted`` are closed before their padding reaches this share.
_SORTED_PADDING = 0.02
_TRAINING: dict[str, Any] = dict(TrainingConfig.model_fields)
_BACKBONE: dict[str, Any] = dict(BackboneConfig.model_fields)


class PlanTrainConfig(StageConfig):
    """`encore plan train`: a training run, as far as its memory and time depend on it."""

    study: Path | None = option(
        None, positional=True, help="Its pairs say how many tokens; or use --pairs."
    )
    backbone: str = option(
        "llama-3.1-8b",
        metavar="MODEL",
        help="Folder with config.json, hub id, or llama-3.1-8b, llama-3-70b, qwen3-8b, minilm…",
    )
    revision: str | None = _BACKBONE["revision"]
    gpu: str = option("h100-80", metavar="GPU", help="h100-80, h200-141, a100-80, l40s-48…")
    recipe: str = option(
        "full-stochastic",
        metavar="RECIPE",
        help="full-stochastic, lora, probe, full-float32; the table has them all.",
    )
    pairs: int | None = option(None, ge=1, help="Instead of STUDY: so many preference pairs.")
    tokens_per_response: float | None = option(
        None, ge=1, help="With --pairs: mean tokens of a response with its prompt."
    )
    max_length: int = _BACKBONE["max_length"]
    layout: LayoutName = _TRAINING["layout"]
    batch_pairs: int = _TRAINING["batch_pairs"]
    tokens_per_microbatch: int | None = _TRAINING["tokens_per_microbatch"]
    gradient_checkpointing: bool | None = _TRAINING["gradient_checkpointing"]
    epochs: int = _TRAINING["epochs"]
    lora_rank: int = _TRAINING["lora_rank"]
    utilisation: float = UTILISATION


class Recipe(NamedTuple):
    """One way to train: the bytes of a weight, of an activation, a gradient and each of two means.

    ``options`` are those of `encore train`.
    """

    method: Method
    weight_bytes: int
    options: str


#: In the order in which they are recommended: the first that fits is named.
RECIPES = {
    "full-stochastic": Recipe("full", 2, "--method full --optimizer adamw-stochastic"),
    "lora": Recipe("lora", 2, "--method lora"),
    "probe": Recipe("probe", 2, "--method probe"),
    "full-float32": Recipe("full", 4, "--method full --dtype float32 --optimizer adamw"),
}


def plan_training(config: PlanTrainConfig, study: Study | None = None) -> dict[str, Any]:
    """Memory of every recipe, whether it fits, and hours of every layout, as JSON values.

    A maximum length beyond the model's is lowered to it. ``study`` is the opened ``config.study``.
    """
    gpu, shape = find_gpu(config.gpu), find_shape(config.backbone, revision=config.revision)
    if config.recipe not in RECIPES:
        raise InputError(f"recipe {config.recipe!r}: expected one of {', '.join(RECIPES)}")
    if config.layout == "prefix-shared" and not shape.is_causal:
        raise InputError(f"layout prefix-shared: backbone {shape.name!r} is an encoder; use packed")
    max_length = min(config.max_length, shape.max_length)
    config = config.model_copy(update={"max_length": max_length})
    lengths = _lengths_of_study(study, max_length) if study else _lengths_from_average(config)
    num_pairs, mean_length, origin = lengths
    step = _largest_step(config, num_pairs, mean_length)
    recipes = {}
    for name, recipe in RECIPES.items():
        memory = _memory_of(recipe, shape, config, step)
        fits = memory["total_gib"] <= gpu.usable_gib
        recipes[name] = {"options": recipe.options, "fits": fits, **memory}
    return {
        "model": {
            "name": shape.name,
            "num_parameters": shape.num_parameters,
            "gflop_per_token": round(flops_per_token(shape) / 1e9, 3),
        },
        "gpu": gpu._asdict() | {"usable_gib": round(gpu.usable_gib, 3)},
        "recipe": config.recipe,
        "recipes": recipes,
        "tokens": {
            "num_pairs": num_pairs,
            "mean_length": mean_length,
            "origin": origin,
            "max_length": max_length,
        },
        "utilisation": config.utilisation,
        "hours": _hours(config, shape, 2 * num_pairs, mean_length),
    }


def refusal(plan: dict[str, Any]) -> str | None:
    """Why the asked recipe of a plan does not fit, and what does: one line; None if it fits."""
    gpu, recipes = plan["gpu"], plan["recipes"]
    asked = recipes[plan["recipe"]]
    if asked["fits"]:
        return None
    needs = (
        f"recipe {plan['recipe']}: needs {asked['total_gib']:.1f} GiB for "
        f"{plan['model']['name']}, {gpu['name']} has {gpu['usable_gib']:.1f} for tensors"
    )
    for recipe in recipes.values():
        if recipe["fits"]:
            return f"{needs}; with {recipe['total_gib']:.1f} fits: {recipe['options']}"
    return f"{needs}; no recipe fits: take a GPU with more memory or a smaller backbone"


def _largest_step(config: PlanTrainConfig, num_pairs: int, mean_length: float) -> int:
    """Tokens of the fullest of some thousand steps: the mean and four deviations.

    Conversations are spread about as widely as their mean.
    """
    pairs = min(config.batch_pairs, num_pairs)
    step = 2 * mean_length * (pairs + 4 * pairs**0.5)
    if config.layout == "prefix-shared":
        step -= 2 * pairs * mean_length * _SHARED_SHARE
    return int(min(step, 2 * pairs * config.max_length))


def _memory_of(
    recipe: Recipe, shape: BackboneShape, config: PlanTrainConfig, step: int
) -> dict[str, float]:
    """The memory that a recipe needs on one GPU, by part, in GiB; ``step`` is the largest's tokens.

    Stochastic rounding updates a weight in the backward pass and frees its gradient, where a step
    is one pass. Heads are too small to count.
    """
    # A longer pair is a microbatch alone.
    budget = max(config.tokens_per_microbatch or MICROBATCH_TOKENS["cuda"], 2 * config.max_length)
    is_one_pass = step <= budget and config.layout in ("packed", "prefix-shared")
    is_full = recipe.method == "full"
    trained = shape.num_parameters * recipe.weight_bytes if is_full else 0
    gradients = trained
    if is_full and recipe.weight_bytes == 2 and is_one_pass:
        gradients = shape.num_layer_parameters * recipe.weight_bytes
    adapters = 0  # in bfloat16
    if recipe.method == "lora":
        adapters = shape.num_layers * sum(map(sum, shape.matrices)) * config.lora_rank * 2
    activations, workspace = _memory_of_pass(recipe, shape, config, min(budget, step))
    parts = {
        "weights": shape.num_parameters * recipe.weight_bytes + adapters,
        "gradients": gradients + adapters,
        "optimizer_states": 2 * (trained + adapters),
        "activations": activations,
        "workspace": workspace + _LIBRARY_BYTES,
    }
    parts["total"] = sum(parts.values())
    return {f"{part}_gib": round(size / _GIB, 3) for part, size in parts.items()}


def _memory_of_pass(
    recipe: Recipe, shape: BackboneShape, config: PlanTrainConfig, tokens: int
) -> tuple[int, int]:
    """Bytes of activations and of workspace of a forward and backward pass over some tokens.

    With gradient checkpointing a pass keeps the input of every layer and everything of the one
    layer that is computed again, otherwise everything of all layers. Flash attention never holds
    the scores of all pairs of tokens.
    """
    e, hidden, inner = recipe.weight_bytes, shape.hidden_size, shape.intermediate_size
    # Attention's inputs and output; the feed-forward block's gate, activated gate, up and product
    # (an encoder's: before and after the activation); the norms' float32 inputs and results.
    ways = 4 if shape.is_causal else 2
    if recipe.method == "probe":  # keeps nothing for a backward pass
        return tokens * (e * ((ways - 1) * inner + 2 * hidden) + _FLOAT32 * hidden), 0
    widths = 2 * (shape.num_heads + shape.num_kv_heads) * shape.head_size + ways * inner
    layer = e * (widths + 4 * hidden) + 2 * _FLOAT32 * hidden
    kept = shape.num_layers * layer
    if config.gradient_checkpointing is not False:
        kept = shape.num_layers * e * hidden + layer
    activations = tokens * (kept + (e + _FLOAT32) * hidden)
    # The backward pass adds the gradients of a layer's output and of its widest vector; the
    # embedding's dense gradient comes last, when the activations are gone.
    is_full = recipe.method == "full"
    at_the_end = shape.num_embedding_parameters * e * is_full - activations
    return activations, max(tokens * e * (inner + hidden), at_the_end)


def _hours(
    config: PlanTrainConfig, shape: BackboneShape, num_responses: int, mean_length: float
) -> dict[str, dict[str, float]]:
    """Every layout's tokens and hours of the asked recipe."""
    recipe = RECIPES[config.recipe]
    peak_flops = find_gpu(config.gpu).peak_flops(weight_bytes=recipe.weight_bytes)
    flops = flops_per_token(shape, sequence_length=mean_length) * _SHARES[recipe.method]
    epochs = 1 if recipe.method == "probe" else config.epochs
    computed_shares = {"packed": 1.0, "sorted": 1 / (1 - _SORTED_PADDING)}
    if shape.is_causal:
        computed_shares["prefix-shared"] = 1 - _SHARED_SHARE
    found = {}
    for layout, share in computed_shares.items():
        tokens = num_responses * epochs * mean_length * share
        hours = tokens * flops / (peak_flops * config.utilisation) / 3600
        found[layout] = {"computed_tokens": round(tokens), "hours": round(hours, 3)}
    return found


def _lengths_from_average(config: PlanTrainConfig) -> tuple[int, float, str]:
    """How many pairs, their mean length in tokens, cut at the maximum, and how it is known."""
    pairs, mean = config.pairs, config.tokens_per_response
    assert pairs is not None and mean is not None, "checked by the command"  # noqa: PT018
    origin = f"{pairs:,} pairs of {mean:g} tokens a response with its prompt"
    return pairs, min(mean, config.max_length), origin


def _lengths_of_study(study: Study, max_length: int) -> tuple[int, float, str]:
    """The same, from the texts' characters; what is beyond the maximum is cut."""
    from encore.data.pairs import read_pairs, records_of

    table = read_pairs(study)
    num_pairs = table.num_rows
    if num_pairs == 0:
        raise InputError(
            f"study {study.path}: no pairs; run `encore ingest SOURCE --out {study.path}` first"
        )
    lengths = [
        (sum(len(turn.content) for turn in pair.prompt) + len(text)) / _CHARACTERS_PER_TOKEN
        for pair in records_of(table)
        for text in (pair.chosen, pair.rejected)
    ]
    mean = sum(min(length, max_length) for length in lengths) / len(lengths)
    origin = f"{num_pairs:,} pairs at {_CHARACTERS_PER_TOKEN} characters a token, not tokenised"
    return num_pairs, max(mean, 1.0), origin
