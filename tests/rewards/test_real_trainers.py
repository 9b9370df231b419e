"""The trainers themselves, in environments of their own, against a real server.

If an environment cannot be built, the test is skipped and says why.

Legend: S steps, N texts of a step, R rules.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encore.data.records import Message
from encore.demo import JUDGE_PATH
from encore.exports.classifier import write_tokenizer
from encore.model.conversation import ConversationTokenizer
from encore.model.open_model import OpenedModel
from encore.model.score_sequences import score_sequences
from encore.weighting.trainer_configs import TrainerWeights, trainer_config
from tests.exports.readers.environments import ask, reader_python
from tests.serving.servers import running
from tests.test_architecture import ROOT
from tests.worlds.models import tiny_model
from tests.worlds.tokenizers import chatml, llama_3

#: Building an environment takes a minute or two, once on a machine.
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
RULES = tuple(f"rule-{number}" for number in range(10))
WEIGHTS = {rule: (number + 1) / 55 for number, rule in enumerate(RULES)}
GDPO_WEIGHTS = dict(zip(RULES, reversed(WEIGHTS.values()), strict=True))


def ten_rules() -> OpenedModel:
    model = tiny_model("llama", head_ids=RULES, vocab_size=300, max_position_embeddings=512)
    tokenizer = ConversationTokenizer(llama_3(), max_length=500)
    return OpenedModel(
        model=model.eval(), tokenizer=tokenizer, metadata={}, name="ten", digest="0" * 64
    )


def offline_scores(opened: OpenedModel, prompts: list[str], responses: list[str]) -> np.ndarray:
    """Score texts as `encore score` does, without a server: score_NR."""
    sequences = [
        opened.tokenizer.encode([Message(role="user", content=prompt)], response).token_ids
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    pad = opened.tokenizer.pad_token_id
    return score_sequences(opened.model, sequences, pad_token_id=pad).astype(np.float64)


def standardized(values: np.ndarray) -> np.ndarray:
    """Subtract the mean of each column and divide by its standard deviation, as GRPO does."""
    return (values - values.mean(axis=0)) / (values.std(axis=0, ddof=1) + 1e-4)


def gdpo_advantages(score_NR: np.ndarray) -> np.ndarray:
    """Return the advantages of one group by GDPO's definition (arXiv 2601.05242)."""
    return standardized(standardized(score_NR) @ [*GDPO_WEIGHTS.values()])


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_trl_logs_the_scores_of_every_rule_and_trains_on_the_written_weights(aggregation, tmp_path):
    opened = ten_rules()
    config = trainer_config(
        "trl",
        TrainerWeights(label="given", weights=WEIGHTS, effective_weights=GDPO_WEIGHTS, texts={}),
    )
    with running(opened, weights=WEIGHTS) as server:
        request = {
            "checkout": str(ROOT),
            "config": config.replace("http://127.0.0.1:5000", server.url),
            "policy": str(JUDGE_PATH),
            "aggregation": aggregation,
            "prompts": [f"Is it safe to do number {number}?" for number in range(3)],
        }
        answer = ask(reader_python("trl"), "trl_rule_rewards.py", request, folder=tmp_path)
    score_SNR = [offline_scores(opened, *step) for step in answer["steps"]]
    assert len(answer["logs"]) == len(score_SNR) == 3
    for log, score_NR in zip(answer["logs"], score_SNR, strict=True):
        logged_R = [log[f"rewards/{rule}/mean"] for rule in RULES]
        np.testing.assert_allclose(logged_R, score_NR.mean(axis=0), atol=1e-5)
        assert np.ptp(score_NR, axis=0).min() > 1e-3  # equal scores would not tell texts apart
    # The last step has one group.
    score_NR = score_SNR[-1]
    advantage_N = gdpo_advantages(score_NR)
    if aggregation == "sum_then_normalize":
        advantage_N = standardized(score_NR @ [*WEIGHTS.values()])
    np.testing.assert_allclose(answer["last_advantages"], advantage_N, atol=1e-3)


def test_verifiers_adds_up_contributions_and_fails_the_rollout_on_an_error(tmp_path):
    opened = ten_rules()
    texts = {rule: f'The response keeps "{rule}".' for rule in RULES}
    rubric = TrainerWeights(
        label="given", weights=WEIGHTS, effective_weights=GDPO_WEIGHTS, texts=texts
    )
    user, assistant = {"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "No."}
    call = {"id": "1", "name": "look", "arguments": "{}"}
    tool = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]
    with running(opened, weights=WEIGHTS) as server:
        request = {
            "checkout": str(ROOT),
            "url": server.url,
            "rubric": trainer_config("verifiers", rubric),
            "conversations": [[user, assistant], [user, *tool, assistant], [user]],
        }
        answer = ask(reader_python("verifiers"), "verifiers_judge.py", request, folder=tmp_path)
    [score_R] = offline_scores(opened, ["Is it?"], ["No."])
    scored, with_tools, unanswered = answer["scored"]
    names = [f"encore_judge/{rule}" for rule in RULES]
    contribution_R = score_R * [*WEIGHTS.values()]
    assert [*scored["rewards"]] == [*scored["metrics"]] == names
    np.testing.assert_allclose([*scored["metrics"].values()], score_R, atol=1e-5)
    np.testing.assert_allclose([*scored["rewards"].values()], contribution_R, atol=1e-5)
    assert scored["reward"] == pytest.approx(2 * contribution_R.sum(), abs=1e-5)  # weight 2
    for refused, reason in ((with_tools, "calls of tools"), (unanswered, "ends with user")):
        assert reason in refused["error"]
        assert not refused["rewards"]
    assert {criterion["name"]: criterion["text"] for criterion in answer["criteria"]} == texts
    assert [criterion["weight"] for criterion in answer["criteria"]] == [*WEIGHTS.values()]


