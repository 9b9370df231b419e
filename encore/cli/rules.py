"""`encore rules …`: from pools of principles to a rule set, and how sound each rule is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from encore.cli.output import (
    Renderable,
    TableColumns,
    compact_table,
    rule_legend,
    rule_table,
    show_result,
    span,
    warn_of_unused,
)
from encore.core.command_parser import JsonOption, command
from encore.core.number_text import counted, number, sentence
from encore.core.terminal import print_json, say, terminal_reporter, warn
from encore.data.study_options import StudyArgument
from encore.judges.server_options import ServerOptions
from encore.rating.rating_options import EngineOptions
from encore.rules.probe_variants import PLANTED
from encore.rules.rules_options import (
    DedupeConfig,
    DraftConfig,
    ImportanceConfig,
    LintConfig,
    MergeConfig,
    ProbeConfig,
    SelectConfig,
)

if TYPE_CHECKING:
    from encore.analysis.run_comparison import RuleComparison
    from encore.rules.lint import LintReport
    from encore.rules.probe_record import Probe, RuleProbe

#: Rows of the table of copies. The JSON and the written pool have all copies.
_MAX_COPY_ROWS = 20
_AGREEMENT = {
    "people_and_judges": "people and judges (the paper: 0.71)",
    "among_people": "among people",
    "among_judges": "among judges",
}
_IS_BOUGHT_TEXT = {True: "yes", False: "no", None: "unknown"}


@command
def rules_merge(config: MergeConfig, *, json: JsonOption = False) -> None:
    """Merge pools of principles; each rule records its source, licence and origin.

    A rule with the texts of an earlier rule is a copy, even under another title: the first is
    kept, in the order of the pools, and lists the others in `merged_from`. Two rules with one id
    and different texts are both kept; the id of the later rule gets a suffix. Records without a
    text are left out. The output counts all of these.

    Examples: `encore rules merge constitution.csv rbr=propositions.toml --output pool.toml
    --licence rbr=MIT`, `encore rules merge encore-20 my-rules.jsonl --output pool.toml`.
    """
    from encore.rules.merge import merge

    merged = merge(config)
    copies = [
        (copy["rule_id"], f"{copy['pool']}, {copy['origin']}", copy["kept"])
        for copy in merged.copies[:_MAX_COPY_ROWS]
    ]
    tables = (
        compact_table(
            ("pool", "rules", "copies", "empty"), [[*pool.values()] for pool in merged.pools]
        ),
        compact_table(("copy", "from", "kept"), copies, title="Copies"),
    )
    show_result(merged, tables, merged.notes, as_json=json)
    say(f"{counted(merged.num_rules, 'rule')} in {config.output}")


@command
def rules_dedupe(config: DedupeConfig, *, json: JsonOption = False) -> None:
    """Drop rules that say nearly the same as an earlier rule, by cosine of sentence embeddings.

    The description and the rating text are compared, in the file's order: a rule is dropped if its
    cosine to an earlier kept rule is above the threshold. So the first wording is kept: when you
    merge pools, put the pool with the best wording first. A table shows the number of rules for a
    range of thresholds.

    Embeddings hardly notice a negation. A rule that seems to say the opposite of a kept rule is
    kept, and named.

    Example: `encore rules dedupe pool.toml --output distinct.toml --threshold 0.8`.
    """
    from encore.rules.dedupe import dedupe

    with terminal_reporter() as reporter:
        deduped = dedupe(config, reporter=reporter)
    duplicates = []
    for cluster in deduped.clusters:
        for rule in cluster["dropped"]:
            # Rules of two pools may have one title.
            name = "rule_id" if rule["title"] == cluster["title"] else "title"
            duplicates.append((rule[name], cluster[name], rule["similarity"]))
    counts = deduped.num_rules_at.items()
    tables = (
        compact_table(("dropped", "kept", "cosine"), duplicates, title="Near-duplicates"),
        compact_table(("threshold", "rules"), counts, title="Rules by threshold"),
    )
    show_result(deduped, tables, deduped.notes, as_json=json)
    say(
        f"{counted(deduped.num_rules, 'rule')} of {deduped.num_before:,} in {config.output}, "
        f"threshold {config.threshold:g}"
    )


@command
def rules_lint(config: LintConfig, *, json: JsonOption = False) -> None:
    """Check a pool or a rule set for empty, repeated, double and contradictory texts.

    Two checks are guesses from English words; each finding quotes the words that it rests on.
    two-things: a rule asks for a second thing after "and", so one number cannot rate it. opposed:
    a preference text asks for the opposite of the rating text.

    Examples: `encore rules lint encore-20`, `encore rules lint my-rules.toml`.
    """
    from encore.rules.lint import lint

    report = lint(config)
    show_result(report, _findings_by_rule(report), report.notes, as_json=json)
    num_rules = counted(report.num_rules, "rule")
    say(f"{counted(len(report.findings), 'finding')} in {num_rules} of {report.name}")


def _findings_by_rule(report: LintReport) -> Iterator[str]:
    """Yield each rule's id, then a line for each of its findings."""
    for rule_id, findings in groupby(report.findings, key=itemgetter("rule_id")):
        lines = [f"  {each['field']}: {each['said']} ({each['check']})" for each in findings]
        yield "\n".join([rule_id, *lines])


