"""The report's figures, one file each: findings in, a chart or the reason why there is none out."""

from __future__ import annotations

from collections.abc import Callable

from encore.report.chart import Chart, Missing
from encore.report.charts.convergence import convergence
from encore.report.charts.correlations import correlations
from encore.report.charts.entropy_accuracy import entropy_accuracy
from encore.report.charts.left_out import left_out
from encore.report.charts.rating_histograms import rating_histograms
from encore.report.charts.rule_agreement import rule_agreement
from encore.report.charts.scheme_accuracy import scheme_accuracy
from encore.report.charts.scheme_weights import scheme_weights
from encore.report.charts.tau_sweep import tau_sweep
from encore.report.charts.ties import ties
from encore.report.findings import Findings

#: File name -> how it is made, in the order of the page.
CHARTS: dict[str, Callable[[Findings], Chart | Missing]] = {
    "entropy-accuracy": entropy_accuracy,
    "correlations": correlations,
    "rating-histograms": rating_histograms,
    "ties": ties,
    "rule-agreement": rule_agreement,
    "scheme-weights": scheme_weights,
    "scheme-accuracy": scheme_accuracy,
    "tau-sweep": tau_sweep,
    "left-out": left_out,
    "convergence": convergence,
}
