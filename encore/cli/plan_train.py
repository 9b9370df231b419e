"""`encore plan train`: what a training run will take, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from encore.cli.output import Shown, compact_table, show_result
from encore.core.errors import EncoreError
from encore.core.options import JsonOption, UsageError, command
from encore.training.training_plan import PlanTrainConfig

_PARTS = ("weights", "gradients", "optimizer_states", "activations", "workspace", "total")


@command
def plan_train(config: PlanTrainConfig, *, json: JsonOption = False) -> None:
    """What a training run will take on one GPU: memory by part, hours by layout. Loads nothing.

    Of a model, only its config.json is read. Memory is what one process needs when it is fullest;
    a reward model has no vocabulary-sized output layer, so it is in no row. Hours are those of
    training alone at the given utilisation, which counts neither padding nor recomputation as
    useful; every evaluation adds a forward pass over the held-out pairs.

    Exit code 1: the recipe does not fit; the message names one that does.

    Examples: `encore plan train study --backbone meta-llama/Llama-3.1-8B-Instruct`,
    `encore plan train --pairs 70000 --tokens-per-response 300 --gpu a100-40 --recipe lora`.
    """
    from encore.data.study import open_study
    from encore.training.training_plan import plan_training, refusal

    given = [config.pairs is not None, config.tokens_per_response is not None]
    if any(given) if config.study else not all(given):
        raise UsageError("give STUDY, or --pairs and --tokens-per-response, not both")
    planned = plan_training(config, open_study(config.study) if config.study else None)
    show_result(planned, _tables(planned, config.layout), as_json=json)
    if problem := refusal(planned):
        raise EncoreError(problem)


def _tables(plan: dict[str, Any], layout: str) -> Iterator[Shown]:
    model, gpu, asked = plan["model"], plan["gpu"], plan["recipe"]
    yield (
        f"{model['name']}: {model['num_parameters'] / 1e9:.2f} B parameters with its embedding "
        f"table, without the output layer; {model['gflop_per_token']:.1f} GFLOP a token\n"
        f"tokens: {plan['tokens']['origin']}"
    )
    memory = [
        (
            name + " *" * (name == asked),
            *(f"{recipe[f'{part}_gib']:.1f}" for part in _PARTS),
            "yes" if recipe["fits"] else "no",
        )
        for name, recipe in plan["recipes"].items()
    ]
    columns = ("recipe", "weights", "grads", "states", "activ.", "work", "total", "fits")
    title = f"Memory in GiB; {gpu['name']} has {gpu['usable_gib']:.1f} for tensors"
    yield compact_table(columns, memory, title=title)
    yield "* asked. Columns: weights, gradients, optimizer states, activations, workspace."
    hours = [
        (name + " *" * (name == layout), f"{row['computed_tokens']:,}", f"{row['hours']:.2f}")
        for name, row in plan["hours"].items()
    ]
    title = f"Time of {asked} on one {gpu['name']} at {plan['utilisation']:.0%} of its peak"
    yield compact_table(("layout (* asked)", "tokens computed", "hours"), hours, title=title)
    for name, recipe in plan["recipes"].items():
        yield f"{name}: {recipe['options']}"
