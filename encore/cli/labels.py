"""`encore labels`: compare a judge's ratings with people's labels of single responses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

from encore.cli.output import (
    Renderable,
    TableColumns,
    percent_of,
    rule_legend,
    rule_table,
    show_result,
    span,
    warn_of_unused,
)
from encore.cli.rate_tables import rate_lines
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.config import option
from encore.core.number_text import number
from encore.core.terminal import say, say_next, terminal_reporter
from encore.data.study_options import StudyFolder
from encore.people.people_options import LabelsConfig
from encore.rating.rating_options import ReplyOptions

if TYPE_CHECKING:
    from encore.people.rule_agreement import LabelAgreement


_STUDY_HELP = (
    "Study for labels and ratings (in STUDY/labels/KEY). Created if it does not exist. A table "
    "that has ratings needs none."
)


@command
def labels(
    config: LabelsConfig,
    replies: ReplyOptions,
    study: Annotated[StudyFolder | None, option(positional=True, help=_STUDY_HELP)] = None,
    *,
    json: JsonOption = False,
) -> None:
    """Measure the agreement of a judge with people's labels of single responses, rule by rule.

    A judge rates every response under every rule that has labels, as `encore rate` does with pairs;
    after an interruption, the same command continues. A table that has ratings needs no judge. Per
    rule: the mean label, the share of equal labels, Cohen's kappa and Krippendorff's alpha with
    95 % intervals, and the entropy of the ratings; then the correlation over rules of that entropy
    with agreement. Then people's rate by the judge alone, by people alone, and corrected: the mean
    label of each of the judge's levels, by how often the judge gives it. Leave the label empty for
    responses that only the judge shall rate. A rating counts as the nearest value that labels have:
    as yes from one half on. What yes means is yours: if it means that a response breaks the rule,
    the rates are those of breaks. Labels without pairs are no input of `encore analyze`, `weights`
    and `train`.

    Examples: encore labels study gold.jsonl.gz --judge ./my-judge --rules propositions.yaml

    encore labels rated.csv
    """
    from encore.people.judge_labels import judge_labels

    if study and not study.is_dir() and (not config.files or study.is_file()):  # it is a table
        config = config.model_copy(update={"files": (study, *config.files)})
        study = None
    if not config.files:
        raise UsageError("FILE is missing: a table of labels, after STUDY if there is one")
    if config.judge is None:
        warn_of_unused(replies.model_dump(exclude_unset=True), who="a call without --judge")
    with terminal_reporter() as reporter:
        report = judge_labels(study, config, replies, reporter=reporter)
    show_result(report, _tables(report), report.notes, synthetic=report.synthetic, as_json=json)
    if report.table is not None:
        say(f"labels and ratings: {report.table}")
    if config.judge is not None:
        say_next("rate", "STUDY", "--judge", config.judge.model)


def _tables(report: LabelAgreement) -> Iterator[Renderable]:
    rule_ids = [rule.rule_id for rule in report.rules]
    two_digits = partial(number, digits=2)
    columns: TableColumns = {
        "labels": "num_labels",
        "rated": "num_ratings",
        "yes": percent_of("positive"),
        "equal": percent_of("agreement"),
        "kappa": lambda rule: two_digits(rule.kappa.value),
        "95 % ": lambda rule: span(rule.kappa.low, rule.kappa.high, two_digits),
        "alpha": lambda rule: two_digits(rule.alpha.value),
        "95 %": lambda rule: span(rule.alpha.low, rule.alpha.high, two_digits),
        "H": lambda rule: two_digits(rule.entropy_nats),
    }
    yield rule_table(rule_ids, report.rules, columns, title="Judge and people, by rule")
    yield rule_legend(rule_ids)
    yield f"{report.sentence}.\n"
    yield from rate_lines(report.rates, rule_ids)
