"""`encore analyze`: entropy and accuracy of every rule, and how the two go together."""

from __future__ import annotations

from itertools import chain

from encore.analysis.answer_options import AnswerOptions
from encore.cli.output import opened_ratings, show_result
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.config import option
from encore.core.terminal import say_next, wrapped
from encore.data.rule_sets import named_rule
from encore.data.study_options import RatingsConfig


class AnalyzeConfig(AnswerOptions, RatingsConfig):
    """Options of `encore analyze`."""

    by_source: bool = option(False)
    """Verdicts and figures for each source, too."""
    by: str | None = option(None, metavar="COLUMN")
    """Also agreement with people in each slice of a column of the pairs: one that `encore ingest
    --keep` kept, turns, or a length: chosen_, rejected_ or difference_ (chosen less rejected) with
    words or characters. Numbers are cut at their quartiles."""
    rule: str | None = option(None)
    """Print only the verdict on this rule: its rule_id, or its number in the tables. --json has all
    rules."""
    details: bool = option(False)
    """Also the tables behind the verdicts: shares of variance, entropy, accuracy by tie policy, and
    correlation of entropy with accuracy."""
    compare: str | None = option(None, metavar="OTHER")
    """Also compare these ratings with OTHER: two judges, two repeats or two layouts on the same
    pairs. OTHER is a path like RATINGS, or a run key or judge of RATINGS."""
    repeat: str | None = option(None, metavar="OTHER")
    """Ratings of the same judge, asked the same again: they tell its noise from the difference of
    two responses. OTHER is as in --compare."""


@command
def analyze(config: AnalyzeConfig, *, json: JsonOption = False) -> None:
    """Say which rules to trust: how each ranks people's preferences, and how its ratings spread.

    The first table has a verdict for each rule. "trust": the interval of its untied accuracy is
    above 50 %. "against": below. "undecided": it contains 50 %. "says little": it contains 50 %,
    and nearly all pairs are tied. "double": it says what another rule says. "sources differ": it is
    better in one source than in another. The intervals hold for all rules at once, and pairs of one
    prompt count together: a study knows its prompts, a table may have a column prompt_id.

    Of a run with --layout all-rules, a table shows what asking for all rules at once changes: the
    difference from ratings of one rule a call (`encore rate --check`), and the effect of a rule's
    position in the list.

    With --by COLUMN, a table shows for each rule whether it agrees with people equally often in
    all slices of the pairs. Its p-values are corrected for the number of rules, not for the number
    of columns that you try.

    --details shows the figures behind the verdicts; --json has them all. Ties between chosen and
    rejected decide what accuracy means, so it is shown four ways: half (a
    tie counts one half), untied (ties left out), strict (a tie is a miss), >= or inclusive (a
    hit). Read half and untied together: the other two are biased by ties. The null band is where
    the correlation r would lie, 95 % of the time, if the labels meant nothing. The verdict is
    "reproduced" or "not reproduced" only where r lies outside its null band, on the same side,
    under half and untied, "inconclusive" where r lies inside under both, else "depends on ties".

    Examples: `encore analyze study --by-source`, `encore analyze study --rule 3`,
    `encore analyze study --run 3f --compare 9a`.

    Exit code 3: the run is not complete; the figures are those of its finished shards.
    """
    from encore.analysis.analyze import analyze as analyze_ratings
    from encore.cli.analysis_tables import (
        all_rules_tables,
        analysis_tables,
        answer_tables,
        comparison_tables,
    )
    from encore.reports.judge_sentence import judge_sentence
    from encore.warehouse import is_rating_table, open_compared_ratings

    layout = config.table_layout
    if config.compare and config.rating != "level":
        raise UsageError(
            f"--rating {config.rating} with --compare: two runs are compared by the labels that "
            "their judges gave; leave out one of the two"
        )
    if (config.compare or config.repeat) and not is_rating_table(config.ratings):
        config = config.model_copy(update=dict.fromkeys(layout))  # they are for the other ratings
    ratings = opened_ratings(config)
    repeat = config.repeat and open_compared_ratings(
        config.ratings, config.repeat, rating=config.rating, **layout
    )
    analysis = analyze_ratings(ratings, by_source=config.by_source, options=config, repeat=repeat)
    document = analysis.as_dict()
    tables = analysis_tables(analysis, has_details=config.details)
    if config.rule is not None:
        rule_id = named_rule(config.rule, analysis.rule_ids)
        tables = answer_tables(analysis.answers, rule_id=rule_id)
    else:
        tables = chain([wrapped(judge_sentence(analysis))], tables)
    notes = analysis.notes if config.rule is None else ()
    if ratings.manifest is not None and ratings.manifest.asks_all_rules:
        from encore.analysis.all_rules_check import check_all_rules

        document["all_rules"] = check = check_all_rules(ratings)
        if config.rule is None:
            tables = chain(all_rules_tables(check, rule_ids=analysis.rule_ids), tables)
    if config.by:
        from encore.analysis.slices import slice_by
        from encore.cli.slice_tables import slice_tables

        document["by"] = sliced = slice_by(ratings, config.by)
        tables = chain(slice_tables(sliced, rule_ids=analysis.rule_ids), tables)
        notes += tuple(sliced.notes)
    if config.compare:
        from encore.analysis.run_comparison import compare_runs

        second = open_compared_ratings(config.ratings, config.compare, **layout)
        comparison = compare_runs(ratings, second)
        document["comparison"] = comparison
        tables = chain(comparison_tables(comparison, rule_ids=analysis.rule_ids), tables)
        notes += comparison.notes
    show_result(document, tables, notes, ratings=ratings, as_json=json)
    say_next("report", config.ratings, *(("--run", config.run) if config.run else ()))
