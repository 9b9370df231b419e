"""What a rating run will take: calls, tokens by layout, hours and money; and what it took.

Tokens are counted (`encore.rating.token_counts`). Hours are measured on a pilot, or estimated for a
GPU from the judge's size. Plans are dictionaries of plain JSON values.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa

from encore.config import PricesConfig, PromptLayout, RatingConfig, StudyConfig, option
from encore.data.study import Study
from encore.engines.local import visible_gpus
from encore.errors import EncoreError
from encore.judges.base import num_devices
from encore.rating.rating_run import RatingRun, open_run, rate
from encore.rating.token_counts import (
    MAX_COUNTED_PAIRS,
    TokenCounts,
    count_tokens,
    kv_block_size,
)
from encore.reporting import SILENT, Reporter
from encore.shard_runner import RunReport
from encore.training.backbone_shape import find_shape, flops_per_token
from encore.training.gpus import Gpu, gpu_named
from encore.training.plan import PlanTrainConfig

#: Replies that an engine writes at once: each of its steps reads all weights.
_REPLIES_AT_ONCE = 256
#: For the comparison at a run's end, which is to take a second or two.
_MAX_COMPARED_PAIRS = 200
#: For comparison.
_UNCACHED = "paper, no cache"
_TRAINING: dict[str, Any] = dict(PlanTrainConfig.model_fields)


class PlanRateConfig(PricesConfig, RatingConfig, StudyConfig):
    """`encore plan rate`: a rating run, and what it is to run on."""

    engines: Literal[1] = option(1, hidden=True, identity=False, help="As --count says.")
    silence_seconds: float = option(600, hidden=True, identity=False, help="Of several engines.")
    gpu: str | None = option(
        None, metavar="GPU", help="Estimate hours on h100-80, h200-141, a100-80, l40s-48…"
    )
    count: int = option(1, ge=1, help="So many GPUs; without GPUs: machines like this one.")
    utilisation: float = _TRAINING["utilisation"]
    calibrate: int | None = option(
        None,
        ge=1,
        metavar="PAIRS",
        help="Measure hours and replies: rate so many pairs here, as `encore rate --limit` does. "
        "These ratings are kept, and a larger run does not ask for them again.",
    )


class _Pilot(NamedTuple):
    """What a calibration took, without the engine's start."""

    num_pairs: int
    num_calls: int
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    seconds: float
    startup_seconds: float


def plan_rating(
    config: PlanRateConfig, study: Study, *, reporter: Reporter = SILENT
) -> dict[str, Any]:
    """Calls, and by layout tokens, hours and money, as JSON values.

    Raises:
        EncoreError: An unknown GPU; as `encore.rating.rating_run.open_run`.
    """
    gpu = gpu_named(config.gpu) if config.gpu else None
    run = open_run(study, config)
    pilot = _calibrated(config, study, reporter) if config.calibrate else None
    notes = []
    if run.judge.tokenizer is None:
        notes.append("the judge has no tokenizer here: calls are counted, tokens are not")
    layouts: dict[str, Any] = {}
    counts = _counts_by_layout(run, is_on_cpu=gpu is None and not visible_gpus())
    for name, counted in counts.items():
        one = counted
        if pilot and pilot.num_calls:
            one = one._replace(output_tokens=round(one.num_calls * pilot.output_tokens / pilot.num_calls))
        seconds = None
        layouts[name] = one._asdict()
    return layouts
