"""Answers from a list and expected answers: two engines agree, labels are single tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.core.errors import JudgeUnavailableError
from encore.data.rule_sets import load_rule_set
from encore.judges import open_judge
from encore.judges.base import Decoding, Reply
from encore.judges.judge_config import JudgeConfig
from encore.rating.prompts import RatingPrompt
from tests.tiny_judge import make_tiny_judge

DIGITS = tuple("0123456789")
TENTHS = tuple(f"{tenth / 10:.1f}" for tenth in range(11))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judge whose every weight is random: labels and other tokens are all likely."""
    place = tmp_path_factory.mktemp("judges") / "tiny"
    return make_tiny_judge(place, max_model_len=2048, answers_scores=False)


def replies(judge, decoding: Decoding, *, num_conversations: int = 4) -> list[Reply]:
    prompt = RatingPrompt(layout="conversation-first", labels=decoding.labels)
    texts = [
        "".join(prompt.parts(f"Human: Why?\n\n{said}", rating_rule=rule.rating_rule))
        for index in range(num_conversations)
        for said in [f"Assistant: {'So ' * index}"]
        for rule in load_rule_set("encore-10").rules
    ]
    judge.check(decoding)
    encoded = judge.tokenizer.encode(texts)
    return judge.reply(encoded, decoding=decoding, on_progress=lambda _: None)


@pytest.mark.parametrize(
    "num_conversations", [4, pytest.param(50, marks=pytest.mark.full)], ids=["40", "500"]
)
def test_label_probabilities_equal_those_of_transformers(folder, vllm_judge, num_conversations):
    decoding = Decoding(kind="expected", max_reply_tokens=16, labels=DIGITS)
    found = replies(vllm_judge, decoding, num_conversations=num_conversations)
    other = open_judge(JudgeConfig(model=str(folder), backend="transformers"))
    expected = replies(other, decoding, num_conversations=num_conversations)
    for one, two in zip(found, expected, strict=True):
        assert one.label_logprobs == pytest.approx(two.label_logprobs, abs=1e-5)
        best = max(one.label_logprobs)
        assert one.text == DIGITS[one.label_logprobs.index(best)]
    assert len({reply.label_logprobs for reply in found}) == len(found)
    assert {reply.usage.output_tokens for reply in found} == {1}


def test_a_choice_is_one_of_the_labels(vllm_judge):
    found = replies(vllm_judge, Decoding(kind="choice", max_reply_tokens=16, labels=TENTHS))
    assert all(reply.is_complete and reply.text in TENTHS for reply in found)


def test_tokens_in_the_cache_are_counted(vllm_judge):
    decoding = Decoding(kind="expected", max_reply_tokens=16, labels=DIGITS)
    vllm_judge._engine.reset_prefix_cache()
    usage = [reply.usage for reply in replies(vllm_judge, decoding)]
    first, *others = [one.prompt_tokens - one.cached_tokens for one in usage[:10]]
    # All rules of a response share all but the rule; blocks have 32 tokens.
    assert first > 100
    assert max(others) < first / 2


def test_labels_of_several_tokens_are_refused_with_labels_that_work(vllm_judge):
    with pytest.raises(JudgeUnavailableError, match=r"'0.5', '10' as one token.*0,1,2,3,4,5,6"):
        vllm_judge.check(Decoding(kind="expected", max_reply_tokens=16, labels=("1", "0.5", "10")))


def test_transformers_refuses_a_choice(folder):
    judge = open_judge(JudgeConfig(model=str(folder), backend="transformers"))
    with pytest.raises(JudgeUnavailableError, match=r"choice.*vllm"):
        judge.check(Decoding(kind="choice", max_reply_tokens=16, labels=TENTHS))
