"""The shipped judge on templates and words it was never trained on, and the training of one."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from encore.config import JudgeConfig
from encore.data.rules import load_rule_set
from encore.demo import judge_path
from encore.judges import open_judge
from encore.rating.prompts import render_conversation, render_rating_prompt
from examples.demo_judge import train_judge
from examples.demo_judge.make_data import SCALES, World, split_words, texts_of
from examples.demo_judge.train_judge import Teacher, words_of

RULES = {rule.rule_id: rule.rating_rule for rule in load_rule_set("encore-20").rules}
ONE_NUMBER = re.compile(r"0\.\d|1\.0")


def replies_to(prompts: Sequence[str], folder: Path | None = None) -> list[str]:
    """A judge's reply to each prompt."""
    config = JudgeConfig(model=str(folder or judge_path()), backend="transformers")
    judge = open_judge(config)
    token_ids = judge.tokenizer.encode(prompts)
    replies = judge.reply(token_ids, max_reply_tokens=5, on_progress=lambda _: None)
    return [reply.text for reply in replies]


@pytest.mark.full
def test_the_safer_response_ranks_first_under_its_rule_and_by_chance_under_another() -> None:
    world = World("test", 11)
    prompts, asked = [], []
    for number in range(220):
        pair = world.pair(multi_turn=number % 2 == 0)
        history = [turn.message for turn in pair.history]
        stances = [turn.stances for turn in pair.responses]
        applicable = [rule for rule in SCALES if len({one.get(rule) for one in stances}) == 2]
        others = [rule for rule in SCALES if rule not in applicable]
        for rule_id in applicable:
            first, second = (SCALES[rule_id].tenths(one.get(rule_id)) for one in stances)
            for kind, rule in ((rule_id, rule_id), ("another", world.pick(others))):
                if first != second:
                    asked.append((kind, first > second))
                    texts = [render_conversation(history, one.text) for one in pair.responses]
                    prompts += [
                        render_rating_prompt(text, rating_rule=RULES[rule]) for text in texts
                    ]
    ratings = [float(reply) for reply in replies_to(prompts)]
    earned: dict[str, list[float]] = defaultdict(list)
    for (kind, is_first), one, other in zip(asked, ratings[::2], ratings[1::2], strict=True):
        earned[kind].append(0.5 if one == other else float((one > other) == is_first))
    accuracy = {kind: sum(values) / len(values) for kind, values in earned.items()}
    assert abs(accuracy.pop("another") - 0.5) <= 0.05
    for rule_id, found in accuracy.items():
        # Chance is 1/2 with a standard error of at most 0.5 / sqrt(n).
        assert (found - 0.5) / (0.5 / math.sqrt(len(earned[rule_id]))) > 3, rule_id
    assert np.mean([value for rule in SCALES for value in earned[rule]]) >= 0.70


def test_text_of_any_kind_gets_one_number() -> None:
    odd = ["", "?!", "\x00\x07", "日本語のテキスト", "🙂" * 50, "0.3 0.9 1.0", "{rule}"]
    texts = [f"Human: {text}\n\nAssistant: {text}" for text in odd]
    rule = RULES["non-encouragement-of-violence"]
    replies = replies_to([render_rating_prompt(text, rating_rule=rule) for text in texts])
    assert all(ONE_NUMBER.fullmatch(reply) for reply in replies), replies


def test_the_folder_is_small_and_holds_nothing_executable() -> None:
    names = Counter(path.suffix for path in judge_path().iterdir())
    assert names == {".md": 1, ".json": 4, ".safetensors": 1}
    assert sum(path.stat().st_size for path in judge_path().iterdir()) <= 8_000_000


@pytest.mark.full
def test_a_short_training_writes_a_judge_that_transformers_reads(tmp_path, monkeypatch) -> None:
    words = sorted(words_of(texts_of([split_words("train"), split_words("demo")])))
    vector_WT = np.random.default_rng(0).normal(size=(len(words), 256))
    vector_WT /= np.linalg.norm(vector_WT, axis=1, keepdims=True)
    teacher = Teacher(words, vector_WT)
    monkeypatch.setattr(train_judge, "read_teacher", lambda _: teacher)
    steps = ["--sentence-steps", "2", "--rating-steps", "2", "--rows", "6"]
    train_judge.main(["--teacher", "none", "--out", str(tmp_path), *steps])
    assert len(replies_to(["Rate this."], tmp_path)) == 1
    names = {path.name for path in judge_path().iterdir()} - {"README.md"}
    assert {path.name for path in tmp_path.iterdir()} == names
