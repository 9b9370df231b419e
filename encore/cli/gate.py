"""`encore gate`: the baseline whose weights depend on the prompt, over the heads of a model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from encore.cli.output import (
    JsonOption,
    StudyArgument,
    compact_table,
    out,
    print_json,
    progress_bar,
    say,
    warn,
)


def gate(
    study: StudyArgument,
    model: Annotated[
        Path,
        typer.Option(
            metavar="MODEL", help="What `encore train` wrote, e.g. study/training/KEY/model."
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights, batches and dropout.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Pilot: this many pairs, by content hash.")
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The gate's folder; default: beside MODEL."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a gate: a small network that reads the prompt and weighs the model's heads.

    The paper's baseline "MoE gating". Backbone and heads stay as they are;
    three hidden layers learn from people's preferences which heads count for
    which prompt. ENCORE's weights need no such training. A gate cannot be
    folded into one head.

    Shown is the accuracy on the prompts that were held out from the model's
    training, beside that of the plain mean of the heads. What is computed is
    kept: the same command goes on after a stop.

    For example:

    encore gate study --model study/training/KEY/model
    """
    from encore.training.gate import GateConfig
    from encore.training.gating import train_gate_of

    with progress_bar() as bar:
        embedding = bar.add_task("embedding", total=None, rate="")
        training = bar.add_task("gate", total=steps, rate="")
        result = train_gate_of(
            study,
            model=model,
            config=GateConfig(num_steps=steps, seed=seed),
            limit=limit,
            out=out_dir,
            on_embedded=lambda done, total: bar.update(embedding, completed=done, total=total),
            on_step=lambda record: bar.update(training, completed=record.step),
        )
    if result.synthetic:
        synthetic = ", ".join(result.synthetic)
        warn(f"synthetic: {synthetic}; read these figures as an example, not as evidence")
    if as_json:
        print_json({**dataclasses.asdict(result), "out": str(result.out)})
        return
    rows = [(head_id, f"{weight:.4f}") for head_id, weight in result.mean_weights.items()]
    out.print(compact_table(("head", "mean weight"), rows, title="The gate over held-out prompts"))
    if result.accuracy_gated is not None and result.accuracy_uniform is not None:
        say(
            f"accuracy on {result.num_evaluation_pairs} held-out pairs: gated "
            f"{result.accuracy_gated:.1%}, plain mean of the heads {result.accuracy_uniform:.1%}"
        )
    say(f"gate in {result.out}, {result.seconds:.0f} s")
