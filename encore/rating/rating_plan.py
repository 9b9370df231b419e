"""Plan a rating run: calls, tokens by layout, hours and money.

Tokens are counted (`encore.rating.rating_cost`). Hours are measured on a pilot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import get_args

from pydantic import ValidationError

from encore.core.config import part_of
from encore.core.errors import EncoreError, InputError
from encore.core.number_text import amount
from encore.core.reporting import SILENT, Reporter
from encore.core.shown_record import ShownRecord
from encore.data.pairs import num_bytes_of
from encore.data.study import Study
from encore.judges.gpu_groups import visible_gpus
from encore.rating.prompts import RatingPrompt
from encore.rating.rating_cost import (
    MAX_COUNTED_PAIRS,
    TokenCounts,
    count_prompt_bytes,
    count_tokens,
    kv_block_size,
    recorded_tokens,
)
from encore.rating.rating_options import (
    PlanRateConfig,
    PromptLayout,
    RatingConfig,
    RatingRunOptions,
    ReplyOptions,
)
from encore.rating.rating_run import RatingRun, open_run, rater_of
from encore.runs.worker import work_through

#: Bytes of English in a token, and tokens of a reply (None: as many as it may have), for a low, a
#: middle and a high estimate of money.
_BYTES_PER_TOKEN = (5.0, 4.0, 3.0)
_REPLY_TOKENS = (2, 4, None)
#: Returns the seconds that some tokens take, without the engines' start.
_Clock = Callable[[TokenCounts], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """Cost of a calibration.

    Attributes:
        num_pairs: Number of pairs in the calibration.
        tokens: Calls and tokens of the pairs.
        seconds: Time of rating, without the engine's start.
        startup_seconds: Time of the engine's start; None if nothing was left to rate.
    """

    num_pairs: int
    tokens: TokenCounts
    seconds: float
    startup_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCost(TokenCounts):
    """Calls and tokens of a run with one prompt layout, with their hours and money if known."""

    hours: float | None
    money: float | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RatingPlan(ShownRecord):
    """Result of `plan_rating`: the expected cost of a rating run.

    Attributes:
        judge: Name of the judge.
        judge_title: The judge for people, e.g. ``judge NAME``.
        num_pairs: Number of pairs in the run.
        num_rules: Number of rules in the run.
        num_counted_pairs: Number of pairs whose prompts were tokenised.
        layout: Prompt layout of the config.
        layouts: Cost by prompt layout.
        count: Number of GPUs or machines.
        hours_origin: Phrase on where the hours come from, or why there are none.
        calibration: Cost of the calibration; None without one.
        notes: Sentences on what the plan lacks and how to get it.
    """

    judge: str
    judge_title: str
    num_pairs: int
    num_rules: int
    num_counted_pairs: int
    layout: PromptLayout
    layouts: Mapping[PromptLayout, LayoutCost]
    count: int
    hours_origin: str
    calibration: Pilot | None
    notes: list[str]


def plan_rating(
    study: Study,
    config: PlanRateConfig,
    replies: ReplyOptions = ReplyOptions(),
    *,
    reporter: Reporter = SILENT,
) -> RatingPlan:
    """Plan calls, and tokens, hours and money by layout, of a rating run.

    Raises:
        EncoreError: The calibration failed; see also `open_run`.
    """
    how = RatingRunOptions(**replies.model_dump(exclude_unset=True))
    run = open_run(study, config, how)
    try:
        pilot = _calibrate(run, study, config.calibrate, reporter) if config.calibrate else None
    finally:
        run.judge.close()
    seconds_of, hours_origin = _clock(config, pilot)
    num_pairs = config.pairs or run.pairs.num_rows
    layouts = {
        layout: _layout_cost(counts.scaled(num_pairs / run.pairs.num_rows), seconds_of, config)
        for layout, counts in _counts_by_layout(run, pilot).items()
    }
    notes = [*_notes(run, config, pilot), *_note_on_long_rules(run, layouts)]
    if run.judge.tokenizer is None and not pilot and None not in _token_prices(config):
        low, middle, high = _money_from_bytes(run, config)
        layouts = {layout: replace(cost, money=middle) for layout, cost in layouts.items()}
        notes.insert(
            0,
            f"the money is estimated from bytes, between {low:,.4g} and {high:,.4g} in the prices' "
            f"currency, at {_BYTES_PER_TOKEN[0]:g} to {_BYTES_PER_TOKEN[2]:g} bytes a token; "
            "--calibrate PAIRS measures it",
        )
    return RatingPlan(
        judge=run.manifest.judge,
        judge_title=run.manifest.judge_title,
        num_pairs=num_pairs,
        num_rules=len(run.manifest.rules),
        num_counted_pairs=min(run.pairs.num_rows, MAX_COUNTED_PAIRS),
        layout=config.layout,
        layouts=layouts,
        count=config.count,
        hours_origin=hours_origin,
        calibration=pilot,
        notes=notes,
    )


def _token_prices(config: PlanRateConfig) -> tuple[float | None, float | None]:
    return config.price_input, config.price_output


def _money_from_bytes(run: RatingRun, config: PlanRateConfig) -> list[float]:
    """Return a low, a middle and a high estimate of a run's money, without a tokenizer."""
    num_pairs = config.pairs or run.pairs.num_rows
    factor = num_pairs / run.pairs.num_rows
    prompts = run.rater.prompts
    if config.judge.api == "systemone":  # the model reads the conversation for each question
        prompts = replace(prompts, template=replace(prompts.template, layout="paper", order_seed=0))
    num_bytes = factor * count_prompt_bytes(prompts, run.pairs)
    num_calls = num_pairs * prompts.num_prompts_per_pair
    price_input, price_output = (price or 0.0 for price in _token_prices(config))
    decoding = run.rater.decoding
    max_answer_tokens, thinking_tokens = decoding.max_answer_tokens, decoding.think_tokens or 0
    return [
        1e-6
        * (
            price_input * num_bytes / bytes_per_token
            + price_output
            * num_calls
            * (thinking_tokens + min(reply_tokens or max_answer_tokens, max_answer_tokens))
        )
        for bytes_per_token, reply_tokens in zip(_BYTES_PER_TOKEN, _REPLY_TOKENS, strict=True)
    ]


