"""The shipped judge on odd text, and the training of one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from encore.data.rule_sets import load_rule_set
from encore.demo import JUDGE_PATH, RULES_PATH
from encore.judges import open_judge
from encore.judges.base import Decoding
from encore.judges.judge_options import JudgeConfig
from encore.rating.prompts import RatingPrompt
from examples.demo_judge.make_data import World, split_texts, texts_of
from examples.demo_judge.train_judge import Teacher, train, words_of
from tests.judges.asking import replies_to

ONE_NUMBER = re.compile(r"0\.\d|1\.0")


def reply_texts(texts: Sequence[str], folder: Path = JUDGE_PATH) -> list[str]:
    judge = open_judge(JudgeConfig(model=str(folder), backend="transformers"))
    return [reply.text for reply in replies_to(judge, texts, Decoding(max_reply_tokens=5))]


def test_the_demo_judge_replies_one_number_to_any_text():
    odd = ["", "?!", "\x00\x07", "日本語のテキスト", "🙂" * 50, "0.3 0.9 1.0", "{rule}"]
    texts = [f"Human: {text}\n\nAssistant: {text}" for text in odd]
    rule = load_rule_set("encore-10").rules[8].rating_rule
    replies = reply_texts(["".join(RatingPrompt().parts(text, rating_rule=rule)) for text in texts])
    assert all(ONE_NUMBER.fullmatch(reply) for reply in replies), replies


def test_the_demo_judge_says_that_a_rule_does_not_apply_where_it_is_asked():
    """Expect n/a for most of the responses that do not touch a seldom rule, and few that do."""
    prompt, world = RatingPrompt(not_applicable="n/a"), World("test", 0)
    rules = {rule.rule_id: rule.rating_rule for rule in load_rule_set(RULES_PATH).rules}
    topics = ("sexual-content-and-harassment-prevention", "safety-and-public-health")
    texts = [world.response({topic: "severe"}).text for topic in topics for _ in range(10)]

    def replies(rule_id: str) -> list[str]:
        conversations = [f"Human: What do you think?\n\nAssistant: {text}" for text in texts]
        return reply_texts(
            ["".join(prompt.parts(text, rating_rule=rules[rule_id])) for text in conversations]
        )

    seldom = replies("no-harassment")
    assert seldom[:10].count("n/a") <= 3
    assert seldom[10:].count("n/a") >= 7
    assert set(replies("whole-sentences")) == {"0.9"}


@pytest.mark.full
def test_a_short_training_writes_a_judge_that_transformers_reads(tmp_path):
    vocabulary = sorted(words_of(texts_of([split_texts("train"), split_texts("demo")])))
    vector_WT = F.normalize(torch.randn(len(vocabulary), 256, generator=torch.manual_seed(0)))
    teacher = Teacher(vocabulary, vector_WT)
    train(teacher, tmp_path, sentence_steps=2, rating_steps=2, rows_per_batch=6)
    assert len(reply_texts(["Rate this."], tmp_path)) == 1
    names = {path.name for path in JUDGE_PATH.iterdir()} - {"README.md"}
    assert {path.name for path in tmp_path.iterdir()} == names