@command
def rules_rate_importance(
    config: ImportanceConfig, how: ServerOptions, *, json: JsonOption = False
) -> None:
    """Rate how important and commonly applicable each rule is, by a judge and by people.

    One folder holds the ratings of several judges and people for one pool: run the command once
    for each judge. After a crash or Ctrl-C, run the same command again: it rates only the missing
    rules. A reply that is not a number from 0 to 1 is null; the report counts the reasons.

    Examples: encore rules rate-importance pool.toml --judge ./my-judge --output importance

    encore rules rate-importance pool.toml --people anna.csv --people ben.csv --output importance
    """
    from encore.rules.importance import rate_importance

    if config.judge is None:
        warn_of_unused(how.model_dump(exclude_unset=True), who="a call without --judge")
    with terminal_reporter() as reporter:
        report = rate_importance(config, how, reporter=reporter)
    if json:
        _print_without_none(report)
    num_rules = counted(report.num_rules, "rule")
    if report.judge is not None:
        say(
            f"judge {report.judge}: {report.num_ratings} of {num_rules} rated; shards: "
            f"{report.summary}; run {report.run_key}"
        )
    for reason, count in (report.null_reasons or {}).items():
        warn(f"{counted(count, 'rule')} without a rating: {reason.replace('_', ' ')}")
    for annotator, count in report.num_answers.items():
        say(f"annotator {annotator}: {count} of {num_rules} rated")
    say(f"next: encore rules select {config.output} --top 10 --output rules.toml")


@command
def rules_select(config: SelectConfig, *, json: JsonOption = False) -> None:
    """Write the N rules of highest mean importance as a rule set, and show the raters' agreement.

    Every judge and every person has the same weight. Rules of equal importance are sorted by their
    number of ratings, then by the pool's order. Agreement is the mean of Pearson's r over pairs of
    raters, with its 95 % interval over resampled rules. A table of all rules is written beside
    FILE.toml, as FILE.json.

    Example: encore rules select importance --top 10 --output rules.toml
    """
    from encore.rules.select import select_rules

    selection = select_rules(config)
    selected = [
        (row["title"], row["importance"], len(row["ratings"]), row["source"])
        for row in selection.rules[: config.top]
    ]
    agreement = [
        (label, raters.r.value, span(raters.r.low, raters.r.high, number), raters.num_pairs)
        for name, label in _AGREEMENT.items()
        for raters in [getattr(selection, name)]
    ]
    tables = (
        compact_table(("rule", "importance", "ratings", "pool"), selected, title="Selected"),
        compact_table(("agreement", "mean r", "95 % interval", "pairs"), agreement),
    )
    show_result(selection, tables, selection.notes, as_json=json)
    say(f"{config.output}: {config.top} rules; all rules: {selection.table}")


