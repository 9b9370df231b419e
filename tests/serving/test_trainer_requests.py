"""Each trainer's request, as its own client sends it, gets the answer that this client reads.

The requests and the reading of answers follow the clients' sources: OpenRLHF 0.11
(`utils/agent.py`), verl (`reward_loop.py`), vLLM (`classify/protocol.py`), LLaMA-Factory 0.9.5
(`ppo_utils.py`), slime (`rm_hub`), NeMo Gym (`base_resources_server.py`), as of November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from encore.data.records import Message
from encore.serving.trainer_requests import VerifyRequest
from tests.serving.servers import PATIENCE, Running, running, score_offline
from tests.worlds.models import MEANS, RULES, WEIGHTS, opened_model
from tests.worlds.scorings import held_out_scores
from tests.worlds.tokenizers import CHATML_TEMPLATE, chatml

pytestmark = pytest.mark.services

BEGIN, END = "<|begin_of_text|>", "<|eot_id|>"
PROMPT = (Message(role="system", content="Be kind."), Message(role="user", content="Hi."))
RESPONSE = "Hello, you."
WEIGHT_R = np.array([WEIGHTS[rule] for rule in RULES])
MESSAGES = [{"role": turn.role, "content": turn.content} for turn in PROMPT]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as running_server:
        yield running_server


@pytest.fixture(scope="module")
def score_R() -> Any:
    return score_offline([(PROMPT, RESPONSE)])[0]


@pytest.fixture(scope="module")
def text() -> str:
    return opened_model().tokenizer.render(PROMPT, RESPONSE)


def test_verl_reads_the_last_label_of_a_text_without_its_first_token(server, score_R, text):
    # verl cuts off the token that begins the text, since vLLM's tokenizer writes it.
    body = {"model": "m", "input": text.removeprefix(BEGIN), "use_activation": False}
    answer = server.post("/classify", body).json()
    assert answer["data"][-1]["probs"][-1] == pytest.approx(score_R @ WEIGHT_R, abs=1e-5)
    # The first token is there once, whoever writes it.
    body["input"] = [text, BEGIN + text]
    whole = server.post("/classify", body).json()
    probs = [data["probs"] for data in whole["data"]]
    np.testing.assert_allclose(probs, [answer["data"][0]["probs"]] * 2, atol=1e-6)
    assert [(data["index"], data["num_classes"]) for data in whole["data"]] == [(0, 4), (1, 4)]
    np.testing.assert_allclose(whole["data"][0]["probs"][:-1], score_R, atol=1e-5)
    # What vLLM computes unless it is told otherwise is not a reward.
    del body["use_activation"]
    assert 'send "use_activation": false' in server.post("/classify", body).json()["error"]


def test_llama_factory_reads_scores(server, score_R, text):
    body = {"model": "model", "messages": [text + END * 3, text]}
    answer = server.post("/v1/score/evaluation", body).json()
    np.testing.assert_allclose(answer["scores"], [score_R @ WEIGHT_R] * 2, atol=1e-5)
    assert (answer["object"], answer["model"]) == ("score.evaluation", "model")


def test_slime_reads_a_number_or_the_key_it_names(server, score_R, text):
    head = text.removesuffix(RESPONSE + END)
    for prompt in (head, MESSAGES):
        body = {"prompt": prompt, "response": RESPONSE + END, "label": None}
        number = server.post("/reward", body).json()
        assert number == pytest.approx(score_R @ WEIGHT_R, abs=1e-5)
        components = server.post("/reward/components", body).json()
        expected = dict(zip(RULES, WEIGHT_R * score_R, strict=True)) | {"reward": number}
        assert components == pytest.approx(expected, abs=1e-5)


def rollout(**changes: Any) -> dict[str, Any]:
    """Return a rollout as NeMo Gym's agents send it."""
    thinking = {"type": "reasoning", "id": "r", "summary": []}
    content = [{"type": "output_text", "text": RESPONSE, "annotations": []}]
    message = {"type": "message", "role": "assistant", "status": "completed", "content": content}
    body = {
        "responses_create_params": {"input": MESSAGES, "temperature": 1.0},
        "response": {"id": "x", "object": "response", "output": [thinking, message]},
        "expected_answer": {"of": ["the task"]},
    }
    return body | changes


def test_nemo_gym_gets_its_rollout_back_with_components_that_sum_to_the_reward(server, score_R):
    answer = server.post("/verify", rollout()).json()
    components = answer.pop("reward_components")
    assert list(components) == sorted(RULES)  # NeMo-RL takes weights in this order
    assert answer.pop("reward") == sum(components.values())  # it raises otherwise
    expected = dict(zip(RULES, WEIGHT_R * score_R, strict=True))
    assert components == pytest.approx(expected, abs=1e-5)
    assert {rule: answer.pop(rule) for rule in RULES} == components
    assert answer == rollout()


