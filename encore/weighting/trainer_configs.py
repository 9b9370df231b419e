"""Pieces of trainers' configurations with a study's rules and weights (`encore weights --for`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from encore.core.errors import InputError
from encore.weighting.preference_head import PREFERENCE_HEAD, rule_heads

TrainerName = Literal["trl", "verl", "openrlhf", "nemo-rl", "verifiers", "swift"]

#: Rule ids that are the same in quotes of Python, TOML, YAML, Hydra's overrides and a shell.
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]*", re.ASCII)
_URL = "http://127.0.0.1:5000"
_SERVE = "encore serve MODEL --weights weights.json (encore weights STUDY --json > weights.json)"
#: The end of a list in Python: a rule that the server only watches has the weight 0 there.
_IN_REWARD = "rule.__name__] * (w != 0) for rule, w in zip(rules, rules.weights)]"
_SUM = "w: the reward is the sum of w × score, as encore serve composes it."
_GDPO = (
    "w × sd: for a trainer that divides each rule by its standard deviation (GDPO). A rule then "
    "moves the advantage as much as it moves the composed reward; sd is that of the ratings of a "
    "pair, chosen less rejected."
)
#: Answers of verifiers' rubric judge, worst first: the levels of a rating.
_LEVELS = [f"{level / 10:.1f}" for level in range(11)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerWeights:
    """Rules and weights for a trainer.

    Attributes:
        label: Name of the scheme with its parameters.
        weights: Weight of each rule, by rule id.
        effective_weights: The weight times the standard deviation of a pair's margin, by rule id.
        texts: Text of each rule, by rule id; empty if the ratings do not come with their rules.
    """

    label: str
    weights: Mapping[str, float]
    effective_weights: Mapping[str, float | None]
    texts: Mapping[str, str]

    @property
    def gdpo_weights(self) -> dict[str, float]:
        """Return the effective weights.

        Raises:
            InputError: A rule has too few pairs for a standard deviation.
        """
        for rule_id, weight in self.effective_weights.items():
            if weight is None:
                raise InputError(
                    f"rule {rule_id}: fewer than two pairs have both ratings, so the standard "
                    "deviation is not known; rate more pairs"
                )
        return {rule_id: weight or 0.0 for rule_id, weight in self.effective_weights.items()}


def trainer_config(trainer: TrainerName, rules: TrainerWeights) -> str:
    """Return the piece of a trainer's configuration with rules and weights, and which these are.

    Args:
        trainer: Name of the trainer.
        rules: The rules with their weights and texts.

    Raises:
        InputError: A rule's id would be read as something else, its text or its standard deviation
            is not known.
    """
    for rule_id in rules.weights:
        if not _PLAIN_ID.fullmatch(rule_id) or (trainer == "verl" and rule_id == "score"):
            raise InputError(
                f"rule {rule_id!r}: configurations of {trainer} would read this name as something "
                "else; expected letters, digits, spaces, '-', '_' and '.', the first a letter or "
                "a digit, and for verl not 'score': rename the rule"
            )
    title = f"{len(rule_heads([*rules.weights]))} rules by scheme {rules.label}, for {trainer}."
    lines = [f"# {title}", *_WRITERS[trainer](rules)]
    return "\n".join(lines) + "\n"


def _trl(rules: TrainerWeights) -> list[str]:
    return [
        f"# Server: {_SERVE}",
        "from encore.rewards import rule_rewards",
        "",
        f'rules = rule_rewards("{_URL}")  # reward_funcs=rules; they are in the order of the heads',
        "",
        "# For multi_objective_aggregation='sum_then_normalize', TRL's default.",
        f"# {_SUM}",
        f"weights = {json.dumps(rules.weights, indent=4)}",
        f"reward_weights = [weights[{_IN_REWARD}",
        "",
        "# For multi_objective_aggregation='normalize_then_sum'.",
        f"# {_GDPO}",
        f"gdpo_weights = {json.dumps(rules.gdpo_weights, indent=4)}",
        f"gdpo_reward_weights = [gdpo_weights[{_IN_REWARD}",
    ]


def _verl(rules: TrainerWeights) -> list[str]:
    keys = ",".join(f"'{rule_id}'" for rule_id in rules.gdpo_weights)
    weights = ",".join(map(_number, rules.gdpo_weights.values()))
    path = "reward.custom_reward_function"
    return [
        f"# Server: {_SERVE}",
        "# The data's column extra_info must have the prompt.",
        f"# GRPO: 'score' is what the server composes. {_SUM}",
        f"{path}.path=pkg://encore.rewards.for_verl {path}.name=compute_score \\",
        f"  \"+{path}.reward_kwargs.url='{_URL}'\"",
        f"# GDPO, in addition: {_GDPO}",
        "algorithm.adv_estimator=gdpo reward.reward_manager.name=gdpo \\",
        f'  "+algorithm.gdpo_reward_keys=[{keys}]" \\',
        f'  "+algorithm.gdpo_reward_weights=[{weights}]"',
    ]


def _openrlhf(rules: TrainerWeights) -> list[str]:
    return [
        "# OpenRLHF has no weights of rules: the server composes the reward by those of its",
        f"# --weights. Server: {_SERVE}",
        f"# {_SUM}",
        *(f"#   {rule_id}: {weight}" for rule_id, weight in rules.weights.items()),
        f"--reward.remote_url {_URL}/get_reward",
    ]


def _nemo_rl(rules: TrainerWeights) -> list[str]:
    ordered = dict(sorted(rules.gdpo_weights.items()))
    return [
        f"# Server: {_SERVE}; /verify is NeMo Gym's.",
        f"# {_GDPO}",
        "# NeMo-RL reads the weights in alphabetical order of the rules:",
        *(f"#   {rule_id}" for rule_id in ordered),
        "grpo:",
        "  adv_estimator:",
        '    name: "gdpo"',
        "    normalize_rewards: true",
        "    use_leave_one_out_baseline: false",
        f"    reward_weights: [{', '.join(map(_number, ordered.values()))}]",
    ]


def _verifiers(rules: TrainerWeights) -> list[str]:
    if PREFERENCE_HEAD in rules.weights:
        raise InputError(
            "verifiers' rubric asks a language model about each rule, and head 0 is none; leave "
            "--model out, or use `encore serve`"
        )
    if missing := [rule_id for rule_id in rules.weights if rule_id not in rules.texts]:
        raise InputError(
            f"the text of rule {missing[0]} is not known: only a study, or a run of `encore rate`, "
            "has the texts that verifiers' rubric needs"
        )
    lines = [
        "# A rubric for the judge `rubric`, which asks a language model, not encore serve:",
        "#   [[env.taskset.task.judges]]",
        '#   id = "rubric"',
        '#   path = "rubric.toml"',
        "# w: its score is the sum of w × answer over the sum of w.",
    ]
    for rule_id, weight in rules.weights.items():
        lines += [
            "",
            "[[criteria]]",
            f'name = "{rule_id}"',
            f"text = {json.dumps(rules.texts[rule_id], ensure_ascii=False)}",
            f"weight = {_number(weight)}",
            f"choices = {json.dumps(_LEVELS)}",
        ]
    return lines


def _swift(rules: TrainerWeights) -> list[str]:
    names = " ".join(f"'{rule_id}'" for rule_id in rules.weights)
    return [
        f"# Server: {_SERVE}",
        "# plugin.py has two lines:",
        "#   from encore.rewards.for_swift import register",
        f'#   register("{_URL}")',
        f"--external_plugins plugin.py --reward_funcs {names}",
        f"# {_SUM}",
        f"--reward_weights {' '.join(map(_number, rules.weights.values()))}",
        f"# With --scale_rewards gdpo these instead. {_GDPO}",
        f"--reward_weights {' '.join(map(_number, rules.gdpo_weights.values()))}",
    ]


def _number(weight: float) -> str:
    """Return a weight that YAML reads as a number too: 1e-05 without a point is a text there."""
    digits, e, exponent = repr(float(weight)).partition("e")
    return digits + ".0" * (bool(e) and "." not in digits) + e + exponent


_WRITERS: Mapping[TrainerName, Callable[[TrainerWeights], Sequence[str]]] = {
    "trl": _trl,
    "verl": _verl,
    "openrlhf": _openrlhf,
    "nemo-rl": _nemo_rl,
    "verifiers": _verifiers,
    "swift": _swift,
}
