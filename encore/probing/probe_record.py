"""What a probe found: one JSON file, `STUDY/probes/KEY/probe.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from encore.agreement import Estimate
from encore.data.study import PROBES
from encore.errors import EncoreError
from encore.files import atomic_write_bytes
from encore.rating_runs import RatingManifest

PROBE_FILE = "probe.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VariantEffect(_Record):
    """One rule in one changed form, over the responses that have a rating in both forms.

    Changes are changed minus unchanged; each figure has a 95 % interval over resampled pairs, and
    is None where it is not defined.

    Attributes:
        variant: Name of the form.
        num_ratings: Responses with a rating in both forms.
        num_pairs: Pairs whose two responses have a rating in both forms.
        num_nulls: Null ratings of the changed form.
        rating_change: Mean change of the rating.
        flip_rate: Share of ``num_pairs`` whose two responses change order; a tie has no order.
        entropy_change: Of the entropy of the ratings, in nats.
        weight_change: Of ENCORE's weight at the probe's tau.
        rise: Of a planted sentence: its mean rating minus that of the neutral sentence.
        rise_bound: Lower end of the one-sided interval of the rise that holds for all rules and
            sentences of the probe together; None for fewer than 30 pairs.
    """

    variant: str
    num_ratings: int
    num_pairs: int
    num_nulls: int
    rating_change: Estimate
    flip_rate: Estimate
    entropy_change: Estimate
    weight_change: Estimate
    rise: Estimate | None = None
    rise_bound: float | None = None


class RuleProbe(_Record):
    """How sound one rule is.

    Attributes:
        rule_id: The rule.
        num_nulls: Null ratings of the unchanged pairs.
        is_bought: Whether a planted sentence buys its score: one ``rise_bound`` exceeds the
            probe's margin. None: these ratings cannot say.
        effects: One for each form.
    """

    rule_id: str
    num_nulls: int
    is_bought: bool | None
    effects: tuple[VariantEffect, ...]

    def effect(self, variant: str) -> VariantEffect:
        """That of one form."""
        return next(one for one in self.effects if one.variant == variant)

    @property
    def rises(self) -> tuple[VariantEffect, ...]:
        """The effects of planted sentences."""
        return tuple(one for one in self.effects if one.rise is not None)


class Probe(_Record):
    """One probe of a study's rules.

    Attributes:
        key: 16 hex digits of the SHA-256 of ``identity``.
        identity: What was rated: judge, way of asking, digests of the rule sets and of all pairs.
        asked: What the rating runs' identities have in common: judge, prompt, decoding.
        rules_sha256: Digest of the study's rules.
        variants: What each changed form is, by name.
        run_keys: The rating run of each form, by name.
        num_pairs: Pairs that are rated in every form.
        seed: Of the bootstrap.
        num_draws: Resamples.
        tau: Of ENCORE's weights.
        margin: What a rise has to exceed.
        risk: That any rule is named by chance; shared by all rules and sentences (Bonferroni).
        rules: One for each rule, in order.
        sentence: The result in words.
        notes: Plain sentences on what limits these figures.
        synthetic: What of the study or the judge is synthetic, in words.
    """

    key: str
    identity: dict[str, Any]
    asked: dict[str, Any]
    rules_sha256: str
    variants: dict[str, str]
    run_keys: dict[str, str]
    num_pairs: int
    seed: int
    num_draws: int
    tau: float
    margin: float
    risk: float
    rules: tuple[RuleProbe, ...]
    sentence: str
    notes: tuple[str, ...]
    synthetic: tuple[str, ...] = ()

    @property
    def bought(self) -> tuple[str, ...]:
        """The rules whose score a planted sentence buys."""
        return tuple(rule.rule_id for rule in self.rules if rule.is_bought)

    def write(self, study: Path) -> Path:
        """Put it into the study's folder of this probe."""
        path = study / PROBES / self.key / PROBE_FILE
        atomic_write_bytes(path, f"{self.model_dump_json(indent=2)}\n".encode())
        return path


def asked_as(manifest: RatingManifest) -> dict[str, Any]:
    """How a run asks whom, whatever it asks about."""
    names = ("judge", "prompt_sha256", "decoding", "layout")
    return {name: manifest.identity[name] for name in names if name in manifest.identity}


def read_probes(study: Path) -> tuple[Probe, ...]:
    """All finished probes of a study.

    Raises:
        EncoreError: A damaged file.
    """
    return tuple(map(_read, sorted(study.glob(f"{PROBES}/*/{PROBE_FILE}"))))


def read_probe(study: Path, manifest: RatingManifest) -> Probe | None:
    """The probe of a rating run's rules by its judge, asked as in the run; None without any.

    Of several the one of most pairs counts.

    Raises:
        EncoreError: A damaged file.
    """
    rules, asked = manifest.identity["rules_sha256"], asked_as(manifest)
    found = [one for one in read_probes(study) if (one.rules_sha256, one.asked) == (rules, asked)]
    return max(found, key=lambda one: one.num_pairs, default=None)


def _read(path: Path) -> Probe:
    try:
        return Probe.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "file"
        raise EncoreError(
            f"{path}: damaged, {where}: {problem['msg']}; delete it and run `encore rules probe` "
            "again: no rating is asked twice"
        ) from error