def test_a_key_of_a_task_of_nemo_gym_is_not_replaced_by_a_rule_of_its_name(server):
    rule, *free_rules = RULES
    answer = server.post("/verify", rollout(**{rule: "of the task", "reward": "of it"})).json()
    components = answer["reward_components"]
    assert answer[rule] == "of the task"
    assert {name: answer[name] for name in free_rules} == {
        name: components[name] for name in free_rules
    }
    assert answer["reward"] == sum(components.values())  # the reward is the server's


@pytest.mark.parametrize(
    ("params", "same_as"),
    [
        ({"input": "Hi.", "instructions": "Be kind."}, MESSAGES),
        ({"input": [{"role": "developer", "content": "Be kind."}, MESSAGES[1]]}, MESSAGES),
        ({"input": [{"role": "user", "content": [{"text": "Hi."}]}]}, MESSAGES[1:]),
    ],
)
def test_the_forms_of_a_prompt_of_nemo_gym_have_one_reward(server, params, same_as):
    rewards = [
        server.post("/verify", rollout(responses_create_params=responses_params)).json()["reward"]
        for responses_params in (params, {"input": same_as})
    ]
    assert rewards[0] == rewards[1]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ([{"type": "function_call", "name": "f"}], "an item of type 'function_call'"),
        ([{"role": "assistant", "content": [{"type": "refusal"}]}], "has a part that is not text"),
        ("text", "output: expected a list of messages"),
        (
            [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
            "output: it ends with role user",
        ),
    ],
)
def test_a_rollout_that_a_reward_model_cannot_read_is_refused_not_scored(server, output, reason):
    answer = server.post("/verify", rollout(response={"output": output}))
    assert answer.status_code == 422
    assert reason in answer.json()["error"]


def test_a_rollout_that_was_cut_in_its_thinking_has_an_empty_response(server):
    """The last message of the user is part of the prompt, and never scored as the response."""
    thinking = {"type": "reasoning", "id": "r", "summary": [{"text": "Let me see"}]}
    for output in ([thinking], []):
        body = rollout(response={"output": output})
        [conversation] = VerifyRequest.model_validate(body).texts
        assert conversation.response == ""
        assert [turn.model_dump() for turn in conversation.messages] == MESSAGES
        # /score with an empty response gives the same reward.
        scored = {"conversations": [{"messages": MESSAGES, "response": ""}]}
        expected = server.post("/score", scored).json()["results"][0]["reward"]
        assert server.post("/verify", body).json()["reward"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "1" + 400 * "0"])
def test_a_number_that_no_answer_can_hold_is_refused_by_its_name(server, number):
    def post(path: str, body: dict[str, Any]) -> httpx.Response:
        content = json.dumps(body).replace('"NUMBER"', number)
        headers = {"content-type": "application/json"}
        return httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=60)

    rows = [{"reward": 1.0}, {"reward": 0.5, "a": "NUMBER"}]
    answer = post("/aggregate_metrics", {"verify_responses": rows})
    assert (answer.status_code, "verify_responses[1].a: " in answer.text) == (422, True)
    params = {"input": MESSAGES, "sampling": [{"temperature": "NUMBER"}]}
    answer = post("/verify", rollout(responses_create_params=params))
    name = "responses_create_params.sampling[0].temperature: "
    assert (answer.status_code, name in answer.text) == (422, True)


def test_means_of_numbers_whose_sum_is_infinite_are_finite(server):
    rows = [{"reward": 1e308}, {"reward": 1.5e308}, {"reward": 1.7e308}]
    answer = server.post("/aggregate_metrics", {"verify_responses": rows}).json()
    assert answer["key_metrics"] == {"mean/reward": pytest.approx(1.4e308)}


def test_nemo_gyms_other_requests_are_answered(server):
    assert server.post("/seed_session", rollout()).json() == {}
    session = {"resources_session_id": "s", "episode_id": "e"}
    assert server.post("/close_session", session).json() == {"resources_session_id": "s"}
    assert server.get("/reverify_mode").json() == "stateless"
    rows = [{"reward": 1.0, "a": 2, "_ng_task_index": 0}, {"reward": 2.0, "b": "text"}]
    assert server.post("/aggregate_metrics", {"verify_responses": rows}).json() == {
        "group_level_metrics": [],
        "agent_metrics": {"mean/reward": 1.5, "mean/a": 2.0},
        "key_metrics": {"mean/reward": 1.5},
    }


# --- rules left out, rules watched ----------------------------------------------------------------


