"""Open the model, the weights and the policy's template of `encore serve`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from encore.core.terminal import VisibleFormatter
from encore.exports.weights_input import one_reward
from encore.model.open_model import open_reward_model
from encore.serving.host_guard import host_names
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
    policy = None
    if config.policy_tokenizer is not None:
        policy = load_policy_template(config.policy_tokenizer)
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])
    for name in ("encore.serving", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
    return RewardApp(
        opened,
        composition=one_reward(config.composition, model=opened),
        limits=config.limits,
        on_ready=on_ready,
        hosts=host_names(config.host, further=config.allowed_hosts),
        policy=policy,
        use=config.use,
        threshold=config.threshold,
    )
