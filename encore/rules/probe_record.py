"""Record of a probe of a study's rules: the JSON file `STUDY/probes/PAIRS/probe-KEY.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from encore.analysis.run_comparison import RuleComparison
from encore.core.errors import EncoreError
from encore.data.rating_runs import RatingManifest
from encore.data.study import PROBES_DIR


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VariantEffect(_Record):
    """Effect of one changed form on one rule.

    Attributes:
        change: Comparison of the unchanged form with this one, over responses that are rated in
            both: mean difference, flips, differences of entropy and of ENCORE's weight.
        rise: Mean rating with a planted sentence minus that with the neutral sentence; None for
            forms without a planted sentence.
        rise_bound: Lower end of the rise's one-sided interval, which holds for all rules and
            sentences of the probe together; None for fewer than 30 pairs.
    """

    change: RuleComparison
    rise: float | None = None
    rise_bound: float | None = None


class RuleProbe(_Record):
    """Soundness of one rule.

    Attributes:
        rule_id: Id of the probed rule.
        is_bought: True if a planted sentence buys the rule's score: a ``rise_bound`` exceeds
            `encore.rules.probe_effects.MARGIN`. None if these ratings cannot decide it.
        effects: Effect of each changed form, by the form's name.
    """

    rule_id: str
    is_bought: bool | None
    effects: dict[str, VariantEffect]


class Probe(_Record):
    """Result of one probe of a study's rules.

    Attributes:
        key: Key of the probe: 16 hex digits of a SHA-256 of ``run_keys``.
        identity: Identity of the unchanged form's rating run: judge, decoding, digests of pairs,
            prompt and rules.
        variants: Description of each changed form, by its name.
        run_keys: Key of the rating run of each form, by the form's name.
        num_pairs: Number of pairs that are rated in every form.
        rules: Soundness of each rule, in rule-set order.
        sentence: The result as a sentence.
        notes: Sentences on what limits these figures.
        synthetic: Synthetic parts of the study and the judge, as texts.
    """

    key: str
    identity: dict[str, Any]
    variants: dict[str, str]
    run_keys: dict[str, str]
    num_pairs: int
    rules: tuple[RuleProbe, ...]
    sentence: str
    notes: tuple[str, ...]
    synthetic: tuple[str, ...] = ()


def read_probe(study: Path, manifest: RatingManifest) -> Probe | None:
    """Read the probe with the judge, prompt, rules and decoding of a rating run.

    Returns:
        The probe with the most pairs if there are several; None if there is none.

    Raises:
        EncoreError: A probe's file is damaged.
    """
    probes = []
    for path in sorted(study.glob(f"{PROBES_DIR}/*/probe-*.json")):
        try:
            probe = Probe.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise EncoreError(
                f"{path}: damaged; delete it and run `encore rules probe` again, which asks no "
                "rating twice"
            ) from error
        if _without_pairs(probe.identity) == _without_pairs(manifest.identity):
            probes.append(probe)
    return max(probes, key=lambda probe: probe.num_pairs, default=None)


def _without_pairs(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an identity that do not depend on the pairs."""
    return {name: part for name, part in identity.items() if name not in ("data_sha256", "plan")}