@command
def rules_draft(config: DraftConfig, how: ServerOptions, *, json: JsonOption = False) -> None:
    """Let a judge write the four texts of each principle as a draft, or accept drafts.

    A rule that has all four texts does not change. A reply that is not the four texts as JSON is
    reported with the reason, and the rule is still a principle. A rule written by a judge is a
    draft until a person has read and accepted it: rating refuses drafts. You may edit drafts in
    the file. With --accept, the argument is the file with the drafts.

    Examples: encore rules draft selected.toml --judge ./my-judge --output rules.toml

    encore rules draft rules.toml --accept respect-for-privacy --accept honesty
    """
    from encore.rules.draft import accept_drafts, draft_rules

    if config.accept:
        accepted = accept_drafts(config.pool, config.accept)
        if json:
            print_json({"output": str(config.pool), "accepted": accepted})
        say(f"{config.pool}: {counted(len(accepted), 'draft')} accepted")
        return
    with terminal_reporter() as reporter:
        report = draft_rules(config, how, reporter=reporter)
    if json:
        _print_without_none(report)
    if report.judge is not None:
        say(f"judge {report.judge}: {len(report.drafted)} drafted; replies: {report.run_dir}")
    for rule_id, reason in report.failed.items():
        warn(f"rule {rule_id} is still a principle: {reason.replace('_', ' ')}")
    num_rules = counted(report.num_rules, "rule")
    say(f"{config.output}: {num_rules}, {report.num_drafts} of them drafts")
    if report.num_drafts:
        say(f"next: read them, then encore rules draft {config.output} --accept RULE_ID")


def _print_without_none(report: object) -> None:
    """Print a record as JSON, without the fields that are None because no judge was asked."""
    fields = dataclasses.asdict(report)  # type: ignore[call-overload]
    print_json({name: value for name, value in fields.items() if value is not None})


@command
def rules_probe(
    study: StudyArgument, config: ProbeConfig, how: EngineOptions, *, json: JsonOption = False
) -> None:
    """Measure how sound each rule is: rate the same pairs with changed rules and responses.

    Changed rules have other words: a built-in framing, and those of --paraphrases. Changed
    responses are longer by sentences without content, have bullets or a heading in the same words,
    or end with a planted sentence that asks the judge for the best score. For each rule and form,
    a table shows the mean change of the rating, the pairs whose order flips, and the change of
    entropy and of ENCORE's weight, with 95 % intervals over pairs. The result names the rules
    whose score a planted sentence raises more than a neutral sentence of the same length does.

    Pairs are rated as by `encore rate`. Ratings that the study has are reused, and the same
    command continues after an interruption. All results are in STUDY/probes; the study's own
    tables do not change. Exit code 3: some shards failed.

    Example: encore rules probe my-study --judge ./my-judge --num-pairs 200
    """
    from encore.data.study import open_study
    from encore.rules.rule_probe import probe_rules

    with terminal_reporter() as reporter:
        probe = probe_rules(open_study(study), config, how, reporter=reporter)
    show_result(probe, _probe_tables(probe), probe.notes, synthetic=probe.synthetic, as_json=json)


def _probe_tables(probe: Probe) -> Iterator[Renderable]:
    rule_ids = [rule.rule_id for rule in probe.rules]
    for name, description in probe.variants.items():
        columns = _change_columns(name)
        yield rule_table(rule_ids, probe.rules, columns, title=f"{name}: {description}")
    rises: TableColumns = {
        **{f"{name.removeprefix('planted-')} (bound)": partial(_rise, name) for name in PLANTED},
        "bought": lambda rule: _IS_BOUGHT_TEXT[rule.is_bought],
    }
    title = "Rise by a planted sentence beyond a neutral one"
    yield rule_table(rule_ids, probe.rules, rises, title=title)
    yield rule_legend(rule_ids)
    yield (
        f"± is half of the 95 % interval over {probe.num_pairs:,} pairs; bound is the lower bound "
        "of the rise, at a risk of 5% for all rules and sentences together; weights are at tau 2."
    )
    yield sentence(probe.sentence)


def _change_columns(variant: str) -> TableColumns:
    """Return the table columns of one changed form."""
    from encore.cli.analysis_tables import with_margin

    def change(rule: RuleProbe) -> RuleComparison:
        return rule.effects[variant].change

    return {
        "change": lambda rule: with_margin(change(rule).mean_difference),
        "flips %": lambda rule: with_margin(change(rule).flip_rate, digits=1, scale=100),
        "ΔH": lambda rule: with_margin(change(rule).entropy_difference),
        "Δ weight": lambda rule: with_margin(change(rule).weight_difference, digits=4),
        "both": lambda rule: change(rule).num_ratings,
    }


def _rise(variant: str, rule: RuleProbe) -> str:
    """Return the rise by a planted sentence and its lower bound as text."""
    effect = rule.effects[variant]
    return f"{number(effect.rise)} ({number(effect.rise_bound)})"
