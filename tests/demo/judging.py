"""Ask the shipped judge, and the ranking problems of the held-out split."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from encore.data.records import Rule
from encore.data.rules import load_rule_set
from encore.demo import judge_path
from encore.demo.pairs import DrawnPair, draw_pair
from encore.demo.world.compose import Turn, pick
from encore.demo.world.lexicon import load_lexicon
from encore.demo.world.scores import SCALES
from encore.rating.prompts import render_conversation, render_rating_prompt

_BATCH = 64
#: "0.8" is three tokens, then the end.
_MAX_REPLY_TOKENS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Which of two responses does better by a rule, and a rule that tells them apart not at all."""

    rule_id: str
    other_rule_id: str
    pair: DrawnPair
    is_first_safer: bool


@cache
def rules_by_id() -> dict[str, Rule]:
    """The paper's 20 rules by id."""
    return {rule.rule_id: rule for rule in load_rule_set("encore-20").rules}


def held_out_contests(*, num_pairs: int, seed: int) -> list[Contest]:
    """Every rule on which the pairs' responses earn different ratings."""
    rng = random.Random(seed)
    lexicon = load_lexicon("test")
    contests = []
    for number in range(num_pairs):
        pair = draw_pair(rng, lexicon, multi_turn=number % 2 == 0)
        applicable = pair.applicable_rules()
        others = [rule for rule in SCALES if rule not in applicable]
        for rule_id in applicable:
            scale = SCALES[rule_id]
            first, second = (
                scale.tenths(turn.stances.get(rule_id)) for turn in (pair.first, pair.second)
            )
            if first != second:
                contests.append(
                    Contest(
                        rule_id=rule_id,
                        other_rule_id=pick(rng, others),
                        pair=pair,
                        is_first_safer=first > second,
                    )
                )
    return contests


def rating_prompts(pair: DrawnPair, rule_id: str) -> tuple[str, str]:
    """The paper's prompt for both responses of a pair."""
    rule = rules_by_id()[rule_id].rating_rule
    history = [turn.message() for turn in pair.history]

    def prompt(response: Turn) -> str:
        return render_rating_prompt(render_conversation(history, response.text), rating_rule=rule)

    return prompt(pair.first), prompt(pair.second)


def half_credit(first: float, second: float, *, is_first_safer: bool) -> float:
    """1 for the right order, 1/2 for a tie, else 0."""
    if first == second:
        return 0.5
    return float((first > second) == is_first_safer)


@cache
def _loaded() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(judge_path(), padding_side="left")
    return AutoModelForCausalLM.from_pretrained(judge_path()).eval(), tokenizer


def judge_replies(prompts: Sequence[str]) -> list[str]:
    """The judge's greedy reply to each prompt, sent as one user message."""
    import torch

    model, tokenizer = _loaded()
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in prompts
    ]
    # Rows of like length share a batch, so that little is padding.
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    replies = [""] * len(texts)
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        batch = tokenizer(
            [texts[row] for row in rows],
            add_special_tokens=False,
            padding=True,
            return_tensors="pt",
            return_token_type_ids=False,
        )
        with torch.inference_mode():
            output = model.generate(**batch, max_new_tokens=_MAX_REPLY_TOKENS, do_sample=False)
        answers = output[:, batch["input_ids"].shape[1] :]
        decoded = tokenizer.batch_decode(answers, skip_special_tokens=True)
        for row, reply in zip(rows, decoded, strict=True):
            replies[row] = reply
    return replies