def explained(server: Running, prompt: str, response: str) -> dict[str, dict[str, Any]]:
    conversation = {"messages": [{"role": "user", "content": prompt}], "response": response}
    [result] = server.post("/score", {"conversations": [conversation]}).json()["results"]
    return {rule["rule_id"]: rule for rule in result["rules"]}


def test_a_third_of_the_rules_is_left_out_by_prompt_and_the_same_for_all_its_samples():
    left_out = {}
    with running(use={"drop_rules": 0.3}) as server:
        for number in range(12):
            prompt = f"Question {number}"
            rules = explained(server, prompt, "a")
            # 0.3 of three rules is one. The other two weights sum to 1, as all three do.
            [dropped] = [rule for rule, row in rules.items() if not row["is_in_reward"]]
            assert rules[dropped]["contribution"] == rules[dropped]["weight"] == 0
            kept = {rule: row["weight"] for rule, row in rules.items() if rule != dropped}
            scale = 1 - WEIGHTS[dropped]
            assert kept == pytest.approx({rule: WEIGHTS[rule] / scale for rule in kept})
            left_out[prompt] = dropped
            weights = [explained(server, prompt, text)[dropped]["weight"] for text in ("b", "c")]
            assert weights == [0, 0]
            # One rule is left out of both texts of a prompt (not always that of its messages).
            query = [
                opened_model().tokenizer.render([Message(role="user", content=prompt)], text)
                for text in ("b", "c")
            ]
            answer = server.post("/get_reward", {"query": query}).json()
            score_NR = np.transpose([answer["extra_logs"][rule] for rule in RULES]) - MEANS
            expected_RN = [
                score_NR @ (WEIGHT_R * kept_R) / (WEIGHT_R @ kept_R) for kept_R in 1 - np.eye(3)
            ]
            matches = np.isclose(expected_RN, answer["rewards"], atol=1e-5).all(axis=1)
            assert matches.sum() == 1
        assert server.get("/model").json()["drop_rules"] == 0.3
    assert set(left_out.values()) == set(RULES)  # in twelve draws
    with running(use={"drop_rules": 0.3, "drop_seed": 1}) as server:
        rows = {prompt: explained(server, prompt, "a") for prompt in left_out}
    assert any(rows[prompt][rule]["is_in_reward"] for prompt, rule in left_out.items())


def test_some_rule_is_always_in_the_reward():
    with running(use={"drop_rules": 0.99}) as server:
        rules = explained(server, "a", "b")
        assert sum(row["is_in_reward"] for row in rules.values()) == 1
        assert sum(row["weight"] for row in rules.values()) == pytest.approx(1)


def test_a_watched_rule_is_in_the_logs_and_never_in_the_reward(text):
    with running(use={"watch": ["be-kind"]}) as server:
        rules = explained(server, "a", "b")
        assert not rules["be-kind"]["is_in_reward"]
        # 0.3 and 0.2 become 0.6 and 0.4.
        weights = {rule: row["weight"] for rule, row in rules.items()}
        assert weights == pytest.approx({"be-kind": 0, "be-brief": 0.6, "be-true": 0.4})
        assert set(server.post("/get_reward", {"query": [text]}).json()["extra_logs"]) == set(RULES)
        watched = {
            row["rule_id"]: row["is_watched"] for row in server.get("/model").json()["rules"]
        }
        assert watched == {"be-kind": True, "be-brief": False, "be-true": False}


@pytest.mark.parametrize(
    ("watch", "reason"),
    [(("be-kin",), "--watch be-kin: the model has no such rule"), (RULES, "no rule is left")],
)
def test_watching_unknown_or_all_rules_is_refused(watch, reason):
    with pytest.raises(ValueError, match=reason), running(use={"watch": watch}):
        pass


#: Head 0: 4, 0, 0, 0; the rules: 3, 1, 3, 1 | 3, 1, 3, 1 | 2, 2, 2, 2.
HELD_OUT = held_out_scores([[[4, 3, 3, 2], [0, 1, 1, 2]], [[0, 3, 3, 2], [0, 1, 1, 2]]])


def test_drift_is_in_standard_deviations_where_the_model_has_held_out_scores():
    weights = {"preference": 1.0, **WEIGHTS}
    # Mean 1 and sd √3; mean 2 and sd 1 twice; equal scores have no sd, and no drift.
    scale = {"preference": (1, 3**0.5), "be-kind": (2, 1), "be-brief": (2, 1)}
    with running(opened_model(held_out=HELD_OUT), weights=weights) as server:
        logs = server.post("/get_reward", {"query": ["a", "bb", "ccc"]}).json()["extra_logs"]
        metrics = server.get("/metrics").text
    names = [f"drift_sd/{head}" for head in scale]
    assert [*logs] == ["preference", *RULES, *names]
    means = dict(zip(RULES, MEANS, strict=True))
    for head, (mean, sd) in scale.items():
        drift_N = (np.array(logs[head]) - means.get(head, 0) - mean) / sd
        np.testing.assert_allclose(logs[f"drift_sd/{head}"], drift_N, atol=1e-5)
        [line] = re.findall(rf'encore_rule_score_drift_sd{{rule="{head}"}} (.*)', metrics)
        assert float(line) == pytest.approx(drift_N.mean(), abs=1e-5)
    assert 'drift_sd{rule="be-true"}' not in metrics


