"""Figures about the rules: findings in, a chart or the reason why there is none out.

Suffixes: L levels, R rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from encore.analysis.statistics import ENTROPY_KINDS, POOLED, TiePolicy
from encore.report.drawing import (
    BAND,
    INK,
    MUTED,
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
    name_rows,
    rows_height,
)
from encore.report.findings import Findings, RuleHistogram
from encore.report.words import (
    POLICY_WORDS,
    count,
    interval,
    number,
    p_value,
    percent,
    percent_interval,
    plural,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.analysis.correlation import Correlation
    from encore.analysis.intervals import RuleInterval
    from encore.analysis.statistics import RuleStats

#: From the top down: the two that are read together, then the two that random labels bend.
_POLICIES: tuple[TiePolicy, ...] = ("half", "untied", "strict", "inclusive")
HEADLINE = _POLICIES[:2]
#: Of the kinds of entropy: shift in a row, marker, colour, name.
_MARKS = {
    "discrete": (-0.16, "o", "C0", "discrete"),
    "differential": (0.16, "D", "C1", "differential (KDE)"),
}
#: One rule that nearly always says the same must not flatten the histograms of all others.
_MAX_TIMES_MEDIAN = 2.0
#: With more rules than this the numbers do not fit their cells.
_MAX_WRITTEN = 10
_UNRATED = "No pair has both of its responses rated by any rule."


def _every_rule(
    findings: Findings,
) -> Iterator[tuple[tuple[str, str], RuleStats, RuleInterval]]:
    """The rules of all sources: names of source and rule, statistics, intervals."""
    for source in findings.sources:
        both = zip(findings.of_source(source), findings.intervals(source), strict=True)
        for rule, ends in both:
            yield (findings.source_name(source), findings.words(rule.rule_id)), rule, ends


def entropy_accuracy(findings: Findings) -> Chart | Missing:
    """Two panels for each drawn source: half credit and untied."""
    panels = [
        _scatter(findings, source, policy)
        for source in findings.drawn_sources
        for policy in HEADLINE
        if any(rule.accuracy.under(policy) is not None for rule in findings.of_source(source))
    ]
    if not panels:
        return Missing(_UNRATED)
    rows = tuple(
        (
            *names,
            number(rule.entropy_nats),
            interval(ends.entropy_low, ends.entropy_high, digits=3),
            percent(rule.accuracy.half),
            percent_interval(ends.half_low, ends.half_high),
            percent(rule.accuracy.untied),
            percent_interval(ends.untied_low, ends.untied_high),
        )
        for names, rule, ends in _every_rule(findings)
    )
    columns = ("source", "rule", "H (nats)", "95 %", "half", "95 %", "untied", "95 %")
    return Chart(panels, DataTable(columns, rows))


def _scatter(findings: Findings, source: str, policy: TiePolicy) -> Panel:
    rules, intervals = findings.of_source(source), findings.intervals(source)
    x_R = floats([rule.entropy_nats for rule in rules])
    y_R = floats([rule.accuracy.under(policy) for rule in rules])
    of_both = floats([[rule.accuracy.under(one) for rule in rules] for one in HEADLINE])
    shown = np.vstack([of_both, *(_ends(intervals, one) for one in HEADLINE)])
    room = max(0.08 * np.ptp(shown[np.isfinite(shown)]), 0.01)
    bottom, top = np.nanmin(shown) - room, np.nanmax(shown) + room
    rows = {(row.entropy, row.accuracy): row for row in findings.correlations(source)}
    row = rows["discrete", policy]

    def draw(axes: Axes) -> None:
        x_error, y_error = _ends(intervals, "entropy") - x_R, _ends(intervals, policy) - y_R
        style: dict[str, Any] = {"fmt": "none", "ecolor": MUTED, "elinewidth": 0.9}
        axes.errorbar(x_R, y_R, np.abs(y_error), np.abs(x_error), **style)
        axes.plot(x_R, y_R, "o", color="C0", markersize=12, markeredgecolor=PAPER, zorder=3)
        for place in np.flatnonzero(np.isfinite(x_R + y_R)):
            text = axes.text(x_R[place], y_R[place], str(findings.place(rules[place].rule_id)))
            text.set(ha="center", va="center_baseline", zorder=4)
            text.set(fontsize=9, fontweight="bold", color=PAPER)
        axes.set_ylim(bottom, top)  # of both panels: they are compared
        if bottom < 0.5 < top:
            axes.axhline(0.5, **REFERENCE)
        _draw_fan_and_fit(axes, x_R, y_R, row)
        axes.set_xlabel("entropy of the ratings H (nats)")
        axes.set_ylabel(f"accuracy, {POLICY_WORDS[policy]} (%)")
        in_percent(axes.yaxis)

    title = f"{findings.source_name(source)}: {POLICY_WORDS[policy]}"
    found = "r has no value"
    if row.pearson_r is not None:
        r, null = number(row.pearson_r, digits=2), interval(row.null_low, row.null_high)
        found = f"r {r} · null {null}"
    num_rules = plural(int(np.isfinite(x_R + y_R).sum()), "rule")
    return Panel(title, f"{num_rules} · {found}", draw)


def _ends(intervals: Sequence[RuleInterval], quantity: str) -> Floats:
    """The ends of the rules' intervals, shape [2, R]."""
    names = (f"{quantity}_low", f"{quantity}_high")
    return floats([[getattr(one, name) for one in intervals] for name in names])


