"""The measurement on a CPU: ours and TRL's RewardTrainer, each in a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from tests.perf.training.data import Pairs, sample_of_grouped_batches, tokenise
from tests.perf.training.model_folder import write_model
from tests.perf.training.rounds import Contender, Round
from tests.perf.training.table import Arithmetic, table
from tests.perf.training.trl_environment import TRL_REQUIREMENT, trl_environment

OURS, OURS_SHARED = "ours, packed", "ours, prefix-shared"
TRL, TRL_GROUPED = "TRL default", "TRL grouped"
_LEARNING_RATE = 2e-5
_MATRIX = 1536


def measure(options: argparse.Namespace) -> list[str]:
    """The lines to print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_parameters = write_model(folder / "model", hidden=options.hidden, layers=options.layers)
        pairs = _pairs(folder, options)
        with _contenders(folder, options) as contenders:
            rounds: dict[str, list[Round]] = {contender: [] for contender in contenders}
            for number in range(options.rounds):
                order = list(contenders)[:: 1 if number % 2 == 0 else -1]
                for contender in order:
                    rounds[contender].append(contenders[contender].train_round())
        arithmetic = _arithmetic(folder / "model", pairs)
    baseline = OURS if options.without_trl else TRL
    heading = (
        f"{num_parameters / 1e6:.1f}M parameters, float32, Bradley-Terry, {options.batch_pairs} "
        f"pairs a step, {len(pairs.chosen)} pairs of {pairs.length_N.mean():.0f} tokens a response"
    )
    terms = (
        f"{torch.get_num_threads()} threads, median of {options.rounds} alternating rounds, "
        f"checkpointing {'on' if options.checkpointing else 'off'} for all, {TRL_REQUIREMENT}; MFU "
        f"against a measured {arithmetic.peak_flops / 1e9:.0f} GFLOP/s"
    )
    return [
        heading,
        terms,
        "",
        *table(rounds, arithmetic=arithmetic, baseline=baseline),
    ]


def _pairs(folder: Path, options: argparse.Namespace) -> Pairs:
    from encore.model.config import BackboneConfig
    from encore.model.loading import load_tokenizer

    tokenizer = load_tokenizer(BackboneConfig(model=str(folder / "model")))
    pairs = sample_of_grouped_batches(
        tokenise(options.pairs, tokenizer=tokenizer),
        num_pairs=options.num_pairs,
        batch_pairs=options.batch_pairs,
    )
    pairs.save(folder / "pairs.npz")
    return pairs


@contextlib.contextmanager
def _contenders(folder: Path, options: argparse.Namespace) -> Iterator[Mapping[str, Contender]]:
    shared = ["--model", str(folder / "model"), "--pairs", str(folder / "pairs.npz")]
    shared += ["--batch-pairs", str(options.batch_pairs), "--learning-rate", str(_LEARNING_RATE)]
    shared += ["--checkpointing"] if options.checkpointing else []
    started: dict[str, Contender] = {}

    def start(name: str, command: list[str], environment: Mapping[str, str]) -> None:
        log = folder / f"{len(started)}.log"
        started[name] = Contender(name, [*command, *shared], log=log, environment=environment)

    try:
        for name, layout in ((OURS, "packed"), (OURS_SHARED, "prefix-shared")):
            module = "tests.perf.training.our_contender"
            start(name, [sys.executable, "-m", module, "--layout", layout], {})
        if not options.without_trl:
            trl = trl_environment(folder / "trl", python=options.trl_python)
            command = [trl.python, "-m", "tests.perf.training.trl_contender"]
            start(TRL, command, trl.environment)
            start(TRL_GROUPED, [*command, "--grouped"], trl.environment)
        yield started
    finally:
        for contender in started.values():
            contender.close()


def _arithmetic(model: Path, pairs: Pairs) -> Arithmetic:
    from transformers import AutoConfig

    from encore.training.backbone_shape import (
        attention_length,
        flops_per_token,
        shape_from_config,
    )

    shape = shape_from_config(AutoConfig.from_pretrained(model).to_dict(), name="small")
    return Arithmetic(
        flops_per_token=flops_per_token(
            shape, sequence_length=attention_length(pairs.length_N.tolist())
        ),
        peak_flops=_matrix_flops(),
    )


def _matrix_flops() -> float:
    """Operations per second of the best of ten large float32 products: a CPU's practical peak."""
    left, right = torch.randn(_MATRIX, _MATRIX), torch.randn(_MATRIX, _MATRIX)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - started)
    return 2 * _MATRIX**3 / best


def quiet() -> None:
    """No progress bars and no network, here and in every contender."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
