"""`encore plan`: what a run will take, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from encore.cli import training_options as options
from encore.cli.output import JsonOption, compact_table, out, print_json, say, visible
from encore.cli.training_options import DEFAULT
from encore.errors import EncoreError

if TYPE_CHECKING:
    from rich.table import Table

    from encore.training.plan.estimate import TrainingEstimate
    from encore.training.plan.lengths import Lengths
    from encore.training.plan.recipes import Recipe


def plan(
    what: Annotated[
        Literal["train"], typer.Argument(metavar="WHAT", help="The command to plan: train.")
    ],
    study: Annotated[
        Path | None,
        typer.Argument(metavar="STUDY", help="Its pairs say how many tokens; or use --pairs."),
    ] = None,
    backbone: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Folder with config.json, hub id, or llama-3.1-8b, llama-3-70b, qwen3-8b, minilm…",
        ),
    ] = "llama-3.1-8b",
    revision: options.Revision = None,
    gpu: Annotated[
        str, typer.Option(metavar="GPU", help="h100-80, h200-141, a100-80, l40s-48, rtx4090-24…")
    ] = "h100-80",
    recipe: Annotated[
        str,
        typer.Option(
            metavar="RECIPE",
            help="full-stochastic, full-8bit-in-backward, lora, probe, full-bfloat16, "
            "full-float32; the table has them all.",
        ),
    ] = "full-stochastic",
    pairs: Annotated[
        int | None, typer.Option(min=1, help="Instead of STUDY: so many preference pairs.")
    ] = None,
    tokens_per_response: Annotated[
        float | None,
        typer.Option(min=1, help="With --pairs: mean tokens of a response with its prompt."),
    ] = None,
    max_length: options.MaxLength = 1024,
    layout: options.Layout = DEFAULT.layout,
    batch_pairs: options.BatchPairs = DEFAULT.batch_pairs,
    tokens_per_microbatch: options.TokensPerMicrobatch = DEFAULT.tokens_per_microbatch,
    gradient_checkpointing: options.GradientCheckpointing = None,
    epochs: options.Epochs = DEFAULT.epochs,
    lora_rank: options.LoraRank = DEFAULT.lora_rank,
    heads: Annotated[int, typer.Option(min=1, help="Rules.")] = 10,
    utilisation: Annotated[
        float,
        typer.Option(
            min=0.01, max=1, help="Share of the GPU's dense peak that useful arithmetic gets."
        ),
    ] = 0.4,
    as_json: JsonOption = False,
) -> None:
    """What a training run will take on one GPU: memory by part, hours by layout. Loads nothing.

    Of a model, only its config.json is read. Memory is what one process needs when it is fullest;
    a reward model has no vocabulary-sized output layer, so it is in no row. Hours are those of
    training alone at the given utilisation, which counts neither padding nor recomputation as
    useful; every evaluation adds a forward pass over the held-out pairs.

    Exit code 1: the recipe does not fit; the message names one that does.

    Examples: `encore plan train study --backbone meta-llama/Llama-3.1-8B-Instruct`,
    `encore plan train --pairs 70000 --tokens-per-response 300 --gpu a100-40 --recipe lora`.
    """
    from encore.training.config import MICROBATCH_TOKENS
    from encore.training.plan.estimate import Settings, estimate_training
    from encore.training.plan.gpus import gpu_named
    from encore.training.plan.locate import find_shape
    from encore.training.plan.recipes import recipe_named
    from encore.training.plan.summary import as_dict, refusal

    assert what == "train", "the only one so far"
    chosen_gpu, chosen_recipe = gpu_named(gpu), recipe_named(recipe)
    shape = find_shape(backbone, revision=revision)
    max_length = min(max_length, shape.max_length)
    estimate = estimate_training(
        shape,
        recipe=chosen_recipe,
        gpu=chosen_gpu,
        lengths=_lengths(
            study,
            pairs=pairs,
            tokens_per_response=tokens_per_response,
            backbone=backbone,
            max_length=max_length,
        ),
        settings=Settings(
            layout=layout,
            batch_pairs=batch_pairs,
            tokens_per_microbatch=tokens_per_microbatch or MICROBATCH_TOKENS["cuda"],
            is_checkpointed=gradient_checkpointing is not False,
            epochs=epochs,
            num_heads=heads,
            lora_rank=lora_rank,
            utilisation=utilisation,
        ),
    )
    if as_json:
        print_json(as_dict(estimate))
    else:
        _print(estimate)
    for note in estimate.notes:
        say(f"note: {note}")
    if not estimate.fits:
        raise EncoreError(refusal(estimate))


def _lengths(
    study: Path | None,
    *,
    pairs: int | None,
    tokens_per_response: float | None,
    backbone: str,
    max_length: int,
) -> Lengths:
    from encore.training.plan.lengths import lengths_from_average, lengths_of_study

    if study is not None:
        if pairs is not None or tokens_per_response is not None:
            raise typer.BadParameter("give STUDY or --pairs with --tokens-per-response, not both")
        return lengths_of_study(study, model=backbone, max_length=max_length)
    if pairs is None or tokens_per_response is None:
        raise typer.BadParameter("give STUDY, or --pairs and --tokens-per-response")
    return lengths_from_average(
        pairs, tokens_per_response=tokens_per_response, max_length=max_length
    )


def _print(estimate: TrainingEstimate) -> None:
    shape = estimate.shape
    out.print(
        visible(
            f"{shape.name}: {shape.num_parameters / 1e9:.2f} B parameters with its embedding "
            f"table, without the output layer; {estimate.gflop_per_token:.1f} GFLOP a token"
        ),
        soft_wrap=True,
    )
    out.print(visible(f"tokens: {estimate.lengths.origin}"), soft_wrap=True)
    out.print(memory_table(estimate))
    out.print(hours_table(estimate))
    for found in estimate.recipes:
        out.print(f"{found.recipe.name}: {found.recipe.about}", soft_wrap=True)


def memory_table(estimate: TrainingEstimate) -> Table:
    """Every recipe's memory by part; the asked one and those that cannot be run are marked."""
    rows = [
        (
            _marked(found.recipe, asked=estimate.recipe),
            *(
                f"{value:.1f}"
                for value in (
                    found.memory.weights,
                    found.memory.gradients,
                    found.memory.optimizer_states,
                    found.memory.activations,
                    found.memory.workspace,
                    found.memory.total,
                )
            ),
            "yes" if found.fits else "no",
        )
        for found in estimate.recipes
    ]
    gpu = estimate.gpu
    columns = ("recipe", "weights", "grads", "states", "activ.", "work", "total", "fits")
    table = compact_table(
        columns, rows, title=f"Memory in GiB; {gpu.name} has {gpu.usable_gib:.1f} for tensors"
    )
    table.caption = (
        "* asked; † not in encore train. Columns: weights, gradients, optimizer states, "
        "activations, workspace."
    )
    table.caption_justify = "left"
    return table


def _marked(recipe: Recipe, *, asked: Recipe) -> str:
    marks = ("*" if recipe == asked else "") + ("" if recipe.options else "†")
    return f"{recipe.name} {marks}".rstrip()


def hours_table(estimate: TrainingEstimate) -> Table:
    """Tokens computed and hours for every way to put responses side by side."""
    rows = [
        (
            f"{found.layout} *" if found.layout == estimate.settings.layout else found.layout,
            f"{found.computed_tokens:,}",
            f"{found.hours:.2f}",
        )
        for found in estimate.hours
    ]
    title = (
        f"Time of {estimate.recipe.name} on one {estimate.gpu.name} at "
        f"{estimate.settings.utilisation:.0%} of its peak"
    )
    return compact_table(("layout (* asked)", "tokens computed", "hours"), rows, title=title)
