"""Compute the rewards of ms-swift's GRPO with a plug-in of two lines.

Called with the paths of the request and of the answer. The plug-in imports `encore.rewards` from
the checkout that the request names.
"""

import json
import sys
from pathlib import Path

import torch
from swift.rewards import orms
from swift.rl_core.advantage import compute_advantages
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import compute_rewards_per_func
from swift.utils.utils import import_external_file

PLUGIN = "from encore.rewards.for_swift import register\n\nregister({url!r})\n"

if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, request["checkout"])
    Path("plugin.py").write_text(PLUGIN.format(url=request["url"]), encoding="utf-8")
    import_external_file("plugin.py")
    functions = [orms[name](args=None) for name in request["reward_funcs"]]
    samples = [GRPOSample(messages=messages) for messages in request["conversations"]]
    rewards = compute_rewards_per_func(samples, functions, None, torch.device("cpu"))
    weights = torch.tensor(request["reward_weights"])
    answer = {
        "names": [type(function).__name__ for function in functions],
        "rewards": rewards.double().tolist(),
        "advantages": compute_advantages(
            rewards_per_func=rewards,
            reward_weights=weights,
            num_generations=len(samples),
            advantage_estimator="grpo",
            scale_rewards="gdpo",
            kl_in_reward=False,
            beta=0.0,
            kl_values=None,
        )[0].tolist(),
    }
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
