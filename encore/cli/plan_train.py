"""`encore plan train`: estimate memory and hours of a training run, without loading a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from encore.cli.output import Renderable, compact_table, show_result
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.errors import EncoreError
from encore.core.terminal import say_next
from encore.training.training_plan import PlanTrainConfig

if TYPE_CHECKING:
    from encore.training.training_plan import TrainingPlan

_PARTS = ("weights", "gradients", "optimizer_states", "activations", "workspace", "total")


@command
def plan_train(config: PlanTrainConfig, *, json: JsonOption = False) -> None:
    """Estimate a training run on one GPU: memory by part, hours by layout. No model is loaded.

    Of a model config.json is read, and with STUDY its tokenizer: pairs that its chat template
    refuses are counted, because `encore train` sets them aside. Memory is the peak of one process.
    It contains no output layer over the vocabulary, because a reward model has none. Hours are
    those of training alone. The utilisation counts neither padding nor recomputation as useful.
    Every evaluation adds a forward pass over the held-out pairs.

    Exit code 1: the recipe does not fit; the message names a recipe that does.

    Examples: `encore plan train study --backbone meta-llama/Llama-3.1-8B-Instruct`,
    `encore plan train --pairs 70000 --tokens-per-response 300 --gpu a100-40 --recipe lora`.
    """
    from encore.data.study import open_study
    from encore.training.training_plan import misfit_message, plan_training

    is_given = [config.pairs is not None, config.tokens_per_response is not None]
    if any(is_given) if config.study else not all(is_given):
        raise UsageError("give STUDY, or --pairs and --tokens-per-response, not both")
    plan = plan_training(open_study(config.study) if config.study else None, config)
    show_result(plan, _tables(plan, config.layout), plan.tokens.notes, as_json=json)
    if problem := misfit_message(plan):
        raise EncoreError(problem)
    backbone = config.backbone if "backbone" in config.model_fields_set else "MODEL"
    template = ("--chat-template", config.chat_template) if config.chat_template else ()
    say_next("train", config.study or "STUDY", "--backbone", backbone, *template)


def _tables(plan: TrainingPlan, layout: str) -> Iterator[Renderable]:
    """Yield the tables and lines of a plan; the chosen recipe and layout are marked with *."""
    model, gpu = plan.model, plan.gpu
    yield (
        f"{model['name']}: {model['num_parameters'] / 1e9:.2f} B parameters with its embedding "
        f"table, without the output layer; {model['gflop_per_token']:.1f} GFLOP a token\n"
        f"tokens: {plan.tokens.origin}"
    )
    memory_rows = [
        (
            name + " *" * (name == plan.recipe),
            *(f"{getattr(memory, f'{part}_gib'):.1f}" for part in _PARTS),
            "yes" if memory.fits else "no",
        )
        for name, memory in plan.recipes.items()
    ]
    columns = ("recipe", "weights", "grads", "states", "activ.", "work", "total", "fits")
    title = f"Memory in GiB; {gpu['name']} has {gpu['usable_gib']:.1f} for tensors"
    yield compact_table(columns, memory_rows, title=title)
    yield "* chosen. Columns: weights, gradients, optimizer states, activations, workspace."
    hour_rows = [
        (name + " *" * (name == layout), f"{time.computed_tokens:,}", f"{time.hours:.2f}")
        for name, time in plan.hours.items()
    ]
    title = f"Time of {plan.recipe} on one {gpu['name']} at {plan.utilisation:.0%} of its peak"
    yield compact_table(("layout (* chosen)", "tokens computed", "hours"), hour_rows, title=title)
    for name, memory in plan.recipes.items():
        yield f"{name}: {memory.options}"
