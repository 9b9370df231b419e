"""Read the wording of the rules that labels name: a rule set, or Rule Based Rewards' YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from encore.core.errors import InputError
from encore.core.extras import require_packages
from encore.data.records import Rule, RuleSet
from encore.data.rule_sets import load_rule_set, rules_digest

#: A proposition is a question; the paper's prompt asks for a score on a criterion.
_RATING_RULE = (
    "{question}\n\nA score of 1 means that the answer is yes, a score of 0 that it is no."
)


def rules_of_labels(name_or_path: str, rule_ids: Iterable[str]) -> RuleSet:
    """Return the rules that labels name, in the order of the set.

    Args:
        name_or_path: Name or path of a rule set, or OpenAI's file of propositions (``.yaml``).
        rule_ids: Ids of the rules that the labels name.

    Raises:
        InputError: The rule set does not exist, or does not have one of the rules.
    """
    labelled_ids = set(rule_ids)
    is_yaml = Path(name_or_path).suffix in (".yaml", ".yml")
    all_rules = _propositions(Path(name_or_path)) if is_yaml else load_rule_set(name_or_path).rules
    if missing_ids := sorted(labelled_ids - {rule.rule_id for rule in all_rules}):
        raise InputError(
            f"rules {name_or_path}: no rule {missing_ids[0]!r}, which the labels name "
            f"({len(missing_ids)} of {len(labelled_ids)} are missing); give their wording as "
            "--rules"
        )
    rules = tuple(rule for rule in all_rules if rule.rule_id in labelled_ids)
    digest = rules_digest([dataclasses.asdict(rule) for rule in rules])
    return RuleSet(name=Path(name_or_path).name, rules=rules, digest=digest)


def _propositions(path: Path) -> tuple[Rule, ...]:
    """Read a file of propositions as rules. Raise InputError if it has another format."""
    require_packages("yaml", work=f"{path}: reading YAML")
    import yaml

    try:
        file: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        questions = {
            str(name): str(proposition["prompt"])
            for name, proposition in file["simple_propositions"].items()
        }
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
