"""Let a trainer's own client fetch the rewards of conversations from a server.

Called with the paths of the request and of the answer. The request names the trainer. A client's
module is imported without the parts of its package that need a whole training.
"""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock


def llama_factory(request):
    """Return the rewards that LLaMA-Factory's PPO gets for rendered texts."""
    folder = Path(importlib.util.find_spec("llamafactory").origin).parent
    for name in ("", ".extras", ".train", ".train.ppo"):
        package = ModuleType(f"llamafactory{name}")
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[package.__name__] = package
    # Of torch it needs the tensor of the rewards alone, of transformers nothing.
    sys.modules["torch"] = SimpleNamespace(Tensor=list)
    for name in ("", ".integrations", ".utils", ".utils.import_utils"):
        sys.modules[f"transformers{name}"] = MagicMock()
    from llamafactory.train.ppo.ppo_utils import get_rewards_from_server

    return get_rewards_from_server(f"{request['url']}/v1/score/evaluation", request["texts"])


def verl(request):
    """Return the rewards that verl's worker of the reward loop gets for generated tokens."""
    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl import DataProto
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    worker = RewardLoopWorker.__new__(RewardLoopWorker)  # the rest of a training's config is absent
    worker.reward_router_address = request["url"].removeprefix("http://")
    model = {"enable": True, "model_path": "reward", "rollout": {"name": "vllm"}}
    reward = {"custom_reward_function": {"path": None}, "reward_model": model}
    worker.config = OmegaConf.create({"reward": reward})
    worker.input_tokenizer = AutoTokenizer.from_pretrained(request["policy"])
    worker.reward_model_tokenizer = AutoTokenizer.from_pretrained(request["reward_model"])
    policy, size = worker.input_tokenizer, {"padding": "longest", "return_tensors": "pt"}
    generated = policy([text + policy.eos_token for text in request["responses"]], **size)
    prompt_mask = torch.ones_like(generated.attention_mask)
    data = DataProto.from_dict(
        tensors={
            "responses": generated.input_ids,
            "attention_mask": torch.cat([prompt_mask, generated.attention_mask], dim=1),
        },
        non_tensors={"raw_prompt": np.array([*request["prompts"], None], dtype=object)[:-1]},
    )
    outputs = asyncio.run(worker.compute_score_batch(data))
    return [output["reward_score"] for output in outputs]


def nemo_gym(request):
    """Return the rollouts of NeMo Gym's simple agent, and what it logs of them."""
    from nemo_gym.config_types import AggregateMetricsRequest, BaseServerConfig
    from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig as Limits
    from nemo_gym.server_utils import ServerClient, set_global_aiohttp_client
    from omegaconf import OmegaConf
    from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentRunRequest

    class Client(ServerClient):
        """Client of the reward server; the model's response is given."""

        async def post(self, server_name, url_path, **options):
            if server_name != "agent":
                return await super().post(server_name, url_path, **options)
            part = {"type": "output_text", "annotations": [], "text": self.texts.pop(0)}
            message = {"id": "1", "type": "message", "role": "assistant", "status": "completed"}
            fields = {"id": "1", "object": "response", "created_at": 0, "model": "policy"}
            tools = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}
            body = json.dumps(fields | tools | {"output": [message | {"content": [part]}]})
            return SimpleNamespace(ok=True, cookies={}, read=lambda: asyncio.sleep(0, body))

    async def run():
        set_global_aiohttp_client(Limits())
        host, port = request["url"].removeprefix("http://").split(":")
        address = {"host": host, "port": int(port)}
        servers = OmegaConf.create({"rewards": {"resources_servers": {"encore": address}}})
        head = BaseServerConfig(host=host, port=int(port))
        client = Client(head_server_config=head, global_config_dict=servers)
        object.__setattr__(client, "texts", [*request["responses"]])
        config = SimpleNamespace(name="agent", resources_server=SimpleNamespace(name="rewards"))
        agent = SimpleAgent.model_construct(config=config, server_client=client)
        rollouts = []
        for prompt in request["prompts"]:
            params = {"responses_create_params": {"input": prompt}, "task": "kept"}
            run_request = SimpleAgentRunRequest.model_validate(params)
            rollout = await agent.run(SimpleNamespace(cookies={}), run_request)
            rollouts.append(rollout.model_dump(mode="json"))
        metrics = await agent.aggregate_metrics(AggregateMetricsRequest(verify_responses=rollouts))
        return {"rollouts": rollouts, "metrics": metrics.model_dump()}

    return asyncio.run(run())


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer = {"answer": globals()[request["trainer"]](request)}
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
