"""`encore gate`: train the baseline whose weights of the heads depend on the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encore.cli.output import Renderable, compact_table, percent, show_result
from encore.core.command_parser import JsonOption, command
from encore.core.number_text import counted
from encore.core.terminal import say, say_next, terminal_reporter, warn
from encore.data.study_options import StudyArgument
from encore.training.training_options import GateTrainingConfig

if TYPE_CHECKING:
    from encore.training.baselines.gate import GateResult


@command
def gate(study: StudyArgument, config: GateTrainingConfig, *, json: JsonOption = False) -> None:
    """Train a gate: a small network that reads the prompt and weighs the model's heads.

    This is the paper's baseline "MoE gating". Backbone and heads do not change. Three hidden layers
    learn from people's preferences how to weigh the heads for each prompt. ENCORE's weights need no
    such training. A gate cannot be folded into one head.

    The command prints loss and accuracy on prompts that were held out from the model's training,
    beside those of the best weights that do not depend on the prompt. It warns where the gate is
    worse. Run the same command again after a stop: it continues.

    Example: encore gate study --model study/training/KEY/model
    """
    from encore.data.study import open_study
    from encore.training.baselines.gate import gate_warnings, train_gate

    with terminal_reporter() as reporter:
        result = train_gate(open_study(study), config, reporter=reporter)
    weights = result.mean_weights.items()
    table = compact_table(("head", "mean weight"), weights, title="The gate over held-out prompts")
    warnings = gate_warnings(
        result.mean_weights,
        gate_loss=result.held_out_loss,
        constant_loss=result.held_out_constant_loss,
    )
    notes = [note for note in result.notes if note not in warnings]
    show_result(result, [table, _losses(result)], notes, synthetic=result.synthetic, as_json=json)
    for warning in warnings:
        warn(warning)
    say(f"gate in {result.out}, {result.seconds:.0f} s")
    say_next("benchmark", study, "--model", config.model, "--gate", result.out)


def _losses(result: GateResult) -> Renderable:
    """Return a table of losses and accuracies beside those of weights without a prompt."""
    values = {
        "gate": (result.training_loss, result.held_out_loss, result.accuracy_gated),
        "best constant weights": (
            *(result.best_constant_loss, result.held_out_constant_loss),
            result.accuracy_constant,
        ),
        "plain mean of the heads": (None, None, result.accuracy_uniform),
    }
    rows = [
        (name, *("" if loss is None else f"{loss:.4f}" for loss in losses), percent(accuracy))
        for name, (*losses, accuracy) in values.items()
    ]
    pairs = counted(result.num_evaluation_pairs, "held-out pair")
    columns = ("weights", "training loss", "held-out loss", "accuracy")
    return compact_table(columns, rows, title=f"On {pairs}; a coin has loss 0.6931")