def _draw_fan_and_fit(axes: Axes, x_R: Floats, y_R: Floats, row: Correlation) -> None:
    """Lines through the mean whose slope is r · sd(accuracy) / sd(entropy)."""
    if row.pearson_r is None or row.null_low is None or row.null_high is None:
        return
    is_drawn_R = np.isfinite(x_R + y_R)
    x, y = x_R[is_drawn_R], y_R[is_drawn_R]
    left, right = axes.get_xlim()
    edges = np.array([left, x.mean(), right])
    slope_of_r, offset = y.std() / x.std(), edges - x.mean()
    low, fit, high = (
        y.mean() + r * slope_of_r * offset for r in (row.null_low, row.pearson_r, row.null_high)
    )
    axes.fill_between(edges, low, high, color=BAND, linewidth=0, zorder=0.5)
    axes.plot(edges, fit, color=INK, linewidth=1.6, zorder=2)
    axes.set_xlim(left, right)


def correlations(findings: Findings) -> Chart | Missing:
    """One panel for each drawn source in which a correlation has a value."""
    by_source = {
        source: sorted(
            findings.correlations(source),
            key=lambda row: (ENTROPY_KINDS.index(row.entropy), _POLICIES.index(row.accuracy)),
        )
        for source in findings.sources
    }
    panels = [
        _correlation_panel(findings.source_name(source), by_source[source])
        for source in findings.drawn_sources
        if any(row.pearson_r is not None for row in by_source[source])
    ]
    if not panels:
        return Missing(
            "A correlation needs at least 3 rules with an entropy and an accuracy, and "
            "neither may be the same for all."
        )
    rows = tuple(
        (
            findings.source_name(row.source),
            row.entropy,
            row.accuracy,
            str(row.num_rules),
            number(row.pearson_r),
            p_value(row.p_value),
            interval(row.ci_low, row.ci_high),
            number(row.spearman_rho),
            interval(row.null_low, row.null_high),
        )
        for found in by_source.values()
        for row in found
    )
    columns = ("source", "entropy", "accuracy", "rules", "r", "p", "95 %", "Spearman's ρ", "null")
    return Chart(panels, DataTable(columns, rows))


def _correlation_panel(source_name: str, rows: Sequence[Correlation]) -> Panel:
    def draw(axes: Axes) -> None:
        axes.axvline(0.0, **REFERENCE)
        for row in rows:
            shift, marker, tone, _ = _MARKS[row.entropy]
            y = _POLICIES.index(row.accuracy) + shift
            low, high = floats([row.null_low, row.null_high])
            axes.barh(y, high - low, 0.26, low, color=BAND, zorder=1.2)
            axes.plot(floats([row.ci_low, row.ci_high]), [y, y], color=tone, linewidth=1.3)
            axes.plot(floats(row.pearson_r), y, marker, color=tone, markersize=7, zorder=3)
        for _, marker, tone, words in _MARKS.values():
            axes.plot([], [], marker, color=tone, label=words)
        axes.set_xlim(-1.03, 1.03)
        axes.set_ylim(len(_POLICIES) - 0.4, -1.05)
        axes.set_yticks(range(len(_POLICIES)), _POLICIES)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("Pearson's r of accuracy with +H")
        axes.legend(loc="upper center", ncols=2, borderaxespad=0.1, columnspacing=1.2)

    headline = ", ".join(
        f"{row.accuracy} {number(row.pearson_r, digits=2)}"
        for row in rows
        if row.entropy == "discrete" and row.accuracy in HEADLINE
    )
    num_rules = plural(max(row.num_rules for row in rows), "rule")
    return Panel(source_name, f"{num_rules} · {headline}", draw)


def rating_histograms(findings: Findings) -> Chart | Missing:
    """One panel for each rule, all with the same axes (the paper's "Rating Distribution")."""
    histograms = findings.histograms
    if isinstance(histograms, Missing):
        return histograms
    tops = [float(one.share_L.max()) for one in histograms]
    limit = min(max(tops), _MAX_TIMES_MEDIAN * float(np.median(tops)))
    names = [findings.words(one.rule.rule_id) for one in histograms]
    both = list(zip(names, histograms, strict=True))
    rows = tuple(
        (name, f"{position:g}", count(int(num)), percent(float(share)))
        for name, one in both
        for position, num, share in zip(one.position_L, one.num_ratings_L, one.share_L, strict=True)
        if num
    )
    panels = [_histogram_panel(name, one, limit) for name, one in both]
    return Chart(panels, DataTable(("rule", "rating", "ratings", "share"), rows), columns=3)


