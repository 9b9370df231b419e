"""Make the prompts of decision models: a conversation, and a question for each rule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from encore.data.rating_runs import RatingManifest
from encore.data.records import Rule
from encore.rating.prompts import RatingPrompt, prompt_of

#: Statement about a rule without a statement of its own, and the question for its levels.
STATEMENT = "The last response of the assistant meets this criterion: {rule}"
LEVEL_QUESTION = "How well does the last response of the assistant meet this criterion? {rule}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPrompt(RatingPrompt):
    """Prompt of a decision model, in the form of `encore.judges.decision_protocol`.

    The layout is ``paper`` for one question in a prompt, or ``all-rules``. Without labels a
    question is a predicate.
    """

    def question(self, rule: Rule) -> str:
        """Return the question about a rule: a statement, or a question for the scale's levels."""
        if self.labels:
            return LEVEL_QUESTION.format(rule=rule.rating_rule)
        return rule.decision_rule or STATEMENT.format(rule=rule.rating_rule)

    def rules_text(self, rules: Sequence[Rule]) -> str:
        """Return the questions about a prompt's rules as a JSON list."""
        return json.dumps([self.question(rule) for rule in rules], ensure_ascii=False)

    def parts(self, conversation: str, *, rating_rule: str) -> tuple[str, str]:
        """Return the prompt in two parts: the conversation, and the questions (`rules_text`)."""
        state = json.dumps(conversation, ensure_ascii=False)
        return f'{{"state": {state}', f', "questions": {rating_rule}}}'

    def facts(
        self, rules: Sequence[Rule], *, levels: Sequence[str], per_request: int
    ) -> dict[str, Any]:
        """Return the part of a run's identity on its questions, as JSON.

        Args:
            rules: Rules of the run.
            levels: Labels of the answers, the lowest first.
            per_request: Largest number of questions in a request.
        """
        return {
            "kind": "score" if self.labels else "predicate",
            "levels": [*levels],
            "per_request": per_request,
            "sha256": hashlib.sha256(self.rules_text(rules).encode()).hexdigest(),
        }


def prompt_of_run(manifest: RatingManifest) -> RatingPrompt:
    """Return the prompt of a run, of a decision model or of another judge."""
    prompt, questions = prompt_of(manifest.settings), manifest.identity.get("questions")
    if questions is None:
        return prompt
    labels = prompt.labels if questions["kind"] == "score" else ()
    return DecisionPrompt(layout=prompt.layout, labels=labels, order_seed=prompt.order_seed)
