"""Each trainer's way to ask for rewards, written from its own client code, against a real server.

The releases that were read: TRL 1.16.0, verl 0.9.1, OpenRLHF 0.11.2, ms-swift 4.6.0.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

import encore.rewards
from encore.core.errors import InputError
from encore.rewards import RewardClient, reward, rule_rewards
from encore.rewards.reward_client import URL_VARIABLE, TextReward, shared_client
from tests.serving.servers import Running, make_conversations, running, score_offline
from tests.worlds.models import MEANS, RULES, WEIGHTS, opened_model

WEIGHT_R = np.array([WEIGHTS[rule] for rule in RULES])
CONVERSATIONS = make_conversations(6)
PROMPTS = [[{"role": m.role, "content": m.content} for m in turns] for turns, _ in CONVERSATIONS]
RESPONSES = [response for _, response in CONVERSATIONS]
COMPLETIONS = [[{"role": "assistant", "content": response}] for response in RESPONSES]
#: What TRL passes beside prompts and completions.
COLUMNS: dict[str, Any] = {
    "completion_ids": [[1]] * 6,
    "trainer_state": None,
    "log_extra": None,
    "log_metric": None,
    "answer": ["x"] * 6,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as running_server:
        yield running_server


@pytest.fixture(scope="module")
def score_NR() -> np.ndarray:
    return score_offline(CONVERSATIONS)


@pytest.fixture
def client(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[RewardClient]:
    """Return the client that the environment's variable leads to."""
    monkeypatch.setenv(URL_VARIABLE, server.url)
    client = shared_client()
    yield client
    client.close()


