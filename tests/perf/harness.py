"""What the measurements share: warm rounds in turn, child processes, pairs, a model, a table."""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from encore.data.records import PreferencePair
from encore.demo import DATA_PATHS, JUDGE_PATH
from tests.export.readers.conversations import alternating, read_hh

T = TypeVar("T")
Name = TypeVar("Name")

#: Runs one command. A process of its own: the kernel counts the memory of who starts a process
#: towards that process's peak, and the measuring one holds much.
_MEASURED = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([done.returncode, done.stdout.decode(), seconds, peak]))
"""


def in_turn(
    sides: Mapping[Name, Callable[[], T]], *, rounds: int, is_warm: bool = False
) -> dict[Name, list[T]]:
    """What every side gave in each round, all side by side on one machine.

    Unless they are warm, a first round warms all of them up and does not count; then the order
    alternates.
    """
    found: dict[Name, list[T]] = {name: [] for name in sides}
    for number in range(1 if is_warm else 0, rounds + 1):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            result = sides[name]()
            if number:
                found[name].append(result)
    return found


def seconds_of(work: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def worker() -> ProcessPoolExecutor:
    """A process that works while this one waits: two thread pools in one process share badly."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def child(*arguments: object, **variables: str) -> tuple[str, float, float]:
    """A Python process: what it printed, its seconds, its peak memory in MiB."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *command],
        stdout=subprocess.PIPE,
        env=os.environ | variables,
        check=True,
    )
    code, text, seconds, peak = json.loads(done.stdout)
    assert code == 0, f"{' '.join(command)} ended with {code}"
    unit = 1 if sys.platform == "darwin" else 1024
    return text, seconds, peak * unit / 2**20


def spread(values: Sequence[float]) -> str:
    """The median, and from where to where."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{_number(middle)} ({_number(low)}-{_number(high)})"


def show(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print one table; all rows have the columns of the first."""
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for line in cells:
        padded = [f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)]
        print("  ".join([f"{line[0]:<{widths[0]}}", *padded[1:]]), flush=True)


def _cell(value: object) -> str:
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def sample_pairs(path: Path | None, count: int) -> list[PreferencePair]:
    """Pairs evenly from a raw hh-rlhf file (.jsonl.gz), else from the demo's synthetic ones.

    Their turns alternate: `rewardbench` names roles by counting.
    """
    pairs = alternating(read_hh(path or DATA_PATHS["synthetic-hh"]), count=10**9)
    return pairs[:: max(1, len(pairs) // count)][:count]


def write_llama(folder: Path) -> int:
    """Save a random one-label Llama with the demo judge's tokenizer; its number of parameters."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    from encore.model.loading import quiet_transformers

    hidden = 384
    tokenizer = AutoTokenizer.from_pretrained(JUDGE_PATH)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=8,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        num_labels=1,
    )
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(config)
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