def _histogram_panel(name: str, histogram: RuleHistogram, limit: float) -> Panel:
    share_L, position_L = histogram.share_L, histogram.position_L

    def draw(axes: Axes) -> None:
        axes.bar(position_L, share_L, width=histogram.bar_width, color="C0")
        for place in np.flatnonzero(share_L > limit):
            side, shift = ("left", 12) if position_L[place] < 0.5 else ("right", -12)
            text = axes.annotate(
                f"{percent(share_L[place], digits=0)} ↑",
                xy=(position_L[place], limit),
                xytext=(shift, 0),
                textcoords="offset points",
            )
            text.set(ha=side, va="top", fontsize=9)
        axes.set_xlim(-0.06, 1.06)
        axes.set_ylim(0, limit * 1.04)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("rating")
        axes.set_ylabel("ratings (%)")
        in_percent(axes.yaxis)

    rule = histogram.rule
    entropy, levels = number(rule.entropy_nats, digits=2), plural(rule.num_levels, "level")
    subtitle = f"H {entropy} · {levels} · n {count(rule.num_ratings)}"
    return Panel(name, subtitle, draw, width=215, height=155)


def ties(findings: Findings) -> Chart | Missing:
    """One panel: over all sources, a bar of three parts for each rule that rated a pair."""
    rules = [rule for rule in findings.pooled if rule.num_pairs]
    if not rules:
        return Missing(_UNRATED)
    names = [findings.words(rule.rule_id) for rule in rules]
    win_R = floats([rule.accuracy.strict for rule in rules])
    tie_R = floats([rule.tie_rate for rule in rules])

    def draw(axes: Axes) -> None:
        places = range(len(rules))
        axes.axvline(0.5, **REFERENCE)
        axes.barh(places, win_R, 0.36, color="C0", label="chosen")
        axes.barh(places, tie_R, 0.36, win_R, color=BAND, label="tie")
        lost_R, start_R = 1 - win_R - tie_R, win_R + tie_R
        axes.barh(places, lost_R, 0.36, start_R, color="C1", label="rejected rated higher")
        half_R = win_R + tie_R / 2
        axes.plot(half_R, places, "|", color=INK, markersize=13, markeredgewidth=2)
        axes.set_xlim(0, 1)
        name_rows(axes, names, room_above=0.7)
        in_percent(axes.xaxis)
        axes.set_xlabel("share of pairs (%)")
        axes.legend(loc="upper left", ncols=3, borderpad=0, borderaxespad=0, columnspacing=1)

    pairs = [rule.num_pairs for rule in rules]
    few = "" if len(set(pairs)) == 1 else f"{count(min(pairs))} to "
    subtitle = f"{few}{plural(max(pairs), 'pair')} for each rule · "
    subtitle += f"{percent(tie_R.min())} to {percent(tie_R.max())} ties"
    height = rows_height(len(rules) + 0.7)
    panel = Panel(findings.source_name(POOLED), subtitle, draw, height=height)
    rows = tuple(
        (
            *names,
            count(rule.num_pairs),
            percent(rule.tie_rate),
            *(percent(rule.accuracy.under(policy)) for policy in _POLICIES),
        )
        for names, rule, _ in _every_rule(findings)
    )
    table = DataTable(("source", "rule", "pairs", "ties", *_POLICIES), rows)
    return Chart([panel], table, columns=1)


def rule_agreement(findings: Findings) -> Chart | Missing:
    """One panel: a triangle of cells, one for each two rules."""
    cosine_RR, num_rules = findings.cosine_RR, len(findings.titles)
    if num_rules < 2:
        return Missing("There is one rule only.")
    below = cosine_RR[np.tril_indices(num_rules, k=-1)]
    found = below[np.isfinite(below)]
    if len(found) == 0:
        return Missing("No two rules ever prefer a response of the same pair.")
    low, middle, high = (number(value, digits=2) for value in np.quantile(found, [0, 0.5, 1]))
    words = [
        [number(value if np.isfinite(value) else None, digits=2) for value in row]
        for row in cosine_RR
    ]
    is_below_RR = np.tri(num_rules, k=-1) == 1
    is_written = num_rules <= _MAX_WRITTEN

    def draw(axes: Axes) -> None:
        image = draw_cells(
            axes,
            np.where(is_below_RR, cosine_RR, 0.0)[1:, :-1],
            lambda row, column: words[row + 1][column] * (is_written and column <= row),
        )
        axes.set_xticks(range(num_rules - 1))
        axes.set_yticks(range(num_rules - 1), map(str, range(1, num_rules)))
        axes.set_xlabel("rule")
        bar: Any = axes.figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
        bar.solids.set_rasterized(False)  # a picture has no dark colours

    subtitle = f"{plural(findings.num_pairs, 'pair')} · {low} to {high}, median {middle}"
    panel = Panel(findings.source_name(POOLED), subtitle, draw, height=300)
    rows = tuple((findings.words(one), *words[place]) for place, one in enumerate(findings.titles))
    table = DataTable(("rule", *map(str, range(num_rules))), rows)
    return Chart([panel], table, columns=1)
