"""What a probe found: one JSON file, `STUDY/probes/PAIRS/probe-KEY.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from encore.core.errors import EncoreError
from encore.data.rating_runs import RatingManifest
from encore.data.study import PROBES_DIR
from encore.weighting.run_comparison import RuleComparison


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VariantEffect(_Record):
    """One rule in one changed form.

    Attributes:
        change: From the unchanged form to this one, over the responses that have a rating in both:
            mean difference, flips, differences of entropy and of ENCORE's weight, and others.
        rise: Of a planted sentence: its mean rating minus that of the neutral sentence.
        rise_bound: Lower end of the one-sided interval of the rise that holds for all rules and
            sentences of the probe together; None for fewer than 30 pairs.
    """

    change: RuleComparison
    rise: float | None = None
    rise_bound: float | None = None


class RuleProbe(_Record):
    """How sound one rule is.

    Attributes:
        rule_id: The rule.
        is_bought: Whether a planted sentence buys its score: one ``rise_bound`` exceeds
            `encore.rules.soundness.MARGIN`. None: these ratings cannot say.
        effects: Of each changed form, by its name.
    """

    rule_id: str
    is_bought: bool | None
    effects: dict[str, VariantEffect]


class Probe(_Record):
    """One probe of a study's rules.

    Attributes:
        key: Names the probe: 16 hex digits of a SHA-256 of ``run_keys``.
        identity: Of the unchanged form's rating run: judge, decoding, digests of pairs, prompt and
            rules.
        variants: What each changed form is, by name.
        run_keys: The rating run of each form, by name.
        num_pairs: Pairs that are rated in every form.
        rules: One for each rule, in order.
        sentence: The result in words.
        notes: Plain sentences on what limits these figures.
        synthetic: What of the study or the judge is synthetic, in words.
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
    """The probe of a rating run's rules by its judge, asked as in the run; None without any.

    Of several the one of most pairs counts.

    Raises:
        EncoreError: A damaged file.
    """
    found = []
    for path in sorted(study.glob(f"{PROBES_DIR}/*/probe-*.json")):
        try:
            probe = Probe.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise EncoreError(
                f"{path}: damaged; delete it and run `encore rules probe` again, which asks no "
                "rating twice"
            ) from error
        if _how(probe.identity) == _how(manifest.identity):
            found.append(probe)
    return max(found, key=lambda one: one.num_pairs, default=None)


def _how(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Judge, prompt, rules and decoding: all but the pairs."""
    return {name: one for name, one in identity.items() if name not in ("data_sha256", "plan")}
