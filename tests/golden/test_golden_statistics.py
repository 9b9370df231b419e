"""Golden: `encore analyze` and `encore weights` on a fixed ratings file."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.golden.command_line import encore
from tests.golden.same import ANY, SOLVED, check_golden

SCHEMES = (
    *("encore", "uniform", "random", "single"),
    *("top-k", "random-k", "inverse-sd", "bradley-terry"),
)
#: Ends of intervals, which rest on 2,000 or more seeded draws.
DRAWN = 0.03
ANALYSIS = {"intervals.*_low": DRAWN, "intervals.*_high": DRAWN, "correlation.*.null_*": DRAWN}
WEIGHTS = {
    "*provenance.encore_version": ANY,
    # Solvers of different versions agree closely, not to the last bit.
    "params.scale": SOLVED * 10,
}
#: Weights that are fitted, and accuracies on folds that are drawn.
LEARNT = {**WEIGHTS, "weights.*": SOLVED, "held_out.accuracy*": DRAWN}


def without_drawn_numbers(analysis: dict[str, Any]) -> dict[str, Any]:
    """Replace the figures in the sentences of verdicts; other keys hold and compare them."""
    for verdict in analysis["verdicts"]:
        verdict["reason"] = re.sub(r"[-+−]?\d\.\d+", "#", verdict["reason"])
    return analysis


@pytest.mark.parametrize("options", [(), ("--by-source",)])
def test_analyze(fixed_ratings, options):
    answer = encore("analyze", fixed_ratings, *options, "--json").json
    name = "analyze-by-source" if options else "analyze"
    check_golden(name, without_drawn_numbers(answer), ANALYSIS)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_of_every_scheme(fixed_ratings, scheme):
    options = ("--rule", "be-kind") if scheme == "single" else ()
    answer = encore("weights", fixed_ratings, "--scheme", scheme, *options, "--json").json
    check_golden(f"weights-{scheme}", answer, LEARNT if scheme == "bradley-terry" else WEIGHTS)


@pytest.mark.parametrize("options", [("--tau", 0.5), ("--scheme", "top-k", "--k", 3)])
def test_weights_with_an_option(fixed_ratings, options):
    answer = encore("weights", fixed_ratings, *options, "--json").json
    name = "-".join(str(option).strip("-") for option in options)
    check_golden(f"weights-with-{name}", answer, WEIGHTS)


def test_the_sweep_of_temperatures(fixed_ratings):
    answer = encore("weights", fixed_ratings, "--sweep", "--json").json
    check_golden("weights-sweep", answer, {"*encore_version": ANY})


def test_the_comparison_of_schemes(fixed_ratings):
    answer = encore("weights", fixed_ratings, "--compare", "--json").json
    tolerances = {
        "*encore_version": ANY,
        "*params.scale": SOLVED * 10,
        "*weights.*": SOLVED,
        "*accuracy*": SOLVED,
        "*held_out*": DRAWN,
        "draws.*": DRAWN,
        "*beats_random": DRAWN,
    }
    check_golden("weights-compare", answer, tolerances)


def test_theory(fixed_ratings):
    """All floats agree to `SOLVED`, because the weights come from gradient descent."""
    answer = encore("theory", fixed_ratings, "--json").json
    check_golden("theory", answer, {"*encore_version": ANY, "*": SOLVED})
