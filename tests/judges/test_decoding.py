"""Decodings choice and expected: two engines agree, and labels are single tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encore.core.errors import JudgeUnavailableError
from encore.judges import open_judge
from encore.judges.base import Decoding, Judge, Reply
from encore.judges.judge_options import JudgeConfig
from encore.rating.prompts import RatingPrompt
from tests.judges.asking import rating_prompts, replies_to
from tests.worlds.tiny_judge import make_tiny_judge

pytestmark = pytest.mark.services

DIGITS = tuple("0123456789")
TENTHS = tuple(f"{tenth / 10:.1f}" for tenth in range(11))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a judge of random weights: labels and other tokens are all likely."""
    folder = tmp_path_factory.mktemp("judges") / "tiny"
    return make_tiny_judge(folder, max_model_len=2048, answers_scores=False)


def replies(judge: Judge, decoding: Decoding, *, num_conversations: int = 4) -> list[Reply]:
    prompt = RatingPrompt(layout="conversation-first", labels=decoding.labels)
    texts = rating_prompts(num_conversations=num_conversations, prompt=prompt)
    return replies_to(judge, texts, decoding)


@pytest.mark.parametrize(
    "num_conversations", [4, pytest.param(50, marks=pytest.mark.full)], ids=["40", "500"]
)
def test_label_probabilities_equal_those_of_transformers(folder, vllm_judge, num_conversations):
    decoding = Decoding(kind="expected", max_reply_tokens=16, labels=DIGITS)
    actual = replies(vllm_judge, decoding, num_conversations=num_conversations)
    transformers_judge = open_judge(JudgeConfig(model=str(folder), backend="transformers"))
    expected = replies(transformers_judge, decoding, num_conversations=num_conversations)
    for reply, expected_reply in zip(actual, expected, strict=True):
        assert reply.label_logprobs == pytest.approx(expected_reply.label_logprobs, abs=1e-5)
        assert reply.text == DIGITS[reply.label_logprobs.index(max(reply.label_logprobs))]
    assert len({reply.label_logprobs for reply in actual}) == len(actual)
    assert {reply.usage.output_tokens for reply in actual} == {1}


def test_a_choice_is_one_of_the_labels(vllm_judge):
    choices = replies(vllm_judge, Decoding(kind="choice", max_reply_tokens=16, labels=TENTHS))
    assert all(reply.is_complete and reply.text in TENTHS for reply in choices)


def test_the_answer_for_a_rule_that_does_not_apply_is_a_label_like_the_others(vllm_judge):
    labels = {"expected": (*DIGITS, "N"), "choice": ("n/a", "not on this scale")}
    expected = Decoding(kind="expected", max_reply_tokens=16, labels=labels["expected"])
    assert all(len(reply.label_logprobs) == 11 for reply in replies(vllm_judge, expected))
    choice = Decoding(kind="choice", max_reply_tokens=16, labels=labels["choice"])
    texts = {reply.text for reply in replies(vllm_judge, choice)}
    assert texts
    assert texts <= {*labels["choice"]}


def test_of_several_scores_each_is_one_of_the_labels(vllm_judge):
    decoding = Decoding(kind="choice", max_reply_tokens=100, labels=TENTHS, num_scores=3)
    for reply in replies(vllm_judge, decoding, num_conversations=1):
        assert reply.is_complete
        scores = json.loads(reply.text)
        assert list(scores) == ["1", "2", "3"]
        assert {*scores.values()} <= {*TENTHS}


def test_tokens_in_the_cache_are_counted(vllm_judge):
    decoding = Decoding(kind="expected", max_reply_tokens=16, labels=DIGITS)
    vllm_judge._engine.reset_prefix_cache()
    usages = [reply.usage for reply in replies(vllm_judge, decoding)]
    first, *later = [usage.prompt_tokens - usage.cached_tokens for usage in usages[:10]]
    # The prompts of a response differ only in the rule; blocks have 32 tokens.
    assert first > 100
    assert max(later) < first / 2


def test_labels_of_several_tokens_are_refused_with_usable_labels(vllm_judge):
    with pytest.raises(JudgeUnavailableError, match=r"'0.5', '10' as one token.*0,1,2,3,4,5,6"):
        vllm_judge.check(Decoding(kind="expected", max_reply_tokens=16, labels=("1", "0.5", "10")))


def test_transformers_refuses_a_choice(folder):
    judge = open_judge(JudgeConfig(model=str(folder), backend="transformers"))
    with pytest.raises(JudgeUnavailableError, match=r"choice.*vllm"):
        judge.check(Decoding(kind="choice", max_reply_tokens=16, labels=TENTHS))