def _counts_by_layout(run: RatingRun, pilot: Pilot | None) -> dict[PromptLayout, TokenCounts]:
    """Count calls and tokens of each layout; without a tokenizer, of the run's layout alone.

    With a pilot, replies are as long as in the pilot, and so are prompts that cannot be counted.
    """
    block_size = kv_block_size(run.config.judge, is_on_cpu=not visible_gpus())
    config, has_tokens = run.config, run.judge.tokenizer is not None
    layouts = get_args(PromptLayout) if has_tokens else [config.layout]
    counts, rule_set = {}, run.rater.prompts.rule_set
    for layout in layouts:
        is_for_all = layout == "all-rules"
        seed = config.order_seed if is_for_all else 0
        try:
            rating_config = part_of(config, RatingConfig, layout=layout, order_seed=seed)
            rater = rater_of(rating_config, run.judge, rule_set=rule_set)
        except (InputError, ValidationError):  # all-rules with another decode, or without room
            continue
        counted = count_tokens(
            rater.prompts, run.pairs, decoding=rater.decoding, block_size=block_size
        )
        if pilot and pilot.tokens.num_calls and is_for_all == (config.layout == "all-rules"):
            measured = pilot.tokens.scaled(counted.num_calls / pilot.tokens.num_calls)
            with_replies = replace(counted, output_tokens=measured.output_tokens)
            counted = with_replies if has_tokens else measured
        counts[layout] = counted
    return counts


def _calibrate(run: RatingRun, study: Study, num_pairs: int, reporter: Reporter) -> Pilot:
    """Rate the first pairs of a run as a separate run, with the same judge."""
    pilot = part_of(run.config, RatingConfig, limit=num_pairs)
    began = time.monotonic()
    opened = open_run(study, pilot, run.how, judge=run.judge)
    report = work_through(opened.job(reporter=reporter))
    seconds = time.monotonic() - began
    if report.failures:
        raise EncoreError(f"the calibration failed: {next(iter(report.failures.values()))}")
    tokens, num_pairs = recorded_tokens(report), opened.pairs.num_rows
    if tokens.num_calls:
        startup_seconds = seconds - report.seconds
        return Pilot(
            num_pairs=num_pairs,
            tokens=tokens,
            seconds=report.seconds,
            startup_seconds=startup_seconds,
        )
    # An earlier call rated the pairs: their shards say what it took.
    return Pilot(
        num_pairs=num_pairs,
        tokens=recorded_tokens(report, of_all_calls=True),
        seconds=sum(float(shard.footer.get("engine_seconds", 0)) for shard in report.outcomes),
        startup_seconds=None,
    )


