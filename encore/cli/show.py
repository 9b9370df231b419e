"""`encore show`: one pair with its text, prompts, replies and ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any

from encore.cli.output import compact_table, show_result
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.config import option
from encore.core.number_text import NONE, counted, number, percent
from encore.core.terminal import minus_signs, out, print_json, say, say_next, visible, warn, wrapped
from encore.data.records import RESPONSES
from encore.data.rule_sets import named_rule
from encore.data.study_options import RunFilter, StudyFolder
from encore.demo import judge_title

#: Pairs in the list of those that a rule gets wrong; --json has all.
_NUM_LISTED = 10


class ShowConfig(RunFilter):
    """Options of `encore show`."""

    study: StudyFolder = option(positional=True)
    """The study directory that has the pair. May be left out inside of it."""
    pair: str | None = option(None, positional=True)
    """A pair_id, or a unique beginning of it."""
    rule: str | None = option(None)
    """Print the two prompts of this rule (its rule_id or number). Without PAIR: list ten of the
    pairs, with --json all, whose chosen response it rates below the rejected one."""
    all_prompts: bool = option(False)
    """Print the prompts of every rule."""


@command
def show(config: ShowConfig, *, json: JsonOption = False) -> None:
    """Show one pair of a study with its prompts, replies and ratings.

    Prints the conversation, both responses and, for every run of the study or the one of --run or
    --judge, the judge's prompts, its replies and the ratings read from them.

    Examples: `encore show study 3f9a`, `encore show study --rule 3` (pairs that rule 3 gets wrong).
    """
    from encore.data.study import is_study
    from encore.tables.pair_details import show as show_pair

    path, pair_id = config.study, config.pair
    if pair_id is None and is_study(path):
        if config.rule is None:
            raise UsageError(f"PAIR is missing: a pair_id; `encore browse {path}` lists the pairs")
        _print_pairs_against(config, config.rule, as_json=json)
        return
    if pair_id is None:  # called inside of a study
        path, pair_id = Path(), str(path)
    pairs = show_pair(path, pair_id, run=config.run, judge=config.judge)
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
        say("no ratings yet")
        say_next("rate", path, "--judge", "JUDGE")


def _print_pairs_against(config: ShowConfig, rule: str, *, as_json: bool) -> None:
    """Print the pairs whose chosen response a rule rates below the rejected one."""
    from encore.data.study import open_study
    from encore.tables.pair_index import PairFilter, open_pair_index

    with open_pair_index(open_study(config.study), run=config.run, judge=config.judge) as index:
        rule_id = named_rule(rule, [row["rule_id"] for row in index.summary["rules"]])
        page = index.page(PairFilter(rule=rule_id, disagreement="responses"), number=None)
        has_runs = len(index.summary["runs"]) > 1
    excerpt = partial(shorten, width=45, placeholder="…")
    rows = [
        (
            *(run["run_key"][:8],) * has_runs,
            pair["pair_id"][:12],
            run["chosen"],
            run["rejected"],
            excerpt(pair["opening"]),
        )
        for pair in page["rows"][:_NUM_LISTED]
        for run in pair["runs"]
        if run["num_against"]
    ]
    count = counted(page["num_pairs"], "pair")
    listed = ", the largest difference first"
    if page["num_pairs"] > _NUM_LISTED:
        listed = f"; here the {_NUM_LISTED} of largest difference"
    text = f"{rule_id}\nchosen rated below rejected: {count}{listed}"
    columns = (*("run",) * has_runs, "pair", "chosen", "rejected", "prompt")
    table = compact_table(columns, rows)
    show_result(page, (text, table), as_json=as_json)
    chosen = (("--run", config.run), ("--judge-name", config.judge))
    options = chain.from_iterable(pair for pair in chosen if pair[1])
    say_next("show", config.study, "PAIR", *options, "--rule", rule)


def _print_run(run: Mapping[str, Any], config: ShowConfig) -> None:
    run_key, ratings = run["run_key"], run["ratings"]
    out.print()
    judge = judge_title(run["judge"], is_synthetic=run["is_synthetic"])
    out.print(f"run {run_key}  {judge}", style="bold")
    if not ratings:
        out.print("not rated in this run (its shard is not done, or a pilot left it out)")
        return
    rule_ids = list(dict.fromkeys(rating["rule_id"] for rating in ratings))
    rule_id = None if config.rule is None else named_rule(config.rule, rule_ids)
    columns = ("rule", "chosen", "rejected", "difference")
    by_rule: dict[str, dict[str, Any]] = {rule_id: {} for rule_id in rule_ids}
    for rating in ratings:
        by_rule[rating["rule_id"]][rating["response"]] = rating
    rows = [
        (f"{position:>{len(str(len(by_rule)))}} {rule_id}", *_rule_row(of_rule))
        for position, (rule_id, of_rule) in enumerate(by_rule.items(), start=1)
    ]
    out.print(compact_table(columns, rows))
    for rating in ratings:
        if rating["num_truncated_tokens"]:
            warn(
                f"{rating['rule_id']}, {rating['response']}: the prompt was cut from the left by "
                f"{counted(rating['num_truncated_tokens'], 'token')}"
            )
    if not run["is_prompt_current"]:
        warn(f"run {run_key} asked with another version's prompt than the one shown")
    chosen_ratings = [
        rating for rating in ratings if config.all_prompts or rating["rule_id"] == rule_id
    ]
    for rating in chosen_ratings or ratings[:1]:
        title = f"{rating['rule_id']} · {rating['response']}"
        _print_block(f"rating prompt · {title}", rating["prompt"])
        mass = rating.get("label_mass")
        share = "" if mass is None else f" · {percent(mass, digits=0)} of its probability on labels"
        _print_block(f"reply · {title}{share}", rating["raw_reply"] or "none")
    if not chosen_ratings:
        say("the other prompts differ in criterion and response: --rule RULE_ID or --all-prompts")


def _rule_row(ratings: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """Return a rule's ratings, or the reasons why they are null, and their difference.

    Args:
        ratings: The rule's ratings by response.
    """
    cells = [NONE, NONE, NONE]
    for position, response in enumerate(RESPONSES):
        if rating := ratings.get(response):
            cells[position] = rating["null_reason"] or number(rating["rating"])
    chosen, rejected = (ratings.get(response, {}).get("rating") for response in RESPONSES)
    if chosen is not None and rejected is not None:
        difference = round(chosen - rejected, 3)
        cells[2] = minus_signs(f"{difference:+.3f}") if difference else number(0.0)
    return cells


def _print_block(title: str, text: str) -> None:
    out.print()
    out.print(title, style="bold cyan")
    out.print(wrapped(visible(text)), soft_wrap=True)
