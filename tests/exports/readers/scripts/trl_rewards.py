"""Compute the rewards of TRL's GRPOTrainer with an export as `reward_funcs`.

Called with the paths of the request and of the answer. The trainer is built as a user builds it.
It rewards the completions of the request instead of generated ones.
"""

import json
import sys
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    prompts = [messages[:-1] for messages in request["conversations"]]
    completions = [messages[-1:] for messages in request["conversations"]]
    inputs = [{"prompt": prompt} for prompt in prompts]
    trainer = GRPOTrainer(
        model=request["policy"],
        reward_funcs=request["model"],
        # TRL's default runs the reward model under bfloat16 autocast too.
        args=GRPOConfig(output_dir="trl", use_cpu=True, bf16=False, report_to=[]),
        train_dataset=Dataset.from_list(inputs),
    )
    rewards = trainer._calculate_rewards(inputs, prompts, completions, [[0]] * len(prompts))
    answer = {"scores": rewards.double().tolist()}
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
