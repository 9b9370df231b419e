"""Charts about the rules. Each function returns a chart, or the reason why there is none.

Suffixes: L bins of ratings, R rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from encore.analysis.statistics import POOLED, TiePolicy
from encore.core.number_text import (
    count,
    counted,
    interval,
    number,
    percent,
    percent_interval,
    significant,
)
from encore.reports.figure_drawing import (
    BAND,
    GRID,
    INK,
    PAPER,
    REFERENCE,
    Chart,
    DataTable,
    Floats,
    Missing,
    Panel,
    draw_cells,
    floats,
    in_percent,
    label_points,
    name_rows,
    rows_height,
)
from encore.reports.findings import Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.analysis.correlation import Correlation
    from encore.analysis.intervals import RuleInterval
    from encore.analysis.statistics import RuleStats

_POLICY_TEXT: dict[TiePolicy, str] = {"half": "a tie counts half", "untied": "ties left out"}
#: Middles of the histograms' bins.
BIN_MIDDLES = np.linspace(0, 1, 21)
_BIN_WIDTH = 0.05
#: Largest height of a histogram, in medians of the rules' highest bars: one rule with nearly
#: constant ratings must not flatten the histograms of the other rules.
_MAX_TIMES_MEDIAN = 2.0
_UNRATED = "No pair has both of its responses rated by any rule."


def rule_table(findings: Findings) -> DataTable:
    """Return a table of the entropy and accuracies of every rule in every source."""
    intervals = ("H (nats)", "95 %", "half", "95 %", "untied", "95 %")
    columns = ("source", "rule", *intervals, "strict", "inclusive", "ties", "pairs")
    rows = [
        (
            findings.source_name(rule.source),
            findings.rule_label(rule.rule_id),
            number(rule.entropy_nats),
            interval(row.entropy.low, row.entropy.high, digits=3),
            percent(rule.accuracy.half),
            percent_interval(row.half.low, row.half.high),
            percent(rule.accuracy.untied),
            percent_interval(row.untied.low, row.untied.high),
            percent(rule.accuracy.strict),
            percent(rule.accuracy.inclusive),
            percent(rule.tie_rate),
            count(rule.num_pairs),
        )
        for source in findings.sources
        for rule, row in zip(findings.of_source(source), findings.intervals(source), strict=True)
    ]
    return DataTable(columns, rows)


def entropy_accuracy(findings: Findings) -> Chart | Missing:
    """Draw accuracy against entropy, two panels per source: half credit and untied."""
    panels = [
        _scatter(findings, source, policy)
        for source in findings.drawn_sources
        for policy in _POLICY_TEXT
        if any(rule.accuracy.for_policy(policy) is not None for rule in findings.of_source(source))
    ]
    return Chart(panels, rule_table(findings)) if panels else Missing(_UNRATED)


def _scatter(findings: Findings, source: str, policy: TiePolicy) -> Panel:
    rules, intervals = findings.of_source(source), findings.intervals(source)
    x_R = floats([rule.entropy_nats for rule in rules])
    y_R = floats([rule.accuracy.for_policy(policy) for rule in rules])
    labels = [findings.rule_label(rule.rule_id) for rule in rules]
    rows = {(row.entropy, row.accuracy): row for row in findings.correlations(source)}
    row = rows["discrete", policy]

    def draw(axes: Axes) -> None:
        x_error, y_error = _ends(intervals, "entropy") - x_R, _ends(intervals, policy) - y_R
        bars = axes.errorbar(x_R, y_R, np.abs(y_error), np.abs(x_error), fmt="o", ecolor=GRID)
        bars[0].set(markersize=7, markeredgecolor=PAPER)
        for each_policy in _POLICY_TEXT:  # gives both panels the same range, for comparison
            axes.plot(x_R, _ends(intervals, each_policy).T, linestyle="none")
        axes.axhline(0.5, **REFERENCE)
        _draw_fan_and_fit(axes, x_R, y_R, row)
        axes.set_xlabel("entropy of the ratings H (nats)")
        axes.set_ylabel(f"accuracy, {_POLICY_TEXT[policy]} (%)")
        in_percent(axes.yaxis)
        is_drawn_R = np.isfinite(x_R + y_R)
        number_R = np.array([str(findings.rule_number(rule.rule_id)) for rule in rules])
        label_points(axes, x_R[is_drawn_R], y_R[is_drawn_R], number_R[is_drawn_R].tolist())

    r_text = "r has no value"
    if row.pearson_r is not None:
        r, null = number(row.pearson_r, digits=2), interval(row.null_low, row.null_high)
        r_text = f"r {r} · null {null}"
    title = f"{findings.source_name(source)}: {_POLICY_TEXT[policy]}"
    hints = {
        (x, y): f"{label}: entropy {number(x)}, accuracy {percent(y)}"
        for x, y, label in zip(x_R.tolist(), y_R.tolist(), labels, strict=True)
        if np.isfinite(x + y)
    }
    return Panel(title, f"{counted(row.num_rules, 'rule')} · {r_text}", draw, hints)


def _ends(intervals: Sequence[RuleInterval], quantity: str) -> Floats:
    """Return the ends of the rules' intervals, shape [2, R]."""
    estimates = [getattr(row, quantity) for row in intervals]
    return floats(
        [[estimate.low for estimate in estimates], [estimate.high for estimate in estimates]]
    )


