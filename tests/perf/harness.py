"""Helpers of all measurements: rounds in turn, processes, preference pairs, a model, tables."""

from __future__ import annotations

import argparse
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
from tests.exports.readers.conversations import alternating, read_hh
from tests.worlds.models import make_classifier, tiny_config

T = TypeVar("T")
Name = TypeVar("Name")

#: Code that runs one command and prints its exit code, output, seconds and peak memory. It runs in
#: a small process: the kernel counts the memory of the process that starts a command towards the
#: command's peak, and the measuring process holds much.
_MEASURE_COMMAND = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([done.returncode, done.stdout.decode(), seconds, peak]))
"""


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints a module's docstring as it is."""
    raw = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, formatter_class=raw)


def measure_in_turn(
    sides: Mapping[Name, Callable[[], T]], *, rounds: int, is_warm: bool = False
) -> dict[Name, list[T]]:
    """Call every side once in each round, in alternating order; return the results of each side.

    Args:
        sides: Functions to compare, by name.
        rounds: Number of rounds that count.
        is_warm: False: a first round, which does not count, warms all sides up.
    """
    results: dict[Name, list[T]] = {name: [] for name in sides}
    for number in range(1 if is_warm else 0, rounds + 1):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            result = sides[name]()
            if number:
                results[name].append(result)
    return results


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def worker_process() -> ProcessPoolExecutor:
    """Start a process that computes while this one waits.

    Two thread pools in one process would slow each other.
    """
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def run_python(*arguments: object, **variables: str) -> tuple[str, float, float]:
    """Run Python with these arguments; return its output, its seconds, its peak memory in MiB."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE_COMMAND, *command],
        stdout=subprocess.PIPE,
        env=os.environ | variables,
        check=True,
    )
    code, text, seconds, peak = json.loads(done.stdout)
    assert code == 0, f"{' '.join(command)} ended with {code}"
    unit = 1 if sys.platform == "darwin" else 1024
    return text, seconds, peak * unit / 2**20


def median_and_range(values: Sequence[float]) -> str:
    """Format values as ``MEDIAN (LOWEST-HIGHEST)``."""
    low, median, high = min(values), statistics.median(values), max(values)
    return f"{_format_number(median)} ({_format_number(low)}-{_format_number(high)})"


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print one table; all rows have the columns of the first."""
    cells = [list(rows[0])]
    for row in rows:
        values = row.values()
        cells.append([_format_number(v) if isinstance(v, float) else str(v) for v in values])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for line in cells:
        padded = [f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)]
        print("  ".join([f"{line[0]:<{widths[0]}}", *padded[1:]]), flush=True)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def sample_pairs(path: Path | None, count: int) -> list[PreferencePair]:
    """Read pairs, evenly spaced, from a raw hh-rlhf file (.jsonl.gz) or the demo's synthetic one.

    Only conversations whose turns alternate: `rewardbench` finds roles by counting.
    """
    pairs = alternating(read_hh(path or DATA_PATHS["synthetic-hh"]), count=10**9)
    return pairs[:: max(1, len(pairs) // count)][:count]


def write_llama(folder: Path) -> Path:
    """Write a random one-label Llama of 20 million weights with the demo judge's tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(JUDGE_PATH)
    config = tiny_config(
        "llama",
        vocab_size=len(tokenizer),
        hidden_size=384,
        intermediate_size=1056,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=1,
    )
    return make_classifier(folder, config, tokenizer, std=0.02)
