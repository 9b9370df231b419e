"""A round of our own training loop, in this process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from encore.training.loop import Steps, peak_memory_bytes, run_steps
from encore.training.run_folder import StepRecord
from tests.perf.training.data import Pairs
from tests.perf.training.rounds import Round

#: No pair is held out and nothing is saved: both would be timed as training.
NEVER = 10**9


class _Rows:
    """A split in which every pair is for training."""

    def __init__(self, num_pairs: int) -> None:
        self.train_rows = np.arange(num_pairs)
        self.evaluation_rows = np.arange(0)


def train_round(
    model: Any,
    pairs: Pairs,
    config: Any,
    *,
    optimizer: Any,
    pad_token_id: int,
    num_steps: int,
    start_step: int = 0,
) -> Round:
    """Steps ``start_step + 1`` to ``num_steps`` of the product's loop, timed from outside."""
    records: list[StepRecord] = []
    device = model.heads.weight.device
    _wait_for(device)
    started = time.perf_counter()
    run_steps(
        Steps(
            model=model,
            examples=pairs,
            split=_Rows(len(pairs.chosen)),
            config=config.model_copy(update={"max_steps": num_steps, "epochs": 100}),
            optimizer=optimizer,
            pad_token_id=pad_token_id,
        ),
        start_step=start_step,
        on_record=records.append,
        save=lambda *_: None,
    )
    _wait_for(device)
    seconds = time.perf_counter() - started
    num_tokens = sum(record.num_tokens for record in records)
    num_computed = sum(record.num_computed for record in records)
    return Round(
        seconds=seconds,
        num_tokens=num_tokens,
        num_computed=num_computed,
        num_padding=num_computed - _num_distinct(pairs, config, records),
        peak_memory_bytes=peak_memory_bytes(device),
    )


def _num_distinct(pairs: Pairs, config: Any, records: list[StepRecord]) -> int:
    """Token positions that the data needs: with a shared beginning, once a pair.

    Exact where a round is one pass; a part of a pass counts its own steps' share.
    """
    num_tokens = sum(record.num_tokens for record in records)
    if config.layout != "prefix-shared":
        return num_tokens
    total = int(pairs.length_N.sum())
    if num_tokens != total:
        return sum(record.num_computed for record in records)
    return total - pairs.num_shared


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
