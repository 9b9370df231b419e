"""GRPO on the rules of a reward server, with a rule beside them that is watched and never rewarded.

``python -m examples.grpo_proof STUDY --url http://127.0.0.1:5000 --policy encore/demo/judge --out
proof`` in an environment with TRL and httpx (ENCORE itself is not needed there; run it in a
checkout). The server is ``encore serve MODEL --scheme encore --ratings STUDY --watch RULE``.

A tiny policy first learns to write responses like the study's (both of a pair, on prompts that are
not measured). Then each seed trains it with `GRPOTrainer`, one reward function a rule. Reward and
rules are measured on the same prompts before and after, by sampled completions; intervals are 95 %
over prompts. The samples of the untrained policy are written for `examples.best_of_n`. Whatever
comes out is printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from encore.rewards import RewardClient, rule_rewards
from encore.rewards.conversations import conversation_json

_Floats = NDArray[np.float64]
#: Prompts that no training sees, and samples of each: of the untrained and of the trained policy.
NUM_MEASURED, NUM_BEFORE, NUM_AFTER = 24, 32, 16
#: Tokens of a completion.
MAX_TOKENS = 32
ON_CPU: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "gradient_checkpointing": False,
}


def sample(model: Any, tokenizer: Any, prompts: list[Any], num_samples: int) -> list[list[str]]:
    """Sample completions of each prompt at temperature 1."""
    rendered = [
        tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        for prompt in prompts
    ]
    texts = []
    for prompt in rendered:
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            sequences = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                num_return_sequences=num_samples,
                max_new_tokens=MAX_TOKENS,
            )
        texts.append(tokenizer.batch_decode(sequences[:, ids.shape[1] :], skip_special_tokens=True))
    return texts


def measure(client: RewardClient, prompts: list[Any], texts: list[list[str]]) -> list[Any]:
    """Return one row per sample: prompt, response, reward and the score of every rule."""
    rows = []
    for number, (prompt, responses) in enumerate(zip(prompts, texts, strict=True)):
        scored = client.score([conversation_json(prompt, response) for response in responses])
        rows += [
            {"prompt": number, "response": text, "reward": row.reward, "scores": dict(row.scores)}
            for text, row in zip(responses, scored, strict=True)
        ]
    return rows


def prompt_means(rows: list[Any], rule: str | None = None) -> _Floats:
    """Return the mean reward, or score of a rule, of each prompt."""
    values: dict[int, list[float]] = {}
    for row in rows:
        value = row["scores"][rule] if rule else row["reward"]
        values.setdefault(row["prompt"], []).append(value)
    return np.array([np.mean(values[number]) for number in sorted(values)])


def interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Return a mean with its 95 % interval (normal, over prompts)."""
    array = np.asarray(list(values))
    half = 1.96 * array.std(ddof=1) / np.sqrt(len(array))
    return float(array.mean()), float(array.mean() - half), float(array.mean() + half)


def in_words(estimate: tuple[float, float, float]) -> str:
    """Return a mean and its interval as text."""
    return "{:+.4f} ({:+.4f} to {:+.4f})".format(*estimate)


def verdict(name: str, change: tuple[float, float, float]) -> str:
    """Say whether a mean moved beyond its interval."""
    direction = "rose" if change[1] > 0 else "fell" if change[2] < 0 else "did not move clearly"
    return f"{name} {direction}: {in_words(change)}"


def learn_to_write(policy: str, pairs: list[Any], folder: Path) -> None:
    """Train the policy on both responses of each pair, and save it."""
    rows = [
        {"prompt": pair["prompt"], "completion": [{"role": "assistant", "content": pair[side]}]}
        for pair in pairs
        for side in ("chosen", "rejected")
    ]
    config = SFTConfig(
        output_dir=str(folder),
        num_train_epochs=4,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        max_length=72,
        logging_steps=20,
        **ON_CPU,
    )
    trainer = SFTTrainer(model=policy, args=config, train_dataset=Dataset.from_list(rows))
    trainer.train()
    trainer.save_model(str(folder))
    AutoTokenizer.from_pretrained(policy).save_pretrained(str(folder))


