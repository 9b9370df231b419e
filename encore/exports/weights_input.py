"""Read the weights of a composed model: from a file, from a scheme on ratings, or one rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from encore.core.errors import InputError, first_problem
from encore.model.held_out_scores import HeldOutScores
from encore.warehouse import open_ratings
from encore.weighting.head_mix import mix_heads
from encore.weighting.preference_head import PREFERENCE_HEAD, Beta, has_preference_head
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.weigh import weigh_rules
from encore.weighting.weight_vector import head_weights
from encore.weighting.weights_options import WeightChoice

if TYPE_CHECKING:
    from encore.model.open_model import OpenedModel

#: Flags of `encore.weighting.weight_vector.Provenance`, in words.
_ANSWERS_BY_FLAG = {
    "uses_labels": "people's preferences",
    "uses_benchmark": "a benchmark's answers",
}


class Composition(BaseModel, frozen=True):
    """Weights of a model's heads and their origin. Further keys of a file are ignored.

    Attributes:
        weights: Weight of each head, by head id; finite numbers, not all 0.
        scheme: Weighting scheme that made the weights; ``single`` for one rule alone, ``given``
            for a file that does not say; None if it is not known.
        params: Parameters of the scheme, by name; of a composition with head 0 also ``beta`` and
            the two standard deviations.
        entropy_nats: Entropy of each rule's ratings in nats; empty if it is not known.
        provenance: Origin of the weights, as `encore weights --json` prints it.
        note: Sentence on a beta that was chosen on labels; None if there is none.
    """

    weights: dict[str, float]
    scheme: str | None = None
    params: dict[str, float | str] = Field(default_factory=dict)
    entropy_nats: dict[str, float] = Field(default_factory=dict)
    provenance: dict[str, Any] | None = None
    note: str | None = None

    @property
    def num_shards(self) -> int:
        """Return the number of shards in the rating run's plan; 0 without a plan."""
        return int((self.provenance or {}).get("num_shards") or 0)

    @property
    def num_missing_shards(self) -> int:
        """Return the number of shards that were missing when the weights were made."""
        return int((self.provenance or {}).get("num_missing_shards") or 0)

    @property
    def learnt_from(self) -> tuple[str, ...]:
        """Return the kinds of answers that the weights were fitted to, in words."""
        flags = self.provenance or {}
        return tuple(text for flag, text in _ANSWERS_BY_FLAG.items() if flags.get(flag) is True)


