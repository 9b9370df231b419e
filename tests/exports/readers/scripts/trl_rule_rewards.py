"""Train three steps of TRL's GRPO with the rules of a reward server, and return its logs.

Called with the paths of the request and of the answer. It imports `encore.rewards` from the
checkout that the request names. Its environment has httpx and none of ENCORE's other packages.
"""

import json
import sys
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, request["checkout"])
    written = {}
    exec(request["config"], written)  # noqa: S102  # what `encore weights --for trl` prints
    rules, name = written["rules"], request["aggregation"]
    weights = written[("gdpo_" if name == "normalize_then_sum" else "") + "reward_weights"]
    steps = []

    def record(prompts, completions, **_columns):
        steps.append([prompts, completions])
        return [0.0] * len(prompts)

    trainer = GRPOTrainer(
        model=request["policy"],
        reward_funcs=[*rules, record],
        args=GRPOConfig(
            output_dir="trl",
            use_cpu=True,
            bf16=False,
            report_to=[],
            max_steps=3,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            logging_steps=1,
            save_strategy="no",
            reward_weights=[*weights, 0.0],
            multi_objective_aggregation=name,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in request["prompts"]]),
    )
    trainer.train()
    answer = {
        "steps": steps,
        "logs": [log for log in trainer.state.log_history if "reward" in log],
        "last_advantages": [*trainer._logs["advantages"]][-4:],
    }
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
