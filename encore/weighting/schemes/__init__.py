"""Weighting schemes, one per module."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from encore.core.errors import InputError

if TYPE_CHECKING:
    from encore.weighting.scheme import WeightingScheme

#: Schemes that get a row in a benchmark's table by default. They need nothing but ratings of pairs.
SCHEMES_OF_RATINGS = (
    "encore",
    "uniform",
    "random",
    "single",
    "top-k",
    "random-k",
    "inverse-sd",
    "bradley-terry",
)
#: Names on the command line. Each is the name of a module with a ``SCHEME``, imported when needed.
SCHEMES = (*SCHEMES_OF_RATINGS, "one-minus-entropy", "shrunk", "agreement", "consensus")


def load_scheme(name: str) -> WeightingScheme:
    """Return the weighting scheme of this name.

    Raises:
        InputError: There is no scheme of this name.
    """
    if name not in SCHEMES:
        raise InputError(
            f"weighting scheme {name!r}: there is none of this name; expected one of "
            f"{', '.join(SCHEMES)}"
        )
    scheme: WeightingScheme = import_module(f"{__name__}.{name.replace('-', '_')}").SCHEME
    return scheme
