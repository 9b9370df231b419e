"""`encore show`: one pair with its text, prompts, replies and ratings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encore.cli.output import compact_table
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.config import option
from encore.core.errors import InputError
from encore.core.terminal import out, print_json, say, visible, warn
from encore.data.study_options import RunKeyConfig


class ShowConfig(RunKeyConfig):
    """Options of `encore show`."""

    study: Path = option(
        positional=True,
        alias="study",
        help="The study directory that has the pair. May be left out inside of it.",
    )
    pair: str | None = option(None, positional=True, help="A pair_id, or a unique beginning of it.")
    rule: str | None = option(None, help="Print the two prompts of this rule (a rule_id).")
    all_prompts: bool = option(False, help="Print the prompts of every rule.")


@command
def show(config: ShowConfig, *, json: JsonOption = False) -> None:
    """Show one pair of a study with its prompts, replies and ratings.

    Prints the conversation, both responses and, for every run of the study or the one of --run, the
    judge's prompts, its replies and the ratings read from them.
    """
    from encore.data.study import is_study
    from encore.tables.pair_details import show as show_pair

    path, pair_id = config.study, config.pair
    if pair_id is None and is_study(path):
        raise UsageError(f"PAIR is missing: a pair_id; `encore browse {path}` lists the pairs")
    if pair_id is None:  # called inside of a study
        path, pair_id = Path(), str(path)
    pairs = show_pair(path, pair_id, run=config.run)
    if json:
        print_json(pairs[0] if len(pairs) == 1 else pairs)
        return
    for pair in pairs:
        out.print(f"pair {pair['pair_id']}  source {pair['source']}", style="bold")
        for message in pair["prompt"]:
            _print_block(f"prompt · {message['role']}", message["content"])
        _print_block("chosen", pair["chosen"])
        _print_block("rejected", pair["rejected"])
        for run in pair["runs"]:
            _print_run(run, config)
    if not pairs[0]["runs"]:
        say("no ratings yet; run `encore rate` first")


def _print_run(run: Mapping[str, Any], config: ShowConfig) -> None:
    run_key, ratings = run["run_key"], run["ratings"]
    out.print()
    out.print(f"run {run_key}  judge {run['judge']}", style="bold")
    if not ratings:
        out.print("not rated in this run (its shard is not done, or a pilot left it out)")
        return
    rule_ids = list(dict.fromkeys(rating["rule_id"] for rating in ratings))
    if config.rule is not None and config.rule not in rule_ids:
        raise InputError(f"--rule {config.rule!r}: not in run {run_key}; {', '.join(rule_ids)}")
    columns = ("rule_id", "response", "rating", "raw_reply", "null_reason", "num_truncated_tokens")
    out.print(compact_table(columns, [[rating[name] for name in columns] for rating in ratings]))
    if not run["is_prompt_current"]:
        warn(f"run {run_key} asked with another version's prompt than the one shown")
    chosen_ratings = [
        rating for rating in ratings if config.all_prompts or rating["rule_id"] == config.rule
    ]
    for rating in chosen_ratings or ratings[:1]:
        title = f"rating prompt · {rating['rule_id']} · {rating['response']}"
        _print_block(title, rating["prompt"])
    if not chosen_ratings:
        say("the other prompts differ in criterion and response: --rule RULE_ID or --all-prompts")


def _print_block(title: str, text: str) -> None:
    out.print()
    out.print(title, style="bold cyan")
    out.print(visible(text), soft_wrap=True)