def _clock(config: PlanRateConfig, pilot: Pilot | None) -> tuple[_Clock | None, str]:
    """Return the clock of the run, None if there is none, and a phrase on its origin."""
    if pilot and pilot.tokens.num_calls:
        num_engines = max(1, config.count // config.judge.num_devices)
        seconds_per_unit = pilot.seconds / pilot.tokens.work_units / num_engines
        earlier = " by an earlier call" if pilot.startup_seconds is None else ""
        return (
            lambda counts: seconds_per_unit * counts.work_units,
            f"measured on {pilot.num_pairs} pairs{earlier}",
        )
    if pilot:
        return None, "not known: another run had the calibration's ratings; calibrate more pairs"
    return None, "not measured on this device: --calibrate PAIRS measures them"


def _layout_cost(
    counts: TokenCounts, seconds_of: _Clock | None, config: PlanRateConfig
) -> LayoutCost:
    """Return tokens, hours and money of one layout; only what has a price costs money."""
    hours = seconds_of(counts) / 3600 if seconds_of else None
    amounts = [
        (config.price_input, counts.prompt_tokens, 1e-6),
        (config.price_output, counts.output_tokens, 1e-6),
        (config.price_gpu_hour, hours, config.count),
    ]
    costs = [
        price * amount * unit
        for price, amount, unit in amounts
        if price is not None and amount is not None
    ]
    return LayoutCost(**asdict(counts), hours=hours, money=sum(costs) if costs else None)


def _notes(run: RatingRun, config: PlanRateConfig, pilot: Pilot | None) -> list[str]:
    """Return sentences on what the plan lacks and how to get it."""
    notes = []
    if run.judge.tokenizer is None and not pilot:
        tokenizer_advice = "" if config.judge.api else "its own with --tokenizer, or "
        notes.append(
            "the judge has no tokenizer here: calls are counted, tokens are not; give "
            f"{tokenizer_advice}--calibrate PAIRS to take tokens from what the server reports"
        )
    if (config.price_input is None) != (config.price_output is None):
        missing = "input" if config.price_input is None else "output"
        notes.append(f"the money is without {missing} tokens: give --price-{missing}")
    elif config.price_input is None and config.price_gpu_hour is None:
        notes.append("no money: give --price-gpu-hour, or --price-input and --price-output")
    if config.think_tokens is not None and not pilot:
        num_calls = (config.pairs or run.pairs.num_rows) * run.rater.prompts.num_prompts_per_pair
        notes.append(
            f"up to {amount(num_calls * config.think_tokens)} of the output tokens are thinking, "
            f"{config.think_tokens:,} a call; --calibrate PAIRS measures them"
        )
    return notes


def _note_on_long_rules(
    run: RatingRun, layouts: Mapping[PromptLayout, LayoutCost]
) -> Iterator[str]:
    """Yield a sentence if the paper's layout computes least, because the rules are long.

    Without a tokenizer, bytes are compared: those behind the beginning that prompts share. The
    server of a decision model makes the prompts itself.
    """
    if run.config.judge.api is not None:
        return
    computed: dict[PromptLayout, float] = {
        layout: counts.computed_tokens
        for layout, counts in layouts.items()
        if counts.computed_tokens is not None and layout != "all-rules"
    }
    unit = "tokens"
    if run.judge.tokenizer is None:
        unit, pair_bytes = "bytes", float(num_bytes_of(run.pairs).sum())
        for layout in get_args(PromptLayout):
            if layout == "all-rules":
                continue
            template = RatingPrompt(layout=layout)
            rules = run.rater.prompts.rule_set.rules
            parts = [template.parts("", rating_rule=rule.rating_rule) for rule in rules]
            # The second part differs in every prompt. Both responses share the pair's turns.
            num_bytes = sum(len(second.encode()) for _, second in parts)
            num_times = len(rules) if layout == "paper" else 1
            computed[layout] = num_times * pair_bytes + 2 * run.pairs.num_rows * num_bytes
    paper = computed.pop("paper", None)
    if paper is not None and computed and paper < min(computed.values()):
        yield (
            "the rules are long beside the conversations: with a prefix cache, --layout paper "
            f"computes least, {1 - paper / min(computed.values()):.0%} fewer {unit} than the next"
        )
