"""A judge that scores all rules of a prompt at once, and whose scores depend on the position."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from encore.data.rule_sets import load_rule_set

#: Ids of the ten rules by their text.
RULE_IDS = {rule.rating_rule: rule.rule_id for rule in load_rule_set("encore-10").rules}
_CONVERSATION = re.compile(r"Conversation example:\n\n(.*?)\n\n(?:Criteria|You must)", re.DOTALL)


def base_score(prompt: str, rule_text: str) -> int:
    """Return the hundredths, from 40 to 69, of a conversation under a rule wherever it stands."""
    [conversation] = _CONVERSATION.findall(prompt)
    return 40 + hashlib.sha256(f"{conversation}{rule_text}".encode()).digest()[0] % 30


@dataclass(frozen=True)
class PlantedJudge:
    """Script of a judge; each position in the list costs so many hundredths.

    Attributes:
        per_position: Hundredths that a score loses for each rule before it in the list.
    """

    per_position: int = 0

    def __call__(self, prompt: str) -> str:
        texts = [text for text in RULE_IDS if text in prompt]
        if "Criteria for evaluation:" not in prompt:
            [text] = texts
            return f"{base_score(prompt, text) / 100:.2f}"
        listed = dict(re.findall(r"(?m)^(\d+)\. (.*)$", prompt))
        return json.dumps(
            {
                key: (base_score(prompt, text) - self.per_position * (int(key) - 1)) / 100
                for key, text in listed.items()
            }
        )