def _draw_fan_and_fit(axes: Axes, x_R: Floats, y_R: Floats, row: Correlation) -> None:
    """Draw fit and null band: lines through the mean, slope r · sd(accuracy) / sd(entropy)."""
    if row.pearson_r is None or row.null_low is None or row.null_high is None:
        return
    is_drawn_R = np.isfinite(x_R + y_R)
    x, y = x_R[is_drawn_R], y_R[is_drawn_R]
    x_low, x_high, *_ = limits = axes.axis()
    edges = np.array([x_low, x.mean(), x_high])
    unit = (edges - x.mean()) * y.std() / x.std()
    low, fit, high = (y.mean() + r * unit for r in (row.null_low, row.pearson_r, row.null_high))
    axes.fill_between(edges, low, high, color=BAND, linewidth=0, zorder=0.5)
    axes.plot(edges, fit, color=INK)
    axes.axis(limits)


def correlation_table(findings: Findings) -> DataTable:
    """Return a table of correlations of entropy with accuracy, per source and tie policy."""
    rows = [
        (
            findings.source_name(row.source),
            row.entropy,
            row.accuracy,
            str(row.num_rules),
            number(row.pearson_r),
            significant(row.p_value, digits=1),
            interval(row.ci_low, row.ci_high),
            number(row.spearman_rho),
            interval(row.null_low, row.null_high),
        )
        for source in findings.sources
        for row in findings.correlations(source)
    ]
    columns = ("source", "entropy", "accuracy", "rules", "r", "p", "95 %", "Spearman's ρ", "null")
    return DataTable(columns, rows)


def rating_histograms(findings: Findings) -> Chart | Missing:
    """Draw the histogram of each rule's ratings, all on the same axes ("Rating Distribution")."""
    ends = (-_BIN_WIDTH / 2, 1 + _BIN_WIDTH / 2)
    shares = {
        rule.rule_id: np.histogram(rating_P2, len(BIN_MIDDLES), ends)[0] / rule.num_ratings
        for rule, rating_P2 in zip(findings.pooled, findings.pairs.rating_2PR.T, strict=True)
        if rule.num_ratings
    }
    if not shares:
        return Missing("No rule has a single rating that is not null.")
    tops = [share_L.max() for share_L in shares.values()]
    limit = 1.04 * min(max(tops), _MAX_TIMES_MEDIAN * np.median(tops))

    def panel(rule: RuleStats, share_L: Floats) -> Panel:
        def draw(axes: Axes) -> None:
            axes.bar(BIN_MIDDLES, share_L, width=0.9 * _BIN_WIDTH)
            for bin_index in np.flatnonzero(share_L > limit):
                middle = BIN_MIDDLES[bin_index]
                height_text = f"{percent(share_L[bin_index], digits=0)} ↑"
                shift, side = (0.05, "left") if middle < 0.5 else (-0.05, "right")
                axes.text(middle + shift, limit, height_text, ha=side, va="top", fontsize=9)
            axes.set(xlim=(-0.06, 1.06), ylim=(0, limit), xlabel="rating", ylabel="ratings (%)")
            in_percent(axes.yaxis)

        entropy, levels = number(rule.entropy_nats, digits=2), counted(rule.num_levels, "level")
        subtitle = f"H {entropy} · {levels} · n {count(rule.num_ratings)}"
        return Panel(findings.rule_label(rule.rule_id), subtitle, draw)

    rated = [rule for rule in findings.pooled if rule.num_ratings]
    panels = [panel(rule, shares[rule.rule_id]) for rule in rated]
    rows = [
        (findings.rule_label(rule_id), f"{middle:g}", percent(share))
        for rule_id, share_L in shares.items()
        for middle, share in zip(BIN_MIDDLES.round(2), share_L, strict=True)
        if share
    ]
    table = DataTable(("rule", "rating", "share"), rows)
    return Chart(panels, table, columns=3, width=215, height=155)