def read_weights(
    path: Path,
    *,
    head_ids: Sequence[str],
    held_out: HeldOutScores | None = None,
    beta: Beta | None = None,
) -> Composition:
    """Read weights from JSON: the output of `encore weights --json`, or ``{"rule": weight, …}``.

    Negative weights are allowed: folding is exact for every linear composition.

    Args:
        path: JSON file with the weights.
        head_ids: Ids of the model's heads, in head order.
        held_out: Scores of the model's held-out pairs; see `with_head_0`.
        beta: Factor of the rules beside head 0; see `with_head_0`.

    Raises:
        InputError: There is no such file, it is not such JSON, it has weights for other rules than
            the heads, or its rules cannot be composed with head 0.
    """
    try:
        composition = _composition(json.loads(path.read_text(encoding="utf-8")))
        return with_head_0(composition, head_ids=head_ids, held_out=held_out, beta=beta)
    except (OSError, ValueError, TypeError, LookupError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            problem = first_problem(error)
            reason = f"{problem.path}: {problem.message}"
        raise InputError(
            f"weights {path}: cannot be used ({reason}); expected the output of `encore weights "
            '--json`, or {"rule": weight, …}'
        ) from error


def _composition(content: Any) -> Composition:
    """Return the weights of a JSON document in either form."""
    if not isinstance(content, dict) or "rule_ids" not in content:
        content = {"weights": content}
    else:
        rule_ids, numbers = content["rule_ids"], content["weights"]
        content |= {"weights": dict(zip(rule_ids, numbers, strict=True))}
        if len(content["weights"]) != len(rule_ids):
            raise InputError("a rule is there twice")
    return Composition.model_validate({"scheme": "given"} | content, strict=True)


def with_head_0(
    composition: Composition,
    *,
    head_ids: Sequence[str],
    held_out: HeldOutScores | None,
    beta: Beta | None = None,
) -> Composition:
    """Return the composition with a weight for every head of the model.

    Weights of all heads are taken as they are. To weights of rules alone, head 0 is added if the
    model has one (`encore.weighting.head_mix.mix_heads`).

    Args:
        composition: Weights of all heads, or of all rules.
        head_ids: Ids of the model's heads, in head order.
        held_out: Scores of the model's held-out pairs.
        beta: Factor of the rules beside head 0; None: 1 if the model has head 0.

    Raises:
        InputError: The weights are for other rules than the heads, beta does not belong to them, or
            `mix_heads` refuses.
    """
    is_complete = not has_preference_head(head_ids) or PREFERENCE_HEAD in composition.weights
    if beta is None and is_complete:
        head_weights(composition.weights, head_ids=head_ids)
        return composition
    if PREFERENCE_HEAD in composition.weights:
        raise InputError(
            f"--beta {beta}: the weights have one of head 0 ({PREFERENCE_HEAD!r}) already and are "
            "taken as they are; give weights of the rules alone, or leave --beta out"
        )
    mix = mix_heads(composition.weights, held_out, head_ids=head_ids, beta=beta)
    deviations = {"sd_preference": mix.sd_preference, "sd_rules": mix.sd_rules}
    changes: dict[str, Any] = {
        "weights": dict(mix.weights),
        "scheme": composition.scheme or "given",
        "params": composition.params | {"beta": mix.beta} | deviations,
    }
    if mix.uses_labels:
        changes["provenance"] = (composition.provenance or {}) | {"uses_labels": True}
        changes["note"] = mix.note
    return composition.model_copy(update=changes)


def chosen_weights(
    choice: WeightChoice, *, head_ids: Sequence[str], held_out: HeldOutScores | None = None
) -> Composition | None:
    """Return the weights that the options name for a model's heads; None if they name none.

    Args:
        choice: Options that name the weights.
        head_ids: Ids of the model's heads, in head order.
        held_out: Scores of the model's held-out pairs, which composing with head 0 needs.

    Raises:
        InputError: The weights cannot be read, are for other rules than the heads, or cannot be
            composed with head 0.
    """
    if choice.weights is not None:
        return read_weights(choice.weights, head_ids=head_ids, held_out=held_out, beta=choice.beta)
    if choice.rule is not None:
        return one_rule(choice.rule, head_ids=head_ids)
    if choice.scheme is None or choice.ratings is None:
        return None
    options = SchemeOptions(**choice.model_dump(include={"tau", "seed", "k"}, exclude_none=True))
    ratings = open_ratings(
        choice.ratings,
        run=choice.run,
        judge=choice.judge,
        scale=choice.scale,
        rule_columns=choice.rule_columns,
    )
    weighed = weigh_rules(ratings, scheme=choice.scheme, options=options)
    composition = _composition(weighed.as_dict())
    return with_head_0(composition, head_ids=head_ids, held_out=held_out, beta=choice.beta)


def one_reward(choice: WeightChoice, *, model: OpenedModel) -> Composition:
    """Return the weights that the options name; a model of one head needs none.

    Raises:
        InputError: As for `chosen_weights`, or a model of several heads has no weights.
    """
    head_ids = model.model.head_ids
    composition = chosen_weights(choice, head_ids=head_ids, held_out=model.held_out)
    if composition is not None:
        return composition
    if len(head_ids) > 1:
        raise InputError(
            f"the model has {len(head_ids)} heads and a reward is one number; give their "
            "weights: --weights FILE, as `encore weights --json` writes it, --rule or --scheme"
        )
    return one_rule(head_ids[0], head_ids=head_ids)


def one_rule(rule: str, *, head_ids: Sequence[str]) -> Composition:
    """Return a composition with all weight on one rule.

    Raises:
        InputError: The model has no such head.
    """
    if rule not in head_ids:
        raise InputError(
            f"--rule {rule}: the model has no such head; expected one of {', '.join(head_ids)}"
        )
    weights = {head_id: float(head_id == rule) for head_id in head_ids}
    return Composition(weights=weights, scheme="single", params={"rule": rule})
