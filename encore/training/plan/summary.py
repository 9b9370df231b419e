"""A plan as JSON, and in one line why it cannot be done."""

from __future__ import annotations

from typing import Any

from encore.training.plan.estimate import Advice, TrainingEstimate


def as_dict(estimate: TrainingEstimate) -> dict[str, Any]:
    """The plan as plain JSON values: GiB, tokens, hours; None where nothing fits."""
    shape, gpu, lengths = estimate.shape, estimate.gpu, estimate.lengths
    return {
        "model": {
            "name": shape.name,
            "kind": shape.kind,
            "num_parameters": shape.num_parameters,
            "num_embedding_parameters": shape.num_embedding_parameters,
            "num_output_parameters_not_loaded": shape.num_output_parameters,
            "gflop_per_token": round(estimate.gflop_per_token, 3),
        },
        "gpu": {
            "name": gpu.name,
            "memory_gib": gpu.memory_gib,
            "usable_gib": round(gpu.usable_gib, 3),
            "bf16_tflops": gpu.bf16_tflops,
            "bandwidth_gbps": gpu.bandwidth_gbps,
        },
        "recipe": estimate.recipe.name,
        "fits": estimate.fits,
        "memory": estimate.memory.as_dict(),
        "advice": _advice(estimate.advice),
        "recipes": [
            {
                "name": found.recipe.name,
                "about": found.recipe.about,
                "options": found.recipe.options,
                "fits": found.fits,
                **found.memory.as_dict(),
            }
            for found in estimate.recipes
        ],
        "tokens": {
            "origin": lengths.origin,
            "num_pairs": lengths.num_pairs,
            "num_tokens": lengths.num_tokens,
            "mean_length": round(lengths.mean_length, 1),
            "max_length": lengths.max_length,
            "largest_step": estimate.largest_step,
        },
        "utilisation": estimate.settings.utilisation,
        "hours": {
            found.layout: {
                "computed_tokens": found.computed_tokens,
                "hours": round(found.hours, 3),
            }
            for found in estimate.hours
        },
        "optimizer_seconds": round(estimate.optimizer_seconds, 4),
        "notes": list(estimate.notes),
    }


def refusal(estimate: TrainingEstimate) -> str:
    """Why the asked recipe cannot be done, and what can: one line."""
    gpu, advice = estimate.gpu, estimate.advice
    needs = (
        f"recipe {estimate.recipe.name}: needs {estimate.memory.total:.1f} GiB for "
        f"{estimate.shape.name}, {gpu.name} has {gpu.usable_gib:.1f} for tensors"
    )
    if advice is not None:
        total = f"{advice.memory.total:.1f}"
        return f"{needs}; {_named(advice)} fits with {total}: {options_of(advice)}"
    possible = [found for found in estimate.recipes if found.recipe.options is not None]
    least = min(possible, key=lambda found: found.memory.total)
    return (
        f"{needs}; no recipe fits (the smallest, {least.recipe.name}, needs "
        f"{least.memory.total:.1f}): take a GPU with more memory or a smaller backbone"
    )


def options_of(advice: Advice) -> str:
    """What `encore train` is called with."""
    assert advice.recipe.options is not None, "only what can be run is advised"
    return f"{advice.recipe.options} --tokens-per-microbatch {advice.tokens_per_microbatch}"


def _named(advice: Advice) -> str:
    budget = f"{advice.tokens_per_microbatch:,}"
    return f"recipe {advice.recipe.name} with microbatches of {budget} tokens"


def _advice(advice: Advice | None) -> dict[str, Any] | None:
    if advice is None:
        return None
    return {
        "recipe": advice.recipe.name,
        "tokens_per_microbatch": advice.tokens_per_microbatch,
        "options": options_of(advice),
        "total_gib": round(advice.memory.total, 3),
    }
