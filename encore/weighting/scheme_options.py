"""Parameters of weighting schemes: tau, seed, k and rule, each declared once."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import ValidationError

from encore.analysis.answer_options import DEFAULT_TAU
from encore.core.config import StageConfig, option
from encore.core.errors import InputError, first_problem

DEFAULT_K = 5

# The options of schemes, declared once. Configs that include one say its default and its group.
tau_option = partial(
    option,
    gt=0,
    allow_inf_nan=False,
    source="ENCORE, section 4",
    help="Temperature of schemes encore and consensus. A large one approaches uniform weights, a "
    "small one the rule of lowest entropy, or the one that agrees most with the others. The "
    f"default, {DEFAULT_TAU:g}, is the paper's for encore.",
)
seed_option = partial(
    option,
    ge=0,
    help="Seed of schemes random and random-k, and of the folds that hold out pairs. Default: 0.",
)
k_option = partial(
    option,
    ge=1,
    help="Number of rules that schemes top-k and random-k select. The default, "
    f"{DEFAULT_K}, is that of the paper's appendix.",
)
rule_option = partial(option, None, metavar="RULE_ID", help="The rule of scheme single.")


class SchemeOptions(StageConfig):
    """Parameters of all schemes. A scheme reads those that it declares.

    Raises:
        InputError: A parameter is out of its range.
    """

    tau: float = tau_option(DEFAULT_TAU)
    seed: int = seed_option(0)
    k: int = k_option(DEFAULT_K)
    rule: str | None = rule_option()
    labels: int | None = option(None, ge=1, metavar="N")
    """Number of pairs whose labels schemes bradley-terry and shrunk learn from: the first ones by
    content hash. Default: all pairs that every rule rated."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            problem = first_problem(error)
            flag = f"--{problem.path}".replace(".", "-").replace("_", "-")
            raise InputError(f"{flag} {problem.value}: {problem.message}") from error