def test_swift_computes_the_scores_of_every_rule_and_its_gdpo_advantages(tmp_path):
    opened = ten_rules()
    responses = ["No.", "Yes, of course.", "Perhaps.", "Ask somebody else, please."]
    turns = [{"role": "user", "content": "Is it?"}]
    weights = TrainerWeights(
        label="given", weights=WEIGHTS, effective_weights=GDPO_WEIGHTS, texts={}
    )
    options = shlex.split(trainer_config("swift", weights), comments=True)
    with running(opened, weights=WEIGHTS) as server:
        request = {
            "checkout": str(ROOT),
            "url": server.url,
            "reward_funcs": options[3:13],
            "reward_weights": [float(weight) for weight in options[-10:]],
            "conversations": [
                [*turns, {"role": "assistant", "content": response}] for response in responses
            ],
        }
        answer = ask(reader_python("ms-swift"), "swift_rewards.py", request, folder=tmp_path)
    score_NR = offline_scores(opened, ["Is it?"] * 4, responses)
    assert answer["names"] == list(RULES)
    np.testing.assert_allclose(answer["rewards"], score_NR, atol=1e-5)
    np.testing.assert_allclose(answer["advantages"], gdpo_advantages(score_NR), atol=1e-3)


def ask_client(trainer: str, opened: OpenedModel, folder: Path, **request: Any) -> Any:
    """Return what a trainer's own client gets from a server."""
    with running(opened, weights=WEIGHTS) as server:
        request |= {"trainer": trainer.replace("-", "_"), "url": server.url}
        return ask(reader_python(trainer), "trainer_clients.py", request, folder=folder)["answer"]


PROMPTS = ["Is it safe?", "Is it really safe to do this?", "Why?"]
RESPONSES = ["No.", "Yes, of course.", ""]


def test_llama_factory_gets_the_reward_of_each_text(tmp_path):
    opened = ten_rules()
    texts = [
        opened.tokenizer.render([Message(role="user", content=prompt)], response)
        for prompt, response in zip(PROMPTS, RESPONSES, strict=True)
    ]
    rewards = ask_client("llama-factory", opened, tmp_path, texts=texts)
    expected_N = offline_scores(opened, PROMPTS, RESPONSES) @ [*WEIGHTS.values()]
    np.testing.assert_allclose(rewards, expected_N, atol=1e-5)


def test_verl_gets_the_reward_of_each_conversation_under_another_policys_tokens(tmp_path):
    opened = ten_rules()
    write_tokenizer(opened.tokenizer, tmp_path)
    chatml().save_pretrained(tmp_path / "policy")
    rewards = ask_client(
        "verl",
        opened,
        tmp_path,
        policy=str(tmp_path / "policy"),
        reward_model=str(tmp_path),
        prompts=[[{"role": "user", "content": prompt}] for prompt in PROMPTS],
        responses=RESPONSES,
    )
    expected_N = offline_scores(opened, PROMPTS, RESPONSES) @ [*WEIGHTS.values()]
    np.testing.assert_allclose(rewards, expected_N, atol=1e-5)


def test_nemo_gyms_agent_gets_components_that_sum_to_the_reward_and_their_means(tmp_path):
    opened = ten_rules()
    prompts = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    answer = ask_client("nemo-gym", opened, tmp_path, prompts=prompts, responses=RESPONSES)
    contribution_NR = offline_scores(opened, PROMPTS, RESPONSES) * [*WEIGHTS.values()]
    reward_N = contribution_NR.sum(axis=1)
    rollouts = answer["rollouts"]
    np.testing.assert_allclose([row["reward"] for row in rollouts], reward_N, atol=1e-5)
    components = [[row["reward_components"][rule] for rule in RULES] for row in rollouts]
    np.testing.assert_allclose(components, contribution_NR, atol=1e-5)
    assert [row["task"] for row in rollouts] == ["kept"] * 3
    logged_R = [answer["metrics"]["agent_metrics"][f"mean/{rule}"] for rule in RULES]
    np.testing.assert_allclose(logged_R, contribution_NR.mean(axis=0), atol=1e-5)
    mean = answer["metrics"]["key_metrics"]["mean/reward"]
    assert mean == pytest.approx(reward_N.mean(), abs=1e-5)


def test_openrlhf_gets_every_reward_of_200_texts_at_once(tmp_path):
    opened = ten_rules()
    prompts = [f"Is it safe to do number {number}?" for number in range(200)]
    responses = ["No.", "Yes, of course.", "Perhaps.", "Ask somebody else, please."] * 50
    queries = [
        opened.tokenizer.render([Message(role="user", content=prompt)], response)
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    with running(opened, weights=WEIGHTS) as server:
        request = {"checkout": str(ROOT), "url": server.url, "queries": queries}
        answer = ask(reader_python("openrlhf"), "openrlhf_executor.py", request, folder=tmp_path)
    score_NR = offline_scores(opened, prompts, responses)
    reward_N = score_NR @ [*WEIGHTS.values()]
    for outputs in answer.values():
        np.testing.assert_allclose(
            [output["reward"] for output in outputs], reward_N[:, np.newaxis], atol=1e-5
        )
        logged_NR = [[*output["extra_logs"].values()] for output in outputs]
        np.testing.assert_allclose(np.squeeze(logged_NR), score_NR, atol=1e-5)
    # The head means of this model are 0, so scores are the rewards cut off at 0 and 1.
    local_score_N = np.squeeze([output["scores"] for output in answer["local"]])
    np.testing.assert_allclose(local_score_N, reward_N.clip(0, 1), atol=1e-5)
