"""Under which licence the texts of a source stand, as far as its origin tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from encore.data.pairs import Origin, PairsManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Licence:
    """A licence: its identifier on the Hugging Face hub, and what to say about it."""

    identifier: str
    note: str


_NON_COMMERCIAL = "CC BY-NC 4.0: no commercial use"
#: Of the repositories that ENCORE knows by name, as their cards say.
_OF_REPOSITORY: Mapping[str, Licence] = {
    "Anthropic/hh-rlhf": Licence(identifier="mit", note="MIT"),
    "PKU-Alignment/PKU-SafeRLHF": Licence(identifier="cc-by-nc-4.0", note=_NON_COMMERCIAL),
    "PKU-Alignment/PKU-SafeRLHF-10K": Licence(identifier="cc-by-nc-4.0", note=_NON_COMMERCIAL),
    "PKU-Alignment/PKU-SafeRLHF-30K": Licence(identifier="cc-by-nc-4.0", note=_NON_COMMERCIAL),
    "RLHFlow/HH-RLHF-Harmless-and-RedTeam-standard": Licence(
        identifier="mit", note="derived from Anthropic/hh-rlhf, MIT"
    ),
    "RLHFlow/PKU-SafeRLHF-30K-standard": Licence(
        identifier="cc-by-nc-4.0",
        note=f"derived from PKU-Alignment/PKU-SafeRLHF-30K, {_NON_COMMERCIAL}",
    ),
}
_SYNTHETIC = Licence(
    identifier="other", note="synthetic: the terms of whoever made it (ENCORE's demo: Apache-2.0)"
)


def licences_of(source: PairsManifest) -> tuple[Licence, ...]:
    """The licence of each origin of a source, in order; one for a synthetic source."""
    if source.synthetic:
        return (_SYNTHETIC,)
    return tuple(dict.fromkeys(_licence(origin) for origin in source.origins))


def joint_identifier(licences: Sequence[Licence]) -> str:
    """The one identifier of several licences; ``other`` where they differ."""
    identifiers = {licence.identifier for licence in licences}
    return identifiers.pop() if len(identifiers) == 1 else "other"


def _licence(origin: Origin) -> Licence:
    if origin.kind == "hub" and origin.name in _OF_REPOSITORY:
        return _OF_REPOSITORY[origin.name]
    where = "data set" if origin.kind == "hub" else "local file"
    return Licence(
        identifier="unknown",
        note=f"not known ({where} {origin.name}): state it before you pass this on",
    )
