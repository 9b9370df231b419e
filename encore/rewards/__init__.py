"""Rewards of `encore serve` in other trainers: a client that needs httpx alone, one file a trainer.

    from encore.rewards import rule_rewards

    rules = rule_rewards("http://127.0.0.1:5000")  # one function a rule, for TRL's GRPOTrainer
    trainer = GRPOTrainer(reward_funcs=rules, args=GRPOConfig(reward_weights=rules.weights), …)

A reward that cannot be had raises an error. It is never 0.
"""

from __future__ import annotations

from encore.rewards.for_trl import reward as reward
from encore.rewards.for_trl import rule_rewards as rule_rewards
from encore.rewards.reward_client import RewardClient as RewardClient
from encore.rewards.reward_client import RewardUnavailableError as RewardUnavailableError
