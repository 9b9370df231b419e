"""`encore gate`: the baseline whose weights depend on the prompt, over the heads of a model."""

from __future__ import annotations

from encore.cli.output import compact_table, show_result
from encore.core.options import JsonOption, command
from encore.core.terminal import say, terminal_reporter
from encore.training.training_config import TrainGateConfig


@command
def gate(config: TrainGateConfig, *, json: JsonOption = False) -> None:
    """Train a gate: a small network that reads the prompt and weighs the model's heads.

    The paper's baseline "MoE gating". Backbone and heads stay as they are; three hidden layers
    learn from people's preferences which heads count for which prompt. ENCORE's weights need no
    such training. A gate cannot be folded into one head.

    Shown is the accuracy on the prompts that were held out from the model's training, beside that
    of the plain mean of the heads, and the training loss beside that of the best weights that do
    not read the prompt. What is computed is kept: the same command goes on after a stop.

    Example: encore gate study --model study/training/KEY/model
    """
    from encore.data.study import open_study
    from encore.training.baselines.gate import train_gate

    with terminal_reporter() as reporter:
        result = train_gate(open_study(config.study), config, reporter=reporter)
    weights = result["mean_weights"].items()
    table = compact_table(("head", "mean weight"), weights, title="The gate over held-out prompts")
    notes, synthetic = result["notes"], result["synthetic"]
    show_result(result, [table], notes, synthetic=synthetic, as_json=json)
    say(
        f"gate: training loss {result['training_loss']:.4f}; of the best constant weights "
        f"{result['best_constant_loss']:.4f}"
    )
    if result["num_evaluation_pairs"]:
        say(
            f"accuracy on {result['num_evaluation_pairs']} held-out pairs: gated "
            f"{result['accuracy_gated']:.1%}, plain mean of the heads "
            f"{result['accuracy_uniform']:.1%}"
        )
    say(f"gate in {result['out']}, {result['seconds']:.0f} s")
