"""Weighting schemes: one per file, each listed here with the module that is its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from encore.errors import InputError

if TYPE_CHECKING:
    from encore.weighting.scheme import WeightingScheme

#: Name on the command line -> module with a ``SCHEME``. Loaded when asked for.
SCHEMES = {
    "encore": "encore.weighting.encore",
    "uniform": "encore.weighting.uniform",
    "random": "encore.weighting.random",
    "single": "encore.weighting.single",
    "top-k": "encore.weighting.top_k",
    "random-k": "encore.weighting.random_k",
    "inverse-sd": "encore.weighting.inverse_sd",
    "bradley-terry": "encore.weighting.bradley_terry",
}


def load_scheme(name: str) -> WeightingScheme:
    """The weighting scheme of a name.

    Raises:
        InputError: There is none of this name.
    """
    if name not in SCHEMES:
        raise InputError(
            f"weighting scheme {name!r}: there is none of this name; expected one of "
            f"{', '.join(SCHEMES)}"
        )
    scheme: WeightingScheme = import_module(SCHEMES[name]).SCHEME
    return scheme
