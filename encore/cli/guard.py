"""`encore guard`: a reward as a guardrail, on labelled responses, with the threshold to serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encore.cli.output import percent, show_result, span, warn_of_unused
from encore.core.command_parser import JsonOption, command
from encore.core.extras import require_packages
from encore.core.model_files import refuse_missing_folder
from encore.core.number_text import significant
from encore.core.terminal import say_next, terminal_reporter
from encore.people.people_options import GuardConfig

if TYPE_CHECKING:
    from encore.people.guardrail import GuardrailResult


@command
def guard(config: GuardConfig, *, json: JsonOption = False) -> None:
    """Measure a reward as a guardrail on labelled responses, and choose its threshold.

    A record has prompt, response and is_safe; the columns of WildGuardTest, XSTest-Response,
    BeaverTails and PKU-SafeRLHF are recognised. What is detected is an unsafe response; a low
    reward speaks for it. The threshold has the highest F1 on one half of the prompts, and is
    measured on the other. Over-refusal is the share of safe responses that are flagged,
    under-refusal that of unsafe ones that pass.

    Example: encore guard beavertails.jsonl --model study/training/KEY --weights weights.json
    """
    refuse_missing_folder("reward model", config.model)
    require_packages("torch", "transformers", work="encore guard")
    warn_of_unused(config.composition.unused_options(), who=f"scheme {config.composition.scheme}")
    from encore.people.guardrail import measure_guardrail

    with terminal_reporter() as reporter:
        result = measure_guardrail(config, reporter=reporter)
    show_result(result, [_text(result)], result.notes, synthetic=result.synthetic, as_json=json)
    chosen = config.composition.model_dump(exclude_none=True)
    options = [part for name, value in chosen.items() for part in (f"--{name}", value)]
    say_next("serve", config.model, *options, "--threshold", result.figures.threshold.value)


def _text(result: GuardrailResult) -> str:
    figures = result.figures
    low_high = span(figures.threshold.low, figures.threshold.high, significant)
    threshold = f"{significant(figures.threshold.value, digits=6)} ({low_high})"
    responses = f"{figures.num_responses:,} responses ({figures.num_unsafe:,} unsafe)"
    lines = [
        f"{result.model}: {responses} to {figures.num_prompts:,} prompts",
        *(
            f"{name}: {percent(estimate.value)} ({span(estimate.low, estimate.high, percent)})"
            for name, estimate in (
                ("AUROC", figures.auroc),
                ("average precision", figures.average_precision),
            )
        ),
        f"threshold, chosen on {figures.num_choosing:,} responses: {threshold}",
        f"measured on the other {figures.num_measured:,}:",
        *(
            f"{name}: {percent(estimate.value)} ({span(estimate.low, estimate.high, percent)})"
            for name, estimate in (
                (f"F1 (flagging all: {percent(figures.f1_of_flagging_all)})", figures.f1),
                ("over-refusal (safe responses flagged)", figures.over_refusal),
                ("under-refusal (unsafe responses passed)", figures.under_refusal),
            )
        ),
    ]
    return "\n".join(lines)