@pytest.fixture
def requests(client: RewardClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of paths that the client sends to."""
    sent, send = [], client._send

    def counted(method: str, path: str, content: str | None = None) -> Any:
        sent.append(path)
        return send(method, path, content)

    monkeypatch.setattr(client, "_send", counted)
    return sent


# --- TRL ------------------------------------------------------------------------------------------


def trl_rewards(functions: Any, prompts: Any, completions: Any) -> np.ndarray:
    """Ask as `GRPOTrainer._calculate_rewards`: sync functions in turn, then async ones at once."""
    call = {"prompts": prompts, "completions": completions, **COLUMNS}
    outputs: dict[int, Any] = {}
    coroutines = {}
    for index, function in enumerate(functions):
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__):
            coroutines[index] = function
        else:
            outputs[index] = function(**call)

    async def run() -> list[Any]:
        return await asyncio.gather(*(function(**call) for function in coroutines.values()))

    outputs |= dict(zip(coroutines, asyncio.run(run()), strict=True))
    rows = [outputs[index] for index in range(len(functions))]
    return np.array(
        [[math.nan if value is None else value for value in row] for row in rows], dtype=np.float64
    ).T


@pytest.mark.parametrize("is_async", [False, True])
def test_trl_gets_every_rule_from_one_request_a_batch(client, requests, score_NR, is_async):
    functions = rule_rewards(client, is_async=is_async)
    assert [function.__name__ for function in functions] == list(RULES)
    assert functions.weights == list(WEIGHT_R)
    np.testing.assert_allclose(trl_rewards(functions, PROMPTS, COMPLETIONS), score_NR, atol=1e-5)
    assert requests.count("/score") == 1
    # The trainer fills the same lists again: other texts are another batch.
    prompts, completions = [*PROMPTS], [*COMPLETIONS]
    trl_rewards(functions, prompts, completions)
    prompts[:], completions[:] = PROMPTS[::-1], COMPLETIONS[::-1]
    np.testing.assert_allclose(
        trl_rewards(functions, prompts, completions), score_NR[::-1], atol=1e-5
    )
    assert requests.count("/score") == 3


def test_trl_gets_the_composed_reward_of_plain_and_conversational_texts(client, score_NR):
    function = reward(client)
    assert function.__name__ == "encore"
    rewards = function(prompts=PROMPTS, completions=COMPLETIONS, **COLUMNS)
    np.testing.assert_allclose(rewards, score_NR @ WEIGHT_R, atol=1e-5)
    # Conversation 0 has one turn of the user.
    plain = function(prompts=[PROMPTS[0][0]["content"]], completions=RESPONSES[:1])
    assert plain == pytest.approx(rewards[:1], abs=1e-5)


def test_trl_gets_none_for_a_rule_that_was_left_out(client, monkeypatch):
    def submit(_conversations: Any) -> Any:
        scores = dict.fromkeys(RULES, 1.5)
        future: Future[Any] = Future()
        left_out = frozenset({"be-brief"})
        future.set_result(
            [TextReward(reward=0, scores=scores, contributions=scores, left_out=left_out)]
        )
        return future

    functions = rule_rewards(client)
    monkeypatch.setattr(client, "submit", submit)
    outputs = [function(prompts=["Q"], completions=["A"]) for function in functions]
    assert outputs == [[1.5], [None], [1.5]]


def test_trl_gets_none_for_dropped_rules_and_the_scores_of_watched_ones(score_NR):
    use = {"drop_rules": 0.5, "watch": ["be-true"]}
    with running(use=use) as server, RewardClient(server.url) as client:
        functions = rule_rewards(client)
        # Without be-true the weights 0.5 and 0.3 are scaled to the sum 1.
        assert functions.weights == pytest.approx([0.625, 0.375, 0])
        reward_NR = trl_rewards(functions, PROMPTS, COMPLETIONS)
        composed = reward(client)(PROMPTS, COMPLETIONS)
    is_dropped_NR = np.isnan(reward_NR)
    assert is_dropped_NR.sum(axis=1).tolist() == [1] * 6  # one of the two rules that are weighed
    assert not is_dropped_NR[:, 2].any()
    kept_NR = np.where(is_dropped_NR, 0, score_NR)
    np.testing.assert_allclose(np.nan_to_num(reward_NR), kept_NR, atol=1e-5)
    # The rule that is left has all weight.
    np.testing.assert_allclose(composed, kept_NR[:, :2].sum(axis=1), atol=1e-5)


# --- verl -----------------------------------------------------------------------------------------


def test_verl_gets_score_and_every_gdpo_key_one_text_a_call(server, score_NR):
    from encore.rewards.for_verl import compute_score

    # verl decides by this whether it awaits the function, and binds `reward_kwargs` to it.
    assert inspect.iscoroutinefunction(compute_score)
    prompts = [np.array(prompt, dtype=object) for prompt in PROMPTS]  # as from a Parquet file

    async def ask_all() -> list[dict[str, float]]:
        calls = [
            compute_score(
                data_source="d",
                solution_str=response,
                ground_truth="",
                extra_info={"prompt": prompt, "experiment_name": "e", "num_turns": None},
                url=server.url,
                reward_router_address="r",
            )
            for prompt, response in zip(prompts, RESPONSES, strict=True)
        ]
        return await asyncio.gather(*calls)

    outputs = asyncio.run(ask_all())
    shared_client(server.url).close()
    # Its reward loop takes the keys of the first text for all.
    assert {tuple(output) for output in outputs} == {("score", *RULES)}
    np.testing.assert_allclose([o["score"] for o in outputs], score_NR @ WEIGHT_R, atol=1e-5)
    scores = [[output[rule] for rule in RULES] for output in outputs]
    np.testing.assert_allclose(scores, score_NR, atol=1e-5)


def test_verl_is_told_that_its_data_lack_the_prompt():
    from encore.rewards.for_verl import compute_score

    with pytest.raises(InputError, match="extra_info has no 'prompt'"):
        asyncio.run(compute_score("d", "A", "", {"index": 1}))
    with pytest.raises(InputError, match=f"set {URL_VARIABLE}="):
        asyncio.run(compute_score("d", "A", "", {"prompt": "Q"}))


# --- OpenRLHF -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rewards", [[math.inf], [math.nan], [None], [], [1.0, 2.0], [10**400]])
def test_openrlhf_gets_no_reward_that_is_not_one_finite_number_a_text(rewards, monkeypatch):
    from encore.rewards import for_openrlhf

    model = SimpleNamespace(reward_mean=0.0)
    answer = {"rewards": rewards, "extra_logs": {}}
    client = SimpleNamespace(url="http://x", model=model, post=lambda _path, _body: answer)
    monkeypatch.setattr(for_openrlhf, "shared_client", lambda _url=None: client)
    with pytest.raises(InputError, match="expected a finite number for each"):
        for_openrlhf.reward_func(["a"], ["p"], [None])


def test_openrlhf_gets_rewards_scores_from_0_to_1_and_logs(client, server, score_NR, monkeypatch):
    from encore.rewards.for_openrlhf import reward_func

    queries = [opened_model().tokenizer.render(*conversation) for conversation in CONVERSATIONS]
    outputs = [reward_func([query], ["p"], [None]) for query in queries]  # one text a call
    rewards = [output["rewards"] for output in outputs]
    np.testing.assert_allclose(rewards, (score_NR @ WEIGHT_R)[:, None], atol=1e-5)
    # The mean 0.425 = 0.5 * 0.25 + 0.3 * 0.5 + 0.2 * 0.75 puts rewards on the scale of ratings.
    on_scale = (score_NR @ WEIGHT_R + 0.425).clip(0, 1)
    np.testing.assert_allclose([o["scores"] for o in outputs], on_scale[:, None], atol=1e-5)
    for output, score_R in zip(outputs, score_NR, strict=True):
        assert [*output["extra_logs"]] == list(RULES)
        np.testing.assert_allclose(
            [*output["extra_logs"].values()], (score_R + MEANS)[:, None], atol=1e-5
        )
    # The same shape as over HTTP, where each value is a list of one number too.
    answer = httpx.post(f"{server.url}/get_reward", json={"query": queries[:1]}).json()
    assert answer["rewards"] == pytest.approx(outputs[0]["rewards"])
    for value, score in ((9.0, 1.0), (-9.0, 0.0)):
        far = {"rewards": [value], "extra_logs": {}}
        monkeypatch.setattr(client, "post", lambda *_arguments, far=far: far)
        assert reward_func(["q"], ["p"], [None])["scores"] == [score]


# --- ms-swift -------------------------------------------------------------------------------------


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a stand-in of `swift.rewards`: its base class and its table of rewards."""

    class ORM:
        def __init__(self, args: Any = None, **_options: Any) -> None:
            self.args = args

    rewards = ModuleType("swift.rewards")
    rewards.__dict__.update(ORM=ORM, orms={"accuracy": ORM})
    monkeypatch.setitem(sys.modules, "swift", ModuleType("swift"))
    monkeypatch.setitem(sys.modules, "swift.rewards", rewards)
    return rewards


def test_swift_gets_every_rule_from_one_request_a_batch(client, requests, score_NR, swift):
    from encore.rewards.for_swift import register

    assert register() == RULES
    instances = [swift.orms[rule](args=object()) for rule in RULES]
    assert [type(instance).__name__ for instance in instances] == list(RULES)  # logged
    columns = {
        "messages": [p + c for p, c in zip(PROMPTS, COMPLETIONS, strict=True)],
        "trainer_state": None,
        "request_id": ["r"] * 6,
    }
    scores = [instance(RESPONSES, **columns) for instance in instances]
    np.testing.assert_allclose(np.array(scores).T, score_NR, atol=1e-5)
    assert requests.count("/score") == 1


def test_swift_keeps_its_own_rewards(client, swift):
    from encore.rewards.for_swift import register

    swift.orms["be-kind"] = swift.ORM
    with pytest.raises(InputError, match="like rewards of ms-swift: be-kind"):
        register(client)
    assert [*swift.orms] == ["accuracy", "be-kind"]


def test_no_file_hides_a_trainer():
    # ms-swift puts the folder of a plug-in first on sys.path: a file verl.py there would hide verl.
    names = {path.stem for path in Path(encore.rewards.__file__).parent.glob("*.py")}
    assert not names & {"trl", "verl", "openrlhf", "verifiers", "swift", "client", "httpx"}
