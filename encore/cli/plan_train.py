"""`encore plan train`: estimate memory and tokens of a training run, without loading a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from encore.cli.output import Renderable, compact_table, show_result
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.config import option
from encore.core.terminal import say_next
from encore.data.study_options import StudyFolder
from encore.training.training_plan import PlanTrainConfig

if TYPE_CHECKING:
    from encore.training.training_plan import TrainingPlan

_UNNAMED = "no --backbone is named: the figures are those of Llama 3.1 with 8 B parameters"
_PARTS = ("weights", "gradients", "optimizer_states", "activations", "workspace", "total")


@command
def plan_train(
    config: PlanTrainConfig,
    study: Annotated[
        StudyFolder | None,
        option(positional=True, help="Study whose pairs are counted; or use --pairs."),
    ] = None,
    *,
    json: JsonOption = False,
) -> None:
    """Estimate a training run: memory by part, tokens by layout. No model is loaded.

    Of a model config.json is read, and with STUDY its tokenizer: pairs that its chat template
    refuses are counted, because `encore train` sets them aside. Memory is the peak of one process,
    without CUDA's context. It contains no output layer over the vocabulary, because a reward model
    has none. Every evaluation adds a forward pass over the held-out pairs.

    Examples: `encore plan train study --backbone meta-llama/Llama-3.1-8B-Instruct`,
    `encore plan train --pairs 70000 --tokens-per-response 300 --recipe lora`.
    """
    from encore.data.study import open_study
    from encore.training.training_plan import plan_training

    is_given = [config.pairs is not None, config.tokens_per_response is not None]
    if any(is_given) if study else not all(is_given):
        raise UsageError("give STUDY, or --pairs and --tokens-per-response, not both")
    plan = plan_training(open_study(study) if study else None, config)
    is_named = "backbone" in config.model_fields_set
    notes = (*plan.tokens.notes, *(() if is_named else (_UNNAMED,)))
    show_result(plan, _tables(plan, config.layout), notes, as_json=json)
    backbone = config.backbone if is_named else "MODEL"
    template = ("--chat-template", config.chat_template) if config.chat_template else ()
    say_next("train", study or "STUDY", "--backbone", backbone, *template)


def _tables(plan: TrainingPlan, layout: str) -> Iterator[Renderable]:
    """Yield the tables and lines of a plan; the chosen recipe and layout are marked with *."""
    model = plan.model
    yield (
        f"{model['name']}: {model['num_parameters'] / 1e9:.2f} B parameters with its embedding "
        f"table, without the output layer; {model['gflop_per_token']:.1f} GFLOP a token\n"
        f"tokens: {plan.tokens.origin}"
    )
    memory_rows = [
        (
            name + " *" * (name == plan.recipe),
            *(f"{getattr(memory, f'{part}_gib'):.1f}" for part in _PARTS),
        )
        for name, memory in plan.recipes.items()
    ]
    columns = ("recipe", "weights", "grads", "states", "activ.", "work", "total")
    yield compact_table(columns, memory_rows, title="Memory in GiB")
    yield "* chosen. Columns: weights, gradients, optimizer states, activations, workspace."
    token_rows = [
        (name + " *" * (name == layout), f"{num_tokens:,}")
        for name, num_tokens in plan.computed_tokens.items()
    ]
    title = f"Tokens of {plan.recipe}"
    yield compact_table(("layout (* chosen)", "tokens computed"), token_rows, title=title)
    yield "hours: not measured on this device"
    for name, memory in plan.recipes.items():
        yield f"{name}: {memory.options}"
