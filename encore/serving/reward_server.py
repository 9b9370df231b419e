"""The application of one model, loaded with its weights."""

from __future__ import annotations

import logging
from collections.abc import Callable

from encore.core.errors import InputError
from encore.export.weights_input import chosen_weights, one_rule
from encore.model.opening import open_reward_model
from encore.serving.reward_app import RewardApp
from encore.serving.serve_config import ServeConfig


def open_app(config: ServeConfig, *, on_ready: Callable[[RewardApp], None]) -> RewardApp:
    """The application of `encore serve`, its model loaded; it logs a line a request on stderr.

    Args:
        config: The model, its weights and the limits.
        on_ready: Called when requests are about to be answered.

    Raises:
        InputError: No such model or weights; several heads and no weights.
    """
    how = config.model_dump(include={"device", "dtype", "max_length", "revision"})
    opened = open_reward_model(config.model, **how)
    head_ids = opened.model.head_ids
    composition = chosen_weights(config.composition, head_ids=head_ids)
    if composition is None:
        if len(head_ids) > 1:
            raise InputError(
                f"the model has {len(head_ids)} heads and a reward is one number; say what they "
                "weigh: --weights FILE, as `encore weights --json` writes it, or --rule or --scheme"
            )
        composition = one_rule(head_ids[0], head_ids=head_ids)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    for name in ("encore.serving", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
    return RewardApp(opened, composition=composition, limits=config.limits, on_ready=on_ready)
