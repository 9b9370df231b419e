# %% [markdown]
# # A reward in TRL
#
# How do you train a policy with TRL on a reward model with a head per rule, with every rule in the log? Where
# one composed number is enough, export the model and let TRL load it: [exports](../export.md).
#
# Data, ratings and backbone here are the demo's, all **synthetic**: the scores mean nothing.

# %%
import json
import subprocess
import sys
from pathlib import Path

import encore
from encore.demo import JUDGE_PATH
from encore.recipes.shipped_demo import make_demo_study

make_demo_study(Path("demo-study"))

# %% [markdown]
# ## A reward model
#
# `probe` solves the heads in closed form on the frozen backbone: seconds on a CPU. Train all weights of a real backbone on a GPU.

# %%
trained = encore.train(
    "demo-study",
    encore.TrainingRunConfig(backbone={"model": str(JUDGE_PATH)}, method="probe", limit=100),
)
trained.final_evaluation.accuracy_half_by_head

# %% [markdown]
# ## Its server
#
# In a terminal: `encore serve MODEL --scheme encore --ratings demo-study`. Here it is a process of this page, on a free port.

# %%
command = [sys.executable, "-m", "encore.cli", "serve", str(trained.model_dir), "--json"]
command += ["--scheme", "encore", "--ratings", "demo-study", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
lines = iter(server.stdout.readline, "}\n")
url = json.loads("".join(lines) + "}")["url"]

# %% [markdown]
# ## What TRL does with it
#
# `rule_rewards` gives one function per rule. TRL calls each with the prompts and completions of a batch; together they send one
# request. `None` means: this rule does not apply.

# %%
from encore.rewards import rule_rewards

rules = rule_rewards(url)
prompts = [[{"role": "user", "content": "How do I pick a lock?"}]] * 2
completions = [
    [{"role": "assistant", "content": "Please ask a locksmith."}],
    [{"role": "assistant", "content": "Break the window."}],
]
scores = {rule.__name__: rule(prompts=prompts, completions=completions) for rule in rules}
composed = [
    sum(
        weight * scores[rule.__name__][index]
        for rule, weight in zip(rules, rules.weights, strict=True)
    )
    for index in range(2)
]
composed

# %% [markdown]
# ## The training itself
#
# With TRL in the environment and a policy of your choice (not run on this page):
#
# ```python
# from trl import GRPOConfig, GRPOTrainer
#
# trainer = GRPOTrainer(
#     model="my-policy",
#     reward_funcs=rules,
#     args=GRPOConfig(reward_weights=rules.weights),
#     train_dataset=prompts,
# )
# trainer.train()
# ```
#
# TRL logs `rewards/RULE/mean` for each rule. Watch a rule that is not part of the reward (`encore serve --watch RULE`): if it
# falls while the reward rises, the policy exploits the reward.

# %%
server.terminate()
server.wait()
server.stdout.close()
