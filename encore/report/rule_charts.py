"""Figures about the rules: findings in, a chart or the reason why there is none out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from encore.analysis.statistics import ENTROPY_KINDS, POOLED, EntropyKind, RuleStats, TiePolicy
from encore.report.drawing import (
    Chart,
    DataTable,
    Missing,
    Panel,
    colour,
    diverging_colours,
    name_rows,
    padded,
    percent_axis,
    reference_line,
    rows_height,
)
from encore.report.findings import Findings
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

#: The two ways to count ties that are read together.
HEADLINE: tuple[TiePolicy, TiePolicy] = ("half", "untied")
#: From the top down: the two that count, then the two that random labels bend.
_POLICIES: tuple[TiePolicy, ...] = ("half", "untied", "strict", "inclusive")
_MARKS: dict[EntropyKind, tuple[float, str, str, str]] = {
    "discrete": (-0.16, "o", "C0", "discrete"),
    "differential": (0.16, "D", "C1", "differential (KDE)"),
}
#: One rule that nearly always says the same must not flatten the histograms of all others.
_MAX_TIMES_MEDIAN = 2.0
#: With more rules than this the numbers do not fit their cells.
_MAX_WRITTEN = 10
_UNRATED = "No pair has both of its responses rated by any rule."


def entropy_accuracy(findings: Findings) -> Chart | Missing:
    """Two panels for each drawn source: half credit and untied."""
    panels = [
        _scatter(findings, source, policy)
        for source in findings.drawn_sources
        for policy in HEADLINE
        if any(rule.accuracy.under(policy) is not None for rule in findings.of_source(source))
    ]
    if not panels:
        return Missing(reason=_UNRATED)
    rows = [
        (
            findings.source_name(source),
            findings.rule(stats.rule_id).words,
            number(stats.entropy_nats),
            interval(*_ends(findings.interval(source, stats.rule_id), "entropy"), digits=3),
            percent(stats.accuracy.half),
            percent_interval(*_ends(findings.interval(source, stats.rule_id), "half")),
            percent(stats.accuracy.untied),
            percent_interval(*_ends(findings.interval(source, stats.rule_id), "untied")),
        )
        for source in findings.sources
        for stats in findings.of_source(source)
    ]
    columns = ("source", "rule", "H (nats)", "95 %", "half", "95 %", "untied", "95 %")
    return Chart(
        panels=tuple(panels),
        table=DataTable(columns=columns, rows=tuple(rows)),
    )


def _ends(row: RuleInterval | None, quantity: str) -> tuple[float | None, float | None]:
    return getattr(row, f"{quantity}_low", None), getattr(row, f"{quantity}_high", None)


def _scatter(findings: Findings, source: str, policy: TiePolicy) -> Panel:
    rules = [
        (rule, rule.entropy_nats, rule.accuracy.under(policy))
        for rule in findings.of_source(source)
    ]
    points = [(rule, x, y) for rule, x, y in rules if x is not None and y is not None]
    row = findings.correlation(source, entropy="discrete", accuracy=policy)
    r = None if row is None else row.pearson_r
    values = [
        value
        for rule, _, _ in rules
        for one in HEADLINE
        for value in (
            rule.accuracy.under(one),
            *_ends(findings.interval(source, rule.rule_id), one),
        )
    ]
    limits = padded([value for value in values if value is not None], least=0.01)

    def draw(axes: Axes) -> None:
        for rule, x, y in points:
            ends = findings.interval(source, rule.rule_id)
            low, high = _ends(ends, "entropy")
            if low is not None and high is not None:
                axes.hlines(y, low, high, colour("muted"), linewidth=0.9)
            low, high = _ends(ends, policy)
            if low is not None and high is not None:
                axes.vlines(x, low, high, colour("muted"), linewidth=0.9)
            axes.plot(
                x, y, "o", color="C0", markersize=12, markeredgecolor=colour("paper"), zorder=3
            )
            words = str(findings.rule(rule.rule_id).place)
            number_text = axes.text(x, y, words, ha="center", va="center_baseline", zorder=4)
            number_text.set(fontsize=9, color=colour("paper"), fontweight="bold")
        axes.set_ylim(limits)  # of both panels: they are compared
        if limits[0] < 0.5 < limits[1]:
            reference_line(axes, 0.5, "y")
        if row is not None:
            _draw_fan_and_fit(axes, [(x, y) for _, x, y in points], row)
        axes.set_xlabel("entropy of the ratings H (nats)")
        axes.set_ylabel(f"accuracy, {POLICY_WORDS[policy]} (%)")
        percent_axis(axes, "y")

    null = "" if row is None else interval(row.null_low, row.null_high)
    fisher = "" if row is None else interval(row.ci_low, row.ci_high)
    return Panel(
        title=f"{findings.source_name(source)}: {POLICY_WORDS[policy]}",
        subtitle=f"{plural(len(points), 'rule')} · "
        + ("r has no value" if r is None else f"r {number(r, digits=2)} · null {null}"),
        alt=(
            f"Scatter plot of {plural(len(points), 'rule')}, {findings.source_name(source)}, "
            f"{POLICY_WORDS[policy]}: "
            + (
                "the correlation has no value."
                if r is None
                else f"Pearson's r {number(r, digits=2)}, 95 % interval {fisher}, null band {null}."
            )
        ),
        draw=draw,
    )


def _draw_fan_and_fit(axes: Axes, points: Sequence[tuple[float, float]], row: Correlation) -> None:
    """Lines through the mean whose slope is r · sd(accuracy) / sd(entropy)."""
    x, y = np.array(points).T
    if row.pearson_r is None or row.null_low is None or row.null_high is None:
        return
    edges = np.array([*axes.get_xlim(), x.mean()])[[0, 2, 1]]
    slope_of_r, offset = y.std() / x.std(), edges - x.mean()
    low, high = (y.mean() + r * slope_of_r * offset for r in (row.null_low, row.null_high))
    axes.fill_between(edges, low, high, color=colour("band"), linewidth=0, zorder=0.5)
    fit = y.mean() + row.pearson_r * slope_of_r * offset
    axes.plot(edges, fit, color=colour("ink"), linewidth=1.6, zorder=2)
    axes.set_xlim(edges[0], edges[2])


def correlations(findings: Findings) -> Chart | Missing:
    """One panel for each drawn source in which a correlation has a value."""
    by_source = {
        source: [
            row
            for entropy in ENTROPY_KINDS
            for policy in _POLICIES
            if (row := findings.correlation(source, entropy=entropy, accuracy=policy)) is not None
        ]
        for source in findings.sources
    }
    panels = tuple(
        _correlation_panel(findings, source, by_source[source])
        for source in findings.drawn_sources
        if any(row.pearson_r is not None for row in by_source[source])
    )
    if not panels:
        return Missing(
            reason="A correlation needs at least 3 rules with an entropy and an accuracy, and "
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
    return Chart(
        panels=panels,
        table=DataTable(columns=columns, rows=rows),
    )


def _correlation_panel(findings: Findings, source: str, rows: Sequence[Correlation]) -> Panel:
    def draw(axes: Axes) -> None:
        reference_line(axes, 0.0, "x")
        for row in rows:
            shift, marker, tone, _ = _MARKS[row.entropy]
            y = _POLICIES.index(row.accuracy) + shift
            if row.pearson_r is None:
                continue
            if row.null_low is not None and row.null_high is not None:
                width = row.null_high - row.null_low
                axes.barh(y, width, 0.26, row.null_low, color=colour("band"), zorder=1.2)
            if row.ci_low is not None and row.ci_high is not None:
                axes.plot([row.ci_low, row.ci_high], [y, y], color=tone, linewidth=1.3)
            axes.plot(row.pearson_r, y, marker, color=tone, markersize=7, zorder=3)
        for _, marker, tone, words in _MARKS.values():
            axes.plot([], [], marker, color=tone, label=words)
        axes.set_xlim(-1.03, 1.03)
        axes.set_ylim(len(_POLICIES) - 0.4, -1.05)
        axes.set_yticks(range(len(_POLICIES)), _POLICIES)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("Pearson's r of accuracy with +H")
        axes.legend(loc="upper center", ncols=2, borderaxespad=0.1, columnspacing=1.2)

    headline = ", ".join(
        f"{row.accuracy} {number(row.pearson_r, digits=2)} with null band "
        f"{interval(row.null_low, row.null_high)}"
        for row in rows
        if row.entropy == "discrete"
    )
    return Panel(
        title=findings.source_name(source),
        subtitle=plural(max(row.num_rules for row in rows), "rule"),
        alt=f"Correlations with discrete entropy, {findings.source_name(source)}: {headline}.",
        draw=draw,
    )


def rating_histograms(findings: Findings) -> Chart | Missing:
    """One panel for each rule, all with the same axes (the paper's "Rating Distribution")."""
    if isinstance(findings.histograms, Missing):
        return findings.histograms
    tops = [max(histogram.shares) for histogram in findings.histograms]
    limit = min(max(tops), _MAX_TIMES_MEDIAN * median(tops))
    rows = tuple(
        (findings.rule(histogram.rule_id).words, f"{position:g}", count(num), percent(share))
        for histogram in findings.histograms
        for position, share, num in zip(
            histogram.positions, histogram.shares, histogram.num_ratings, strict=True
        )
        if num
    )
    return Chart(
        panels=tuple(
            _histogram_panel(findings, place, limit) for place in range(len(findings.histograms))
        ),
        table=DataTable(columns=("rule", "rating", "ratings", "share"), rows=rows),
        columns=3,
    )


def _histogram_panel(findings: Findings, place: int, limit: float) -> Panel:
    assert not isinstance(findings.histograms, Missing)
    histogram = findings.histograms[place]
    [stats] = [rule for rule in findings.pooled if rule.rule_id == histogram.rule_id]

    def draw(axes: Axes) -> None:
        axes.bar(histogram.positions, histogram.shares, width=histogram.bar_width, color="C0")
        for position, share in zip(histogram.positions, histogram.shares, strict=True):
            if share > limit:
                is_left = position < 0.5
                axes.annotate(
                    f"{percent(share, digits=0)} ↑",
                    xy=(position, limit),
                    xytext=(12 if is_left else -12, 0),
                    textcoords="offset points",
                    ha="left" if is_left else "right",
                    va="top",
                    fontsize=9,
                )
        axes.set_xlim(-0.06, 1.06)
        axes.set_ylim(0, limit * 1.04)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("rating")
        axes.set_ylabel("ratings (%)")
        percent_axis(axes, "y")

    rule = findings.rule(histogram.rule_id)
    entropy = number(stats.entropy_nats, digits=2)
    levels = plural(stats.num_levels, "level")
    top = max(range(len(histogram.shares)), key=histogram.shares.__getitem__)
    return Panel(
        title=rule.words,
        subtitle=f"H {entropy} · {levels} · n {count(stats.num_ratings)}",
        alt=(
            f"Histogram of rule {rule.words}: {levels}, entropy {entropy} nats, "
            f"{plural(stats.num_ratings, 'rating')}; most frequent rating "
            f"{histogram.positions[top]:g} with {percent(histogram.shares[top])}."
        ),
        draw=draw,
        width=215,
        height=155,
    )


def ties(findings: Findings) -> Chart | Missing:
    """One panel: over all sources, a bar of three parts for each rule that rated a pair."""
    rules = [rule for rule in findings.pooled if rule.num_pairs]
    if not rules:
        return Missing(reason=_UNRATED)
    rows = tuple(
        (
            findings.source_name(source),
            findings.rule(rule.rule_id).words,
            count(rule.num_pairs),
            percent(rule.tie_rate),
            *(percent(rule.accuracy.under(policy)) for policy in _POLICIES),
        )
        for source in findings.sources
        for rule in findings.of_source(source)
    )
    return Chart(
        panels=(_ties_panel(findings, rules),),
        table=DataTable(columns=("source", "rule", "pairs", "ties", *_POLICIES), rows=rows),
        columns=1,
    )


def _ties_panel(findings: Findings, rules: Sequence[RuleStats]) -> Panel:
    names = [findings.rule(rule.rule_id).words for rule in rules]
    places = range(len(rules))
    wins = np.array([rule.accuracy.strict or 0.0 for rule in rules])
    rates = np.array([rule.tie_rate or 0.0 for rule in rules])

    def draw(axes: Axes) -> None:
        reference_line(axes, 0.5, "x")
        axes.barh(places, wins, 0.36, color="C0", label="chosen")
        axes.barh(places, rates, 0.36, wins, color=colour("band"), label="tie")
        lost = 1 - wins - rates
        axes.barh(places, lost, 0.36, wins + rates, color="C1", label="rejected rated higher")
        half = [rule.accuracy.half or 0.0 for rule in rules]
        axes.plot(half, places, "|", color=colour("ink"), markersize=13, markeredgewidth=2)
        axes.set_xlim(0, 1)
        name_rows(axes, names, room_above=0.7)
        percent_axis(axes, "x")
        axes.set_xlabel("share of pairs (%)")
        axes.legend(loc="upper left", ncols=3, borderpad=0, borderaxespad=0, columnspacing=1)

    pairs = [rule.num_pairs for rule in rules]
    few = "" if len(set(pairs)) == 1 else f"{count(min(pairs))} to "
    return Panel(
        title=findings.source_name(POOLED),
        subtitle=f"{few}{plural(max(pairs), 'pair')} for each rule",
        alt=(
            f"Stacked bars of {plural(len(rules), 'rule')}: between {percent(float(rates.min()))} "
            f"and {percent(float(rates.max()))} of pairs are ties."
        ),
        draw=draw,
        height=rows_height(len(rules) + 0.7),
    )


def rule_agreement(findings: Findings) -> Chart | Missing:
    """One panel: a triangle of cells, one for each two rules."""
    if len(findings.rules) < 2:
        return Missing(reason="There is one rule only.")
    cosine_RR = findings.cosine_RR
    below = cosine_RR[np.tril_indices(len(cosine_RR), k=-1)]
    found = below[np.isfinite(below)]
    if len(found) == 0:
        return Missing(reason="No two rules ever prefer a response of the same pair.")
    low, middle, high = np.quantile(found, [0, 0.5, 1]).tolist()

    def draw(axes: Axes) -> None:
        below_RR = np.where(np.tri(len(cosine_RR), k=-1) == 1, cosine_RR, 0.0)[1:, :-1]
        image = axes.imshow(below_RR, cmap=diverging_colours(), vmin=-1, vmax=1)
        for row, column in zip(*np.tril_indices(len(below_RR)), strict=True):
            value = float(below_RR[row, column])
            if len(below_RR) <= _MAX_WRITTEN:
                text = number(value if np.isfinite(value) else None, digits=2)
                tone = colour("paper" if abs(value) > 0.6 else "ink")
                style = {"ha": "center", "va": "center", "fontsize": 9, "color": tone}
                axes.text(column, row, text, **style)  # type: ignore[arg-type]
        axes.set_xticks(range(len(below_RR)), [str(rule.place) for rule in findings.rules[:-1]])
        axes.set_yticks(range(len(below_RR)), [str(rule.place) for rule in findings.rules[1:]])
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("rule")
        axes.set_ylabel("rule")
        axes.figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)

    return Chart(
        panels=(
            Panel(
                title=findings.source_name(POOLED),
                subtitle=plural(findings.provenance.num_pairs, "pair"),
                alt=(
                    f"Triangle of cells for {plural(len(cosine_RR), 'rule')}: correlations of "
                    f"their decisions lie between {number(low, digits=2)} and "
                    f"{number(high, digits=2)}, median {number(middle, digits=2)}."
                ),
                draw=draw,
                height=300,
            ),
        ),
        table=DataTable(
            columns=("rule", *(str(rule.place) for rule in findings.rules)),
            rows=tuple(
                (rule.words, *(number(v if np.isfinite(v) else None, digits=2) for v in row))
                for rule, row in zip(findings.rules, cosine_RR.tolist(), strict=True)
            ),
        ),
        columns=1,
    )
