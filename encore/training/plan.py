"""What a training run will need before anything is loaded: memory by part, hours, and what fits.

Memory is that of one process when it is fullest, hours are those of training alone. A plan is a
dictionary of plain JSON values: GiB, tokens, hours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from encore.config import StageConfig, option
from encore.errors import InputError
from encore.model.config import BackboneConfig
from encore.training.backbone_shape import (
    BackboneShape,
    attention_length,
    find_shape,
    flops_per_token,
)
from encore.training.config import MICROBATCH_TOKENS, LayoutName, Method, TrainingConfig
from encore.training.gpus import gpu_named

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
_MAX_MEASURED_PAIRS = 2000
_TRAINING: dict[str, Any] = dict(TrainingConfig.model_fields)
_BACKBONE: dict[str, Any] = dict(BackboneConfig.model_fields)


class PlanTrainConfig(StageConfig):
    """`encore plan train`: a training run, as far as its memory and time depend on it."""

    what: Literal["train"] = option("train", positional=True, help="The command to plan: train.")
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
        help="full-stochastic, lora, probe, full-bfloat16, full-float32; the table has them all.",
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
    heads: int = option(10, ge=1, help="Rules.")
    utilisation: float = option(
        0.4, ge=0.01, le=1, help="Share of the GPU's dense peak that useful arithmetic gets."
    )


class Recipe(NamedTuple):
    """One way to train: bytes of a weight (and of activations), its gradient, AdamW's two means.

    ``options`` are those of `encore train`.
    """

    name: str
    method: Method
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    options: str
    about: str


_STOCHASTIC = "--method full --optimizer adamw-stochastic"
#: In the order in which they are recommended: the first that fits is named.
RECIPES = (
    Recipe("full-stochastic", "full", 2, 2, 4, _STOCHASTIC, "stochastic rounding; the default"),
    Recipe("lora", "lora", 2, 0, 0, "--method lora", "frozen trunk, low-rank adapters"),
    Recipe("probe", "probe", 2, 0, 0, "--method probe", "frozen trunk, heads in closed form"),
    Recipe(
        *("full-bfloat16", "full", 2, 2, 4, "--method full --optimizer adamw"),
        "plain bfloat16 AdamW: at a learning rate of 2e-5 rounding leaves most weights unchanged",
    ),
    Recipe(
        *("full-float32", "full", 4, 4, 8, "--method full --dtype float32 --optimizer adamw"),
        "float32 throughout: AdamW as its authors meant it",
    ),
)


class _Lengths(NamedTuple):
    """Tokens of the responses with their prompts.

    ``attention`` is Σ l² / Σ l; ``shared`` are tokens that a pair's responses have in common; a
    pair's tokens spread by ``deviation`` around twice the mean.
    """

    num_pairs: int
    mean: float
    attention: float
    shared: float
    deviation: float
    origin: str


class _Run(NamedTuple):
    """A training to plan; tokens of its fullest ``step`` and ``budget`` of its microbatches."""

    shape: BackboneShape
    config: PlanTrainConfig
    lengths: _Lengths
    step: int
    budget: int


def plan_training(config: PlanTrainConfig, study: Study | None = None) -> dict[str, Any]:
    """Memory of every recipe, hours of every layout, and a recipe that fits, as JSON values.

    A maximum length beyond the model's is lowered to it. ``study`` is the opened ``config.study``.

    Raises:
        InputError: An unknown name or backbone, no pairs, a length beyond the maximum.
    """
    gpu, shape = gpu_named(config.gpu), find_shape(config.backbone, revision=config.revision)
    recipes = {one.name: one for one in RECIPES}
    if config.recipe not in recipes:
        raise InputError(f"recipe {config.recipe!r}: expected one of {', '.join(recipes)}")
    recipe = recipes[config.recipe]
    if config.layout == "prefix-shared" and not shape.is_causal:
        raise InputError(
            f"layout prefix-shared: backbone {shape.name!r} is an encoder, whose prompt changes "
            "with its response; use layout packed"
        )
    max_length = min(config.max_length, shape.max_length)
    config = config.model_copy(update={"max_length": max_length})
    lengths = _lengths_of_study(study, max_length) if study else _lengths_from_average(config)
    budget = config.tokens_per_microbatch or MICROBATCH_TOKENS["cuda"]
    run = _Run(shape, config, lengths, _largest_step(lengths, config), budget)
    memory, limit = {one: _memory_of(one, run) for one in RECIPES}, gpu.usable_gib
    fits = memory[recipe]["total_gib"] <= limit
    peak = 1e12 * (gpu.fp32_tflops if recipe.weight_bytes == _FLOAT32 else gpu.bf16_tflops)
    return {
        "model": _about_model(shape),
        "gpu": gpu._asdict() | {"usable_gib": round(limit, 3)},
        "recipe": recipe.name,
        "fits": fits,
        "memory": memory[recipe],
        "advice": None if fits else _advice(recipe, run, limit),
        "recipes": [
            {"name": one.name, "about": one.about, "options": one.options}
            | {"fits": needed["total_gib"] <= limit, **needed}
            for one, needed in memory.items()
        ],
        "tokens": {
            "origin": lengths.origin,
            "num_pairs": lengths.num_pairs,
            "num_tokens": round(2 * lengths.num_pairs * lengths.mean),
            "mean_length": round(lengths.mean, 1),
            "max_length": max_length,
            "largest_step": run.step,
        },
        "utilisation": config.utilisation,
        "hours": _hours(recipe, run, peak * config.utilisation),
        "notes": _notes(recipe, run),
    }


def _largest_step(lengths: _Lengths, config: PlanTrainConfig) -> int:
    """Tokens of the fullest of some thousand steps, about: the mean and four deviations."""
    pairs = min(config.batch_pairs, lengths.num_pairs)
    shared = lengths.shared if config.layout == "prefix-shared" else 0.0
    largest = pairs * (2 * lengths.mean - shared) + 4 * lengths.deviation * pairs**0.5
    return int(min(largest, 2 * pairs * config.max_length))


def _notes(recipe: Recipe, run: _Run) -> list[str]:
    """What gradients cost where a step takes several passes: they stay from one to the next."""
    packed = run.config.model_copy(update={"layout": "packed"})
    whole = run._replace(config=packed, budget=max(run.step, run.budget))
    held, freed = (_memory_of(recipe, one)["gradients_gib"] for one in (run, whole))
    note = (
        f"a step has up to about {run.step:,} tokens, in microbatches of {run.budget:,}: between "
        f"them gradients are kept ({held:.1f} GiB instead of {freed:.1f}); a packed microbatch "
        "that holds a whole step frees them as it goes"
    )
    return [note] if freed < held else []


def _about_model(shape: BackboneShape) -> dict[str, Any]:
    return {
        "name": shape.name,
        "kind": shape.kind,
        "num_parameters": shape.num_parameters,
        "num_embedding_parameters": shape.num_embedding_parameters,
        "num_output_parameters_not_loaded": shape.num_output_parameters,
        "gflop_per_token": round(flops_per_token(shape) / 1e9, 3),
    }


def _advice(asked: Recipe, run: _Run, limit: float) -> dict[str, Any] | None:
    """The asked recipe with the smallest microbatch, else the first recipe that fits."""
    for recipe in (asked, *RECIPES):
        for budget in (run.budget, min(run.budget, 2 * run.config.max_length)):
            total = _memory_of(recipe, run._replace(budget=budget))["total_gib"]
            if total <= limit:
                return {
                    "recipe": recipe.name,
                    "tokens_per_microbatch": budget,
                    "options": f"{recipe.options} --tokens-per-microbatch {budget}",
                    "total_gib": total,
                }
    return None


def refusal(plan: dict[str, Any]) -> str:
    """Why the asked recipe of a plan does not fit, and what does: one line."""
    gpu, advice = plan["gpu"], plan["advice"]
    needs = (
        f"recipe {plan['recipe']}: needs {plan['memory']['total_gib']:.1f} GiB for "
        f"{plan['model']['name']}, {gpu['name']} has {gpu['usable_gib']:.1f} for tensors"
    )
    if advice is None:
        return f"{needs}; no recipe fits: take a GPU with more memory or a smaller backbone"
    return (
        f"{needs}; recipe {advice['recipe']} fits with {advice['total_gib']:.1f}: "
        f"{advice['options']}"
    )


def _memory_of(recipe: Recipe, run: _Run) -> dict[str, float]:
    """The memory that a recipe needs on one GPU, by part, in GiB.

    With gradient checkpointing a pass keeps the input of every layer and everything of the one
    layer that is computed again, otherwise everything of all layers. Flash attention never holds
    the scores of all pairs of tokens. Stochastic rounding updates a weight in the backward pass and
    frees its gradient, where a step is one pass.
    """
    shape, config, _, step, budget = run
    e, hidden, inner = recipe.weight_bytes, shape.hidden_size, shape.intermediate_size
    budget = max(budget, 2 * config.max_length)  # a longer pair gets a microbatch of its own
    tokens = min(budget, step)
    is_one_pass = step <= budget and config.layout in ("packed", "prefix-shared")
    is_freed = recipe.name == "full-stochastic" and is_one_pass
    trained = shape.num_layer_parameters if is_freed else shape.num_parameters
    adapters = 0  # in bfloat16
    if recipe.method == "lora":
        adapters = shape.num_layers * sum(map(sum, shape.matrices)) * config.lora_rank * 2
    heads = config.heads * hidden * _FLOAT32
    # Attention's inputs and output; the feed-forward block's gate, activated gate, up and product
    # (an encoder's: before and after the activation); the norms' float32 inputs and results.
    ways = 4 if shape.is_causal else 2
    widths = 2 * (shape.num_heads + shape.num_kv_heads) * shape.head_size + ways * inner
    layer = e * (widths + 4 * hidden) + 2 * _FLOAT32 * hidden
    kept = shape.num_layers * layer
    if config.gradient_checkpointing is not False:
        kept = shape.num_layers * e * hidden + layer
    activations = tokens * (kept + (e + _FLOAT32) * hidden)
    # The backward pass adds the gradients of a layer's output and of its widest vector; the
    # embedding's dense gradient comes last, when the activations are gone.
    at_the_end = shape.num_embedding_parameters * recipe.gradient_bytes - activations
    workspace = max(tokens * e * (inner + hidden), at_the_end)
    trained_heads = heads
    if recipe.method == "probe":  # keeps nothing for a backward pass
        activations = tokens * (e * ((ways - 1) * inner + 2 * hidden) + _FLOAT32 * hidden)
        workspace = trained_heads = 0
    parts = {
        "weights": shape.num_parameters * e + adapters + heads,
        "gradients": trained * recipe.gradient_bytes + adapters + trained_heads,
        "optimizer_states": shape.num_parameters * recipe.state_bytes
        + 2 * (adapters + trained_heads),
        "activations": activations,
        "workspace": workspace + _LIBRARY_BYTES,
    }
    parts["total"] = sum(parts.values())
    return {f"{name}_gib": round(size / _GIB, 3) for name, size in parts.items()}


def _hours(recipe: Recipe, run: _Run, flops_per_second: float) -> dict[str, dict[str, float]]:
    """Every layout's tokens and hours; rows padded to the maximum length are for comparison."""
    shape, config, lengths, _, _ = run
    num_tokens = 2 * lengths.num_pairs * lengths.mean
    shared = {"prefix-shared": num_tokens - lengths.num_pairs * lengths.shared}
    computed = {
        "packed": num_tokens,
        **(shared if shape.is_causal else {}),
        "sorted": num_tokens / (1 - _SORTED_PADDING),
        "padded": 2.0 * lengths.num_pairs * config.max_length,
    }
    passes = 1 if recipe.method == "probe" else config.epochs
    found = {}
    for layout, tokens in computed.items():
        length = config.max_length if layout == "padded" else lengths.attention
        flops = flops_per_token(shape, sequence_length=length) * _SHARES[recipe.method]
        hours = passes * tokens * flops / flops_per_second / 3600
        found[layout] = {"computed_tokens": round(passes * tokens), "hours": round(hours, 3)}
    return found


