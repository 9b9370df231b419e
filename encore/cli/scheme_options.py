"""Options of weighting schemes, which several commands have: what a scheme has no use for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from encore.terminal import warn

#: In words.
_NOUNS = {
    "tau": "temperature",
    "seed": "seed",
    "k": "number of rules to select",
    "rule": "rule to name",
}


def warn_of_unused(given: Mapping[str, object], *, used: Collection[str], who: str) -> None:
    """Warn of every option that was given and changes nothing.

    Args:
        given: Values by option; None: not given.
        used: The options that are read.
        who: What does not read the others.
    """
    for name, value in given.items():
        if value is not None and name not in used:
            shown = f"{value:g}" if isinstance(value, float) else value
            warn(f"{who} has no {_NOUNS[name]}: --{name} {shown} changes nothing")
