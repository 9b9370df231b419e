"""The sentences that a report begins with say what its verdicts and intervals allow, no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from encore.analysis.bootstrap import Estimate
from encore.analysis.rule_verdicts import RuleVerdict
from encore.reports.figure_drawing import Missing
from encore.reports.findings import Findings, gather
from encore.reports.headline import headline
from encore.reports.write_report import _interval_beside_half
from tests.reports.studies import some_ratings


def with_rows(findings: Findings, **changes_by_verdict: list[dict[str, object]]) -> Findings:
    """Return findings whose rules have these verdicts, in this order; the others are trusted."""
    answer = findings.answer("all")
    changes = [
        {"verdict": verdict.replace("_", " "), **fields}
        for verdict, rows in changes_by_verdict.items()
        for fields in rows
    ]
    rows = sorted(answer.rows, key=lambda row: row.number)
    trusted: list[RuleVerdict] = [replace(row, verdict="trust") for row in rows]
    rows = [replace(row, **fields) for row, fields in zip(trusted, changes, strict=False)]
    changed = replace(answer, rows=(*rows, *trusted[len(rows) :]))
    analysis = replace(findings.analysis, answers=(changed,))
    return replace(findings, analysis=analysis)


def forecast(low: int | None, high: int | None) -> dict[str, object]:
    return {"num_more_pairs_low": low, "num_more_pairs_high": high}


def test_the_first_sentence_counts_the_rules_to_use_and_the_next_say_why_not_the_others(findings):
    assert headline(with_rows(findings))[0] == "Use all 6 rules."
    none = {verdict: [{}] * 2 for verdict in ("against", "double", "says_little")}
    assert headline(with_rows(findings, **none))[:4] == (
        "Trust none of the 6 rules.",
        "Rules 1 and 2 side against people.",
        "Rules 3 and 4 say what other rules say.",
        "Rules 5 and 6 say little: they nearly always tie.",
    )
    sixth = with_rows(findings, against=[{}] * 5)
    assert headline(sixth)[:2] == (
        "Use 1 of the 6 rules: rule 6.",
        "Rules 1, 2, 3 and 2 more side against people.",
    )
    assert headline(with_rows(findings, trust=[{"applies": 0.5}]))[0] == (
        "Use all 6 rules, where they apply."
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([forecast(36, 7712)], "Rule 1 needs 36 to 7,700 more pairs (80 % chance)."),
        ([forecast(36, None)], "Rule 1 needs at least 36 more pairs (80 % chance)."),
        (
            [forecast(None, None), forecast(1, 20)],
            (
                "Rule 1 needs more than a million more pairs, or is never decided; "
                "rule 2 needs 1 to 20 more pairs (80 % chance)."
            ),
        ),
        (
            [forecast(90, 200), forecast(36, 7712), forecast(None, None)],
            (
                "Rules 1, 2 and 3 are undecided; the first to be decided, rule 2, needs "
                "36 to 7,700 more pairs (80 % chance)."
            ),
        ),
        ([{"untied": Estimate()}], "Rule 1 has no pair to go by."),
    ],
)
def test_an_undecided_rule_has_the_number_of_pairs_that_it_needs(findings, rows, expected):
    assert headline(with_rows(findings, undecided=rows))[1] == expected


def with_weights(findings: Findings, weights: Sequence[float]) -> Findings:
    """Return findings in which scheme ``encore``, the first one, has other weights."""
    comparison = findings.comparison
    assert not isinstance(comparison, Missing)
    encore, *further_rows = comparison.rows
    encore = replace(encore, vector=replace(encore.vector, weights=tuple(weights)))
    changed = replace(comparison, rows=type(comparison.rows)([encore, *further_rows]))
    return replace(findings, comparison=changed)


@pytest.mark.services
def test_weights_are_as_good_only_if_the_interval_of_the_paired_difference_is_narrow(findings):
    # The later a rule, the more it spreads and the less it follows people.
    assert "rank better than uniform ones here, by" in headline(findings)[-1]
    last = headline(with_weights(findings, [0, 0, 0, 0, 0, 1]))[-1]
    assert "rank worse than uniform ones here, by" in last
    same = headline(with_weights(findings, [1 / 6] * 6))[-1]
    # No pair differs: two imagined pairs, one for and one against, among 242 reach 1.96 * sqrt(2)
    # / 242 = 1.1 points to each side.
    assert same == "ENCORE's weights are as good as uniform ones here, to within 1.1 points."
    few = gather(some_ratings(num_pairs=12))
    assert "do not tell ENCORE's weights from uniform ones" in headline(few)[-1]


def test_without_preferences_the_answer_says_so_and_nothing_else(findings):
    unrated = gather(some_ratings(null_share=1.0))
    [only] = headline(unrated)
    assert only.startswith("There are no preferences")


def test_an_interval_beside_one_half_does_not_read_as_one_half():
    assert _interval_beside_half(0.49968, 0.704) == "49.97–70.40"
    assert _interval_beside_half(0.51, 0.704) == "51.0–70.4"
    assert _interval_beside_half(None, None) == "–"