def train(policy: Path, prompts: list[Any], client: RewardClient, arguments: Any) -> GRPOTrainer:
    """Train the policy by GRPO, one reward function a rule."""
    rules = rule_rewards(client)
    config = GRPOConfig(
        output_dir=str(policy.parent / "grpo"),
        max_steps=arguments.steps,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=MAX_TOKENS,
        learning_rate=arguments.learning_rate,
        lr_scheduler_type="constant",
        logging_steps=1,
        reward_weights=rules.weights,
        seed=arguments.seed,
        **ON_CPU,
    )
    trainer = GRPOTrainer(
        model=str(policy),
        reward_funcs=list(rules),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
    )
    trainer.train()
    return trainer


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    return parser.parse_args()


def read_pairs(study: Path) -> list[dict[str, Any]]:
    """Return the pairs of a study with the last turn of each prompt: short texts for a CPU."""
    pairs = [
        row
        for file in sorted((study / "pairs").glob("*.parquet"))
        for row in pq.read_table(file, columns=["prompt", "chosen", "rejected"]).to_pylist()
    ]
    for pair in pairs:
        pair["prompt"] = pair["prompt"][-1:]
    return pairs


def print_curves(log_history: list[dict[str, float]], weights: Mapping[str, float]) -> None:
    """Print each rule and the length at the beginning and the end of a training."""
    logs = [log for log in log_history if "reward" in log]
    tenth = max(1, len(logs) // 10)
    print("rule, weight, mean of the first and of the last tenth of the steps")
    for rule, weight in weights.items():
        curve = [log[f"rewards/{rule}/mean"] for log in logs]
        first, last = np.mean(curve[:tenth]), np.mean(curve[-tenth:])
        print(f"  {rule}  {weight:.3f}  {first:+.4f}  {last:+.4f}")
    lengths = [log["completions/mean_length"] for log in logs]
    print(f"mean length {np.mean(lengths[:tenth]):.0f} to {np.mean(lengths[-tenth:]):.0f} tokens")


def main() -> None:
    """Train every seed, and print reward and rules before and after."""
    arguments = read_arguments()
    torch.set_num_threads(1)
    client = RewardClient(arguments.url)
    watched = [rule for rule, weight in client.model.weights.items() if weight == 0]
    pairs = read_pairs(arguments.study)
    by_prompt = {json.dumps(pair["prompt"]): pair["prompt"] for pair in pairs}
    measured, trained = [*by_prompt][:NUM_MEASURED], [*by_prompt][NUM_MEASURED:]
    prompts = [by_prompt[key] for key in measured]

    writer = arguments.out / "policy"
    if not (writer / "config.json").exists():
        learn_to_write(
            arguments.policy,
            [pair for pair in pairs if json.dumps(pair["prompt"]) not in measured],
            writer,
        )
    tokenizer = AutoTokenizer.from_pretrained(str(writer))
    set_seed(0)
    untrained = AutoModelForCausalLM.from_pretrained(str(writer))
    before = measure(client, prompts, sample(untrained, tokenizer, prompts, NUM_BEFORE))
    (arguments.out / "samples.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in before), encoding="utf-8"
    )
    spread = np.std([row["reward"] for row in before])
    print(f"reward before: {in_words(interval(prompt_means(before)))}")
    print(f"standard deviation of one sample {spread:.4f}; watched: {', '.join(watched)}")

    for seed in range(arguments.seeds):
        arguments.seed = seed
        trainer = train(writer, [by_prompt[key] for key in trained], client, arguments)
        set_seed(1000 + seed)
        after = measure(client, prompts, sample(trainer.model, tokenizer, prompts, NUM_AFTER))
        print(f"\nseed {seed}, {arguments.steps} steps")
        print(f"reward after: {in_words(interval(prompt_means(after)))}")
        gain = interval(prompt_means(after) - prompt_means(before))
        print(verdict("reward", gain))
        for rule in watched:
            change = interval(prompt_means(after, rule) - prompt_means(before, rule))
            hacked = change[2] < 0 < gain[1]
            print(f"watched: {verdict(rule, change)}")
            print(
                f"it {'fell' if hacked else 'did not fall'} while the reward rose"
                if gain[1] > 0
                else "the reward did not rise"
            )
        print_curves(trainer.state.log_history, client.model.weights)
        print(f"a response: {after[0]['response']!r}", flush=True)


if __name__ == "__main__":
    main()
