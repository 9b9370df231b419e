"""What clients read: OpenRLHF's keys, scores by rule, and contributions that sum to the reward."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from encore.data.records import Message
from encore.serving import reward_app
from tests.serving.conversations import Conversation, made_up
from tests.serving.models import (
    HEAD_IDS,
    MEANS,
    PATIENCE,
    WEIGHT_R,
    WEIGHTS,
    as_json,
    offline,
    opened_model,
    running,
)

HI = ((Message(role="user", content="Hi."),), "Hello!")


def as_body(conversation: Conversation) -> dict[str, object]:
    return {"conversations": [as_json(*conversation)]}


def rendered(conversations: list[Conversation]) -> list[str]:
    return [opened_model().tokenizer.render(*one) for one in conversations]


@pytest.mark.parametrize("path", ["/get_reward", "/"])
def test_openrlhfs_clients_old_and_new_get_the_rewards_of_offline_scoring(server, path):
    conversations = made_up(12)
    score_NR = offline(conversations)
    queries = rendered(conversations)
    # Since 0.6 clients send prompts and labels too, of any JSON.
    new = {"query": queries, "prompts": queries, "labels": [None, "a", 1.5] * 4}
    for body in ({"query": queries}, new):
        answer = server.post(path, body)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        found = answer.json()
        np.testing.assert_allclose(found["rewards"], score_NR @ WEIGHT_R, atol=1e-5)
        assert found["scores"] == found["rewards"]  # as OpenRLHF's own server has it
        assert list(found["extra_logs"]) == list(HEAD_IDS)
        for rule, head_id in enumerate(HEAD_IDS):
            logged = found["extra_logs"][head_id]
            np.testing.assert_allclose(logged, score_NR[:, rule] + MEANS[rule], atol=1e-5)


def test_a_conversation_is_scored_rule_by_rule(server):
    [result] = server.score(HI)
    [[privacy, violence, honesty]] = offline([HI])
    expected = dict(zip(HEAD_IDS, (privacy, violence, honesty), strict=True))
    assert [rule["rule_id"] for rule in result["rules"]] == list(HEAD_IDS)
    for rule, mean in zip(result["rules"], MEANS, strict=True):
        centred = expected[rule["rule_id"]]
        weight = WEIGHTS[rule["rule_id"]]
        assert rule["weight"] == weight
        assert rule["centred_score"] == pytest.approx(centred, abs=1e-5)
        assert rule["score"] == pytest.approx(centred + mean, abs=1e-5)
        assert rule["contribution"] == pytest.approx(weight * centred, abs=1e-5)
    # The weighted means are 0.505, 0.2 * 0.9 + 0.3 * 0.25 + 0.5 * 0.5.
    assert result["reward_shown"] == pytest.approx(result["reward"] + 0.505)
    assert result["num_tokens"] == len(opened_model().tokenizer.encode(*HI).token_ids)
    assert result["num_cut"] == 0


def test_contributions_sum_to_the_reward_which_is_that_of_scoring_without_a_server(server):
    conversations = made_up(20)
    expected_N = offline(conversations) @ WEIGHT_R
    results = server.score(*conversations)
    for result in results:
        rules = result["rules"]
        total = sum(rule["contribution"] for rule in rules)
        shown = sum(rule["weight"] * rule["score"] for rule in rules)
        assert abs(total - result["reward"]) < 1e-6
        assert abs(shown - result["reward_shown"]) < 1e-6
    np.testing.assert_allclose([result["reward"] for result in results], expected_N, atol=1e-5)
    assert np.ptp(expected_N) > 0.01  # else anything would sum
    by_text = server.post("/get_reward", {"query": rendered(conversations)}).json()["rewards"]
    np.testing.assert_allclose(by_text, expected_N, atol=1e-5)


def test_a_conversation_that_is_too_long_says_how_much_was_cut(server):
    long = ((Message(role="user", content="word " * 2_000),), "Yes.")
    [result] = server.score(long)
    assert result["num_tokens"] == 256
    assert result["num_cut"] > 500
    assert server.metric("encore_cut_texts_total") >= 1


def test_clients_at_the_same_time_get_their_own_answers_from_common_batches(server):
    conversations = made_up(60)
    expected_N = offline(conversations) @ WEIGHT_R
    batches_before = server.metric("encore_batch_texts_count")
    with httpx.Client(timeout=PATIENCE) as client, ThreadPoolExecutor(16) as pool:

        def ask(query: str) -> float:
            answer = client.post(f"{server.url}/get_reward", json={"query": [query]})
            [reward] = answer.json()["rewards"]
            return float(reward)

        rewards = list(pool.map(ask, rendered(conversations)))
    np.testing.assert_allclose(rewards, expected_N, atol=1e-5)
    assert server.metric("encore_batch_texts_count") - batches_before < 60


def test_health_and_metrics(server):
    assert server.get("/health").json()["status"] == "ok"
    name = 'encore_requests_total{path="/health",status="200"}'
    before = server.metric(name)
    server.get("/health")
    assert server.metric(name) == before + 1
    texts = server.metric("encore_texts_total")
    tokens = server.metric("encore_tokens_total")
    server.score(HI, HI)
    assert server.metric("encore_texts_total") == texts + 2
    assert server.metric("encore_tokens_total") > tokens + 2
    assert server.metric("encore_queued_tokens") == 0
    text = server.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_answer_with_a_score_that_is_no_number_is_a_500_and_not_nan(monkeypatch, value):
    def one_of_three(_model, sequences, **_named):
        score_NR = np.zeros((len(sequences), len(HEAD_IDS)), dtype=np.float32)
        score_NR[0, 1] = value
        return score_NR

    monkeypatch.setattr(reward_app, "score_sequences", one_of_three)
    with running() as server:
        for path, body in (("/get_reward", {"query": ["Hi.", "Ho."]}), ("/score", as_body(HI))):
            answer = server.post(path, body)
            assert answer.status_code == 500
            assert answer.json() == {"error": "the model's score of a text is not a finite number"}
        assert server.get("/health").status_code == 200