# --- guard, errors of one text, metrics -----------------------------------------------------------


def test_one_bad_conversation_has_an_error_and_the_others_are_scored():
    refusing = CHATML_TEMPLATE.replace(
        "{{ m.content }}",
        "{% if m.content == 'x' %}{{ raise_exception() }}{% endif %}{{ m.content }}",
    )
    good = {"messages": MESSAGES, "response": RESPONSE}
    bad = {"messages": [{"role": "user", "content": "x"}], "response": "y"}
    with running(opened_model(tokenizer=chatml(refusing))) as server:
        [expected] = server.post("/score", {"conversations": [good]}).json()["results"]
        for path, more in (("/score", {}), ("/guard", {"threshold": 0.0})):
            body = {"conversations": [good, bad, good], **more}
            [first, error, last] = server.post(path, body).json()["results"]
            rewards = [expected["reward"]] * 2
            assert [first["reward"], last["reward"]] == pytest.approx(rewards, abs=1e-6)
            assert list(error) == ["error"]
            assert error["error"].startswith("text 1 (counted from 0): ")
        assert 'encore_errors_total{kind="turns"} 2.0' in server.get("/metrics").text


def test_guard_compares_the_reward_with_the_threshold_of_the_request_or_the_server(score_R):
    body = {"conversations": [{"messages": MESSAGES, "response": RESPONSE}]}
    reward = float(score_R @ WEIGHT_R)
    with running(threshold=reward + 0.01) as server:
        [verdict] = server.post("/guard", body).json()["results"]
        assert (verdict["is_safe"], verdict["reward"]) == (False, pytest.approx(reward, abs=1e-5))
        expected = dict(zip(RULES, WEIGHT_R * score_R, strict=True))
        assert verdict["contributions"] == pytest.approx(expected, abs=1e-5)
        [verdict] = server.post("/guard", body | {"threshold": reward - 0.01}).json()["results"]
        assert verdict["is_safe"]
    with running() as server:
        assert "no threshold" in server.post("/guard", body).json()["error"]


def test_metrics_tell_each_rules_mean_deviation_and_drift_and_errors_by_kind():
    prompts = [((Message(role="user", content=f"{number}"),), "a") for number in range(4)]
    score_NR = score_offline(prompts)
    records = [
        {"messages": [{"role": "user", "content": prompt[0].content}], "response": response}
        for prompt, response in prompts
    ]
    with running() as server:
        server.post("/score", {"conversations": records})
        server.post("/get_reward", {"query": [""]})
        server.post("/get_reward", {"query": ["<|im_start|>user\na"]})
        httpx.post(f"{server.url}/score", content=b"{", timeout=PATIENCE)
        lines = dict(
            line.rsplit(" ", 1)
            for line in server.get("/metrics").text.splitlines()
            if not line.startswith("#")
        )
    for index, (rule, mean) in enumerate(zip(RULES, (0.25, 0.5, 0.75), strict=True)):
        column = score_NR[:, index]
        for name, value in (
            ("mean", mean + column.mean()),
            ("sd", column.std()),
            ("drift", column.mean()),
        ):
            line = f'encore_rule_score_{name}{{rule="{rule}"}}'
            assert float(lines[line]) == pytest.approx(value, abs=1e-5)
    kinds = {name: value for name, value in lines.items() if "encore_errors_total" in name}
    assert kinds == {
        'encore_errors_total{kind="empty_text"}': "1.0",
        'encore_errors_total{kind="other_template"}': "1.0",
        'encore_errors_total{kind="media_type"}': "1.0",
    }


def test_the_counter_of_tokens_has_those_of_scored_texts_and_none_of_refused_ones():
    # /score says how many tokens each text has; the refused text has some, too, but none counts.
    body = {
        "conversations": [
            {"messages": [{"role": "user", "content": f"{number}"}], "response": "a " * number}
            for number in range(1, 4)
        ]
    }
    with running() as server:
        results = server.post("/score", body).json()["results"]
        assert server.post("/get_reward", {"query": ["<|im_start|>user\na"]}).status_code == 422
        lines = server.get("/metrics").text.splitlines()
    num_tokens = sum(result["num_tokens"] for result in results)
    assert f"encore_texts_total {len(results):.1f}" in lines
    assert f"encore_tokens_total {num_tokens:.1f}" in lines
