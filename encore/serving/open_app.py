"""Open the model, the weights and the policy's template of `encore serve`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from encore.core.errors import InputError
from encore.export.weights_input import chosen_weights, one_rule
from encore.model.open_model import open_reward_model
from encore.serving.policy_template import load_policy_template
from encore.serving.reward_app import RewardApp
from encore.serving.serve_options import ServeConfig


def open_app(config: ServeConfig, *, on_ready: Callable[[RewardApp], None]) -> RewardApp:
    """Load a model and return the application of `encore serve`. It logs requests on stderr.

    Args:
        config: Options of the server: model, weights, limits.
        on_ready: Function that is called when the server is about to answer requests.

    Raises:
        InputError: There is no such model or no such weights, or the model has several heads and
            no weights are given.
    """
    model_options = config.model_dump(include={"device", "dtype", "max_length", "revision"})
    opened = open_reward_model(config.model, **model_options)
    head_ids = opened.model.head_ids
    composition = chosen_weights(config.composition, head_ids=head_ids, held_out=opened.held_out)
    if composition is None:
        if len(head_ids) > 1:
            raise InputError(
                f"the model has {len(head_ids)} heads and a reward is one number; give their "
                "weights: --weights FILE, as `encore weights --json` writes it, --rule or --scheme"
            )
        composition = one_rule(head_ids[0], head_ids=head_ids)
    policy = None
    if config.policy_tokenizer is not None:
        policy = load_policy_template(config.policy_tokenizer)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    for name in ("encore.serving", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
    return RewardApp(
        opened,
        composition=composition,
        limits=config.limits,
        on_ready=on_ready,
        policy=policy,
        use=config.use,
        threshold=config.threshold,
    )
