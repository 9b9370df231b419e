"""The wording of the rules that labels name: of a rule set, or of Rule Based Rewards' YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from encore.core.errors import EncoreError, InputError
from encore.data.records import Rule, RuleSet
from encore.data.rule_sets import load_rule_set, rules_digest

#: A proposition is a question; the paper's prompt asks for a score on a criterion.
_RATING_RULE = (
    "{question}\n\nA score of 1 means that the answer is yes, a score of 0 that it is no."
)


def rules_of_labels(name_or_path: str, rule_ids: Iterable[str]) -> RuleSet:
    """The rules that labels name, in the order of the set.

    Args:
        name_or_path: A rule set, or OpenAI's file of propositions (``.yaml``).
        rule_ids: Those that the labels name.

    Raises:
        InputError: No such set; a rule that it does not have.
    """
    wanted = set(rule_ids)
    is_yaml = Path(name_or_path).suffix in (".yaml", ".yml")
    known = _propositions(Path(name_or_path)) if is_yaml else load_rule_set(name_or_path).rules
    if lacking := sorted(wanted - {rule.rule_id for rule in known}):
        raise InputError(
            f"rules {name_or_path}: no rule {lacking[0]!r}, which the labels name "
            f"({len(lacking)} of {len(wanted)} are lacking); give their wording as --rules"
        )
    rules = tuple(rule for rule in known if rule.rule_id in wanted)
    digest = rules_digest([dataclasses.asdict(rule) for rule in rules])
    return RuleSet(name=Path(name_or_path).name, rules=rules, digest=digest)


def _propositions(path: Path) -> tuple[Rule, ...]:
    if find_spec("yaml") is None:
        raise EncoreError(f"{path}: reading YAML needs PyYAML: pip install 'encore-reward[rules]'")
    import yaml

    try:
        file: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        known = file["simple_propositions"].items()
        questions = {str(name): str(one["prompt"]) for name, one in known}
    except (OSError, yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"rules {path}: cannot be read as propositions of Rule Based Rewards "
            f"({type(error).__name__}: {' '.join(str(error).split())[:100]}); expected "
            "simple_propositions, each with a prompt"
        ) from error
    return tuple(
        Rule(
            rule_id=name,
            title=name.replace("_", " "),
            description=question,
            preference_rule="",
            rating_rule=_RATING_RULE.format(question=question),
        )
        for name, question in questions.items()
    )