def ties(findings: Findings) -> Chart | Missing:
    """Draw a bar of three parts (chosen, tie, rejected) for each rule, over all sources."""
    rules = [rule for rule in findings.pooled if rule.num_pairs]
    if not rules:
        return Missing(_UNRATED)
    win_R = floats([rule.accuracy.strict for rule in rules])
    tie_R = floats([rule.tie_rate for rule in rules])

    def draw(axes: Axes) -> None:
        rows = range(len(rules))
        axes.axvline(0.5, **REFERENCE)
        axes.barh(rows, win_R, 0.36, label="chosen")
        axes.barh(rows, tie_R, 0.36, win_R, color=BAND, label="tie")
        lost_R, start_R = 1 - win_R - tie_R, win_R + tie_R
        axes.barh(rows, lost_R, 0.36, start_R, color="C1", label="rejected rated higher")
        half_R = win_R + tie_R / 2
        axes.plot(half_R, rows, "|", color=INK, markersize=13, markeredgewidth=2)
        axes.set(xlim=(0, 1), xlabel="share of pairs (%)")
        name_rows(axes, [findings.rule_label(rule.rule_id) for rule in rules], room_above=0.7)
        in_percent(axes.xaxis)
        axes.legend(loc="upper left", ncols=3, borderpad=0, borderaxespad=0, columnspacing=1)

    pairs = counted(max(rule.num_pairs for rule in rules), "pair")
    subtitle = f"{pairs} · {percent(tie_R.min())} to {percent(tie_R.max())} ties"
    panel = Panel(findings.source_name(POOLED), subtitle, draw)
    height = rows_height(len(rules) + 0.7)
    return Chart([panel], rule_table(findings), height=height)


def rule_agreement(findings: Findings) -> Chart | Missing:
    """Draw a cell for each two rules: the cosine of the signs of their margins over pairs."""
    num_rules = len(findings.titles)
    sign_PR = np.nan_to_num(np.sign(findings.pairs.margin_PR))  # 0 without both ratings
    norm_R = np.linalg.norm(sign_PR, axis=0)
    with np.errstate(invalid="ignore"):
        cosine_RR = sign_PR.T @ sign_PR / np.outer(norm_R, norm_R)
    cosines = cosine_RR[np.tril_indices(num_rules, k=-1)]
    if not np.isfinite(cosines).any():
        return Missing("No two rules ever prefer a response of the same pair.")
    cell_texts = [[number(value, digits=2) for value in row] for row in cosine_RR]
    labels = [findings.rule_label(rule_id) for rule_id in findings.titles]
    numbers = [str(findings.rule_number(rule_id)) for rule_id in findings.titles]

    def draw(axes: Axes) -> None:
        draw_cells(axes, cosine_RR, cell_texts, numbers)
        axes.set_xticks(range(num_rules), numbers)
        axes.set(xlabel="rule", ylabel="rule")

    span = interval(np.nanmin(cosines), np.nanmax(cosines))
    median = number(np.nanmedian(cosines), digits=2)
    subtitle = f"{counted(findings.num_pairs, 'pair')} · {span}, median {median}"
    rows = [(label, *texts) for label, texts in zip(labels, cell_texts, strict=True)]
    table = DataTable(("rule", *numbers), rows)
    hints = {
        (float(column), float(row)): f"{labels[row]}; {labels[column]}: {cell_texts[row][column]}"
        for row, column in np.ndindex(num_rules, num_rules)
    }
    panel = Panel(findings.source_name(POOLED), subtitle, draw, hints)
    # Numbers in place of names leave room for ten rules on a phone.
    width, height = max(45.0 + 25 * num_rules, 295.0), 80.0 + 23 * num_rules
    return Chart([panel], table, width=width, height=height)