def _lengths_from_average(config: PlanTrainConfig) -> _Lengths:
    pairs, mean = config.pairs, config.tokens_per_response
    assert pairs is not None, "checked by the command"
    assert mean is not None, "checked by the command"
    if mean > config.max_length:
        raise InputError(
            f"tokens per response {mean:g}: more than the maximum length of {config.max_length} "
            "tokens; longer conversations are cut to it, so give at most that"
        )
    return _Lengths(
        num_pairs=pairs,
        mean=mean,
        attention=mean,
        shared=2 * mean * _SHARED_SHARE,
        deviation=2 * mean,  # conversations are spread about as widely as their mean
        origin=f"{pairs:,} pairs of {mean:g} tokens a response with its prompt; shared prompts "
        f"taken as {_SHARED_SHARE:.1%} of tokens, as in HH",
    )


def _lengths_of_study(study: Study, max_length: int) -> _Lengths:
    """From the characters of a sample; what is beyond the maximum is cut, as in training."""
    import numpy as np

    from encore.data.pairs import read_pairs, records_of

    table = read_pairs(study)
    num_pairs = table.num_rows
    if num_pairs == 0:
        raise InputError(
            f"study {study.path}: no pairs; run `encore ingest SOURCE --out {study.path}` first"
        )
    sample = records_of(table.take(list(range(0, num_pairs, -(-num_pairs // _MAX_MEASURED_PAIRS)))))
    prompt_P = np.array([sum(len(turn.content) for turn in pair.prompt) for pair in sample])
    response_P2 = np.array([[len(pair.chosen), len(pair.rejected)] for pair in sample])
    length_P2 = np.maximum((prompt_P[:, None] + response_P2) / _CHARACTERS_PER_TOKEN, 1.0)
    # Two sequences that are cut by different amounts begin differently.
    shared_P = np.where(length_P2.max(axis=1) <= max_length, prompt_P / _CHARACTERS_PER_TOKEN, 0.0)
    length_P2 = np.minimum(length_P2, max_length)
    return _Lengths(
        num_pairs=num_pairs,
        mean=float(length_P2.mean()),
        attention=attention_length(length_P2.ravel().tolist()),
        shared=float(shared_P.mean()),
        deviation=float(length_P2.sum(axis=1).std()),
        origin=f"{len(sample):,} of {num_pairs:,} pairs at {_CHARACTERS_PER_TOKEN} characters a "
        "token, not tokenised",
    )
