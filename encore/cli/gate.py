"""`encore gate`: train the baseline whose weights of the heads depend on the prompt."""

from __future__ import annotations

from encore.cli.output import compact_table, show_result
from encore.core.command_parser import JsonOption, command
from encore.core.terminal import say, say_next, terminal_reporter
from encore.training.training_options import TrainGateConfig


@command
def gate(config: TrainGateConfig, *, json: JsonOption = False) -> None:
    """Train a gate: a small network that reads the prompt and weighs the model's heads.

    This is the paper's baseline "MoE gating". Backbone and heads do not change. Three hidden layers
    learn from people's preferences how to weigh the heads for each prompt. ENCORE's weights need no
    such training. A gate cannot be folded into one head.

    The command prints the accuracy on prompts that were held out from the model's training, with
    that of the plain mean of the heads, and the training loss, with that of the best weights that
    do not depend on the prompt. Run the same command again after a stop: it continues.

    Example: encore gate study --model study/training/KEY/model
    """
    from encore.data.study import open_study
    from encore.training.baselines.gate import train_gate

    with terminal_reporter() as reporter:
        result = train_gate(open_study(config.study), config, reporter=reporter)
    weights = result.mean_weights.items()
    table = compact_table(("head", "mean weight"), weights, title="The gate over held-out prompts")
    show_result(result, [table], result.notes, synthetic=result.synthetic, as_json=json)
    say(
        f"gate: training loss {result.training_loss:.4f}; of the best constant weights "
        f"{result.best_constant_loss:.4f}"
    )
    if result.accuracy_gated is not None:
        say(
            f"accuracy on {result.num_evaluation_pairs:,} held-out pairs: gated "
            f"{result.accuracy_gated:.1%}, plain mean of the heads {result.accuracy_uniform:.1%}"
        )
    say(f"gate in {result.out}, {result.seconds:.0f} s")
    say_next("benchmark", config.study, "--model", config.model, "--gate", result.out)
