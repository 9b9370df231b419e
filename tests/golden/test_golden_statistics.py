"""Golden: `encore analyze` and `encore weights` on a fixed ratings file."""

from __future__ import annotations

import re

import pytest

from tests.golden.command_line import encore
from tests.golden.same import ANY, SOLVED, check_golden

pytestmark = pytest.mark.services

SCHEMES = ("encore", "uniform", "random", "top-k", "random-k", "inverse-sd")
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
COMPARED = {
    "*encore_version": ANY,
    "*params.scale": SOLVED * 10,
    "*weights.*": SOLVED,
    "*accuracy*": SOLVED,
    "*held_out*": DRAWN,
    "draws.*": DRAWN,
    "*beats_random": DRAWN,
}
#: Call and tolerances by the name of the golden file.
CALLS = {
    "analyze": ("analyze", ANALYSIS),
    "analyze-by-source": ("analyze --by-source", ANALYSIS),
    **{f"weights-{scheme}": (f"weights --scheme {scheme}", WEIGHTS) for scheme in SCHEMES},
    "weights-single": ("weights --scheme single --rule be-kind", WEIGHTS),
    "weights-bradley-terry": ("weights --scheme bradley-terry", LEARNT),
    "weights-with-tau-0.5": ("weights --tau 0.5", WEIGHTS),
    "weights-with-scheme-top-k-k-3": ("weights --scheme top-k --k 3", WEIGHTS),
    "weights-sweep": ("weights --sweep", {"*encore_version": ANY}),
    "weights-compare": ("weights --compare", COMPARED),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_json_of_a_command(fixed_ratings, name):
    call, tolerances = CALLS[name]
    answer = encore(*call.split(), fixed_ratings, "--json").json
    # Other keys hold and compare the figures in the sentences of verdicts.
    for verdict in answer.get("verdicts", ()):
        verdict["reason"] = re.sub(r"[-+−]?\d\.\d+", "#", verdict["reason"])
    check_golden(name, answer, tolerances)


def test_the_theorem_on_ratings(fixed_ratings):
    """All floats agree to `SOLVED`, because the weights come from gradient descent."""
    answer = encore("paper", fixed_ratings, "--json").json
    theorem = {name: answer[name] for name in ("theorem", "theorem_on_ratings")}
    check_golden("theory", theorem, {"*": SOLVED})
