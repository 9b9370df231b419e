"""Figure: ENCORE's weights and accuracy over its temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import padded, percent_axis, tip
from encore.report.findings import Findings
from encore.report.palette import BLUE, INK, MUTED, ORANGE
from encore.report.words import percent, plural
from encore.weighting.scheme import DEFAULT_TAU

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.weighting.sweep import TauSweep

_TICKS = (0.01, 0.1, 1, 10, 100, 1000)


def tau_sweep(findings: Findings) -> Chart | Missing:
    """Two panels: every rule's weight over tau, and the accuracy of the composed rating."""
    sweep = findings.sweep
    if isinstance(sweep, Missing):
        return sweep
    panels = [_weight_panel(findings, sweep)]
    if any(accuracy.half is not None for accuracy in sweep.accuracies):
        panels.append(_accuracy_panel(sweep))
    return Chart(
        name="tau-sweep",
        title="What the temperature does",
        caption=(
            "A small τ gives all weight to the rule of lowest entropy (blue), a large one the same "
            "weight to every rule; the rule of highest entropy is orange. The dashed line is the "
            f"paper's τ = {DEFAULT_TAU:g}; the band is a 95 % interval. Choosing the τ of best "
            "accuracy here would be learning from the labels."
        ),
        panels=tuple(panels),
        table=_table(findings, sweep),
        columns=2,
    )


def _weight_panel(findings: Findings, sweep: TauSweep) -> Panel:
    entropies = {rule.rule_id: rule.entropy_nats or 0.0 for rule in findings.pooled}
    ranked = sorted(sweep.rule_ids, key=lambda rule_id: entropies.get(rule_id, 0.0))
    colours = {ranked[-1]: ORANGE, ranked[0]: BLUE}

    def draw(axes: Axes) -> None:
        _tau_axis(axes, sweep)
        for place, rule_id in enumerate(sweep.rule_ids):
            weights = [weight_R[place] for weight_R in sweep.weights_TR]
            is_named = rule_id in colours
            [line] = axes.plot(
                sweep.taus,
                weights,
                color=colours.get(rule_id, MUTED),
                linewidth=2.2 if is_named else 1.1,
                alpha=1.0 if is_named else 0.65,
                zorder=3 if is_named else 2,
            )
            tip(line, findings.rule(rule_id).words)
        _label_lines(axes, findings, sweep, colours)
        axes.set_ylabel("weight (%)")
        percent_axis(axes, "y")

    return Panel(
        title="weights",
        subtitle=plural(len(sweep.rule_ids), "rule"),
        alt=(
            f"Lines of {plural(len(sweep.rule_ids), 'weight')} over τ: at small τ rule "
            f"{findings.rule(ranked[0]).words}, of lowest entropy, has all of it, at large τ all "
            "weights are the same."
        ),
        draw=draw,
        width=350,
        height=260,
    )


def _label_lines(axes: Axes, findings: Findings, sweep: TauSweep, colours: dict[str, str]) -> None:
    """The number of each highlighted rule beside its line, left of the paper's τ."""
    nearest = min(range(len(sweep.taus)), key=lambda t: abs(sweep.taus[t] - DEFAULT_TAU / 4))
    for place, rule_id in enumerate(sweep.rule_ids):
        if rule_id in colours:
            axes.annotate(
                str(findings.rule(rule_id).place),
                xy=(sweep.taus[nearest], sweep.weights_TR[nearest][place]),
                xytext=(0, 6),
                textcoords="offset points",
                color=colours[rule_id],
                fontweight="bold",
            )


def _accuracy_panel(sweep: TauSweep) -> Panel:
    lines = {
        "a tie counts half": (BLUE, [accuracy.half for accuracy in sweep.accuracies]),
        "ties left out": (ORANGE, [accuracy.untied for accuracy in sweep.accuracies]),
    }
    values = [value for _, found in lines.values() for value in found if value is not None]
    ends = [end for end in (*sweep.accuracy_lows, *sweep.accuracy_highs) if end is not None]

    def draw(axes: Axes) -> None:
        _tau_axis(axes, sweep)
        for label, (colour, found) in lines.items():
            known = [
                (tau, value)
                for tau, value in zip(sweep.taus, found, strict=True)
                if value is not None
            ]
            style = "-" if colour == BLUE else (0, (5, 1.5))
            if known:
                axes.plot(*zip(*known, strict=True), color=colour, linestyle=style, label=label)
        _draw_interval(axes, sweep)
        low, high = padded([*values, *ends], share=0.12, least=0.005)
        axes.set_ylim(low, high)
        axes.legend(loc="best")
        axes.set_ylabel("accuracy of the composed rating (%)")
        percent_axis(axes, "y")

    return Panel(
        title="accuracy of the composed rating",
        subtitle=plural(sweep.num_pairs, "pair"),
        alt=(
            f"Two lines over τ: the accuracy of the composed rating lies between "
            f"{percent(min(values))} and {percent(max(values))}."
        ),
        draw=draw,
        width=350,
        height=260,
    )


def _draw_interval(axes: Axes, sweep: TauSweep) -> None:
    """The 95 % interval of half-credit accuracy, as a band."""
    ends = [
        (tau, low, high)
        for tau, low, high in zip(
            sweep.taus, sweep.accuracy_lows, sweep.accuracy_highs, strict=True
        )
        if low is not None and high is not None
    ]
    if ends:
        taus, lows, highs = zip(*ends, strict=True)
        axes.fill_between(taus, lows, highs, color=BLUE, alpha=0.14, linewidth=0)


def _tau_axis(axes: Axes, sweep: TauSweep) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(min(sweep.taus), max(sweep.taus))
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(min(sweep.taus), max(sweep.taus))
    axes.axvline(DEFAULT_TAU, color=INK, linewidth=0.9, linestyle=(0, (3, 2)), zorder=1.5)
    axes.set_xlabel("temperature τ")


def _table(findings: Findings, sweep: TauSweep) -> DataTable:
    rows = tuple(
        (
            f"{tau:g}",
            percent(accuracy.half),
            percent(accuracy.untied),
            *(percent(weight) for weight in weight_R),
        )
        for tau, accuracy, weight_R in zip(
            sweep.taus, sweep.accuracies, sweep.weights_TR, strict=True
        )
    )
    numbers = (str(findings.rule(rule_id).place) for rule_id in sweep.rule_ids)
    return DataTable(columns=("τ", "half", "untied", *numbers), rows=rows)
