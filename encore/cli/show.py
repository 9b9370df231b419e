"""`encore show`: one pair with its text, prompts, replies and ratings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.cli.output import compact_table
from encore.core.config import option
from encore.core.errors import InputError
from encore.core.options import JsonOption, command
from encore.core.terminal import out, print_json, say, visible, warn
from encore.data.study_config import RunKeyConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from encore.data.records import PreferencePair


class ShowConfig(RunKeyConfig):
    """`encore show`: which pair, and which of its prompts."""

    pair: str = option(positional=True, help="A pair_id, or enough of its first digits.")
    study: Path = option(Path(), help="The study directory.")
    rule: str | None = option(None, help="Print the two prompts of this rule (a rule_id).")
    all_prompts: bool = option(False, help="Print the prompts of every rule.")


@command
def show(config: ShowConfig, *, json: JsonOption = False) -> None:
    """Show everything a study knows about one pair.

    Prints the conversation, both responses, what the judge was asked, what it replied and which
    rating that became; in every run of the study, or in the one given with --run.
    """
    from encore.data.rating_runs import chosen_runs
    from encore.data.study import open_study
    from encore.tables.pair_details import find_pair, pair_in_run

    opened = open_study(config.study)
    pairs = find_pair(opened, config.pair)
    run_dirs = chosen_runs(opened.ratings_dir, config.run)
    found = [(one, [pair_in_run(one, run_dir) for run_dir in run_dirs]) for one in pairs]
    if json:
        shown = [dataclasses.asdict(one) | {"runs": runs} for one, runs in found]
        print_json(shown[0] if len(shown) == 1 else shown)
        return
    for one, runs in found:
        _print_pair(one)
        for in_run in runs:
            _print_run(in_run, config)
    if not run_dirs:
        say("no ratings yet; run `encore rate` first")


def _print_pair(pair: PreferencePair) -> None:
    out.print(f"pair {pair.pair_id}  source {pair.source}", style="bold")
    for message in pair.prompt:
        _print_block(f"prompt · {message.role}", message.content)
    _print_block("chosen", pair.chosen)
    _print_block("rejected", pair.rejected)


def _print_run(run: Mapping[str, Any], config: ShowConfig) -> None:
    run_key, ratings = run["run_key"], run["ratings"]
    out.print()
    out.print(f"run {run_key}  judge {run['judge']}", style="bold")
    if not ratings:
        out.print("not rated in this run (its shard is not done, or a pilot left it out)")
        return
    rule_ids = list(dict.fromkeys(one["rule_id"] for one in ratings))
    if config.rule is not None and config.rule not in rule_ids:
        raise InputError(f"--rule {config.rule!r}: not in run {run_key}; {', '.join(rule_ids)}")
    columns = ("rule_id", "response", "rating", "raw_reply", "null_reason", "num_truncated_tokens")
    out.print(compact_table(columns, [[one[name] for name in columns] for one in ratings]))
    if not run["is_prompt_current"]:
        warn(f"run {run_key} asked with another version's prompt than the one shown")
    shown = [one for one in ratings if config.all_prompts or one["rule_id"] == config.rule]
    for one in shown or ratings[:1]:
        _print_block(f"rating prompt · {one['rule_id']} · {one['response']}", one["prompt"])
    if not shown:
        say("the other prompts differ in criterion and response: --rule RULE_ID or --all-prompts")


def _print_block(title: str, text: str) -> None:
    out.print()
    out.print(title, style="bold cyan")
    out.print(visible(text), soft_wrap=True)
