"""Best-of-n from cached scores: the reward of the chosen response, and a rule beside it.

``python -m examples.best_of_n samples.jsonl --rule RULE`` reads one row per sample (prompt, reward,
scores of the rules), as `examples.grpo_proof` writes them. Nothing is sampled again: the mean over
all subsets of n samples is exact. KL(best of n || policy) is at most log n - (n - 1) / n (arXiv
2401.01879).

Suffixes: N samples of a prompt, P prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from math import comb, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]


def best_of_n(reward_N: Sequence[float], value_N: Sequence[float], n: int) -> float:
    """Return the mean value of the response of highest reward, over all subsets of n samples.

    The sample of rank i (from 1, ascending) is the best of C(i - 1, n - 1) of the C(N, n) subsets.
    Samples of equal reward share their mean value.

    Example:
        >>> best_of_n([1.0, 2.0, 3.0], [3.0, 0.0, 9.0], 2)  # pairs: (1,2), (1,3), (2,3)
        6.0
    """
    reward = np.asarray(reward_N, dtype=np.float64)
    values, equal_N = np.asarray(value_N, dtype=np.float64), np.unique(reward, return_inverse=True)
    groups = equal_N[1]
    values = (np.bincount(groups, weights=values) / np.bincount(groups))[groups]
    order_N = np.argsort(reward, kind="stable")
    subsets = [comb(rank, n - 1) for rank in range(len(reward))]
    return float(np.dot(subsets, values[order_N]) / comb(len(reward), n))


def main() -> None:
    """Print, for n in powers of 2, KL, reward and rule of the chosen response with intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--rule", required=True)
    arguments = parser.parse_args()
    by_prompt: dict[int, list[tuple[float, float]]] = {}
    for line in arguments.samples.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        sample = (row["reward"], row["scores"][arguments.rule])
        by_prompt.setdefault(row["prompt"], []).append(sample)
    columns = [[*zip(*samples, strict=True)] for samples in by_prompt.values()]
    num_samples = min(len(rewards) for rewards, _ in columns)
    sizes = [2**power for power in range(num_samples.bit_length()) if 2**power <= num_samples]
    print("n   KL at most  reward of the chosen response  watched rule")
    for n in sizes:
        cells = []
        for name in (0, 1):
            value_P = np.array([best_of_n(column[0], column[name], n) for column in columns])
            half = 1.96 * value_P.std(ddof=1) / np.sqrt(len(value_P))
            cells.append((value_P.mean(), half))
        texts = [f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})" for mean, half in cells]
        print(f"{n:<3} {log(n) - (n - 1) / n:10.2f}  {texts[0]:29}  {texts[1]}")


if __name__ == "__main__":
    main()
