"""Measure how often intervals of a refusal rate contain the truth, on people's labels of XSTest.

Usage: python -m examples.xstest_rates FOLDER [--studies 2000] [--picture judge-alone.svg]

FOLDER is ``evaluation/automated_evaluation_labels`` of the public repository of XSTest
(paul-rottger/exaggerated-safety). Its completions have people's labels, and those of GPT-4 and of
string matching as judges. A study draws as many prompts as there are, with repetition and with all
their completions, and labels some completions; the truth is people's rate over all completions.
Prompts with an id whose remainder by 5 is 3 or 4 are left for later checks.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encore.analysis.corrected_rate import CorrectedRate, corrected_rate, joint_levels
from encore.people.next_draw import next_probabilities, probabilities_after, systematic_draw
from encore.people.rates_by_rule import label_probabilities

# Suffixes: N completions, 3 people, GPT-4 and string matching.

MODELS = ("gpt4", "llama2new", "llama2orig", "mistralguard", "mistralinstruct")
NUM_LABELS = (30, 100, 300)
JUDGES = {"GPT-4": [1], "string match": [2], "both": [1, 2]}

_Floats = NDArray[np.float64]
_Indices = NDArray[np.intp]


def read_completions(folder: Path) -> tuple[_Floats, _Indices]:
    """Return who says that a completion refuses, fully or partly, shape [3, N], and its prompt."""
    refusals, prompts = [], []
    for model in MODELS:
        tables = []
        for judge in ("gpteval", "streval"):
            path = folder / f"xstest_v2_completions_{model}_{judge}.csv"
            with path.open(encoding="utf-8", newline="") as file:
                tables.append([*csv.DictReader(file)])
        for by_gpt4, by_string in zip(*tables, strict=True):
            prompt = int(by_gpt4["id"].rpartition("-")[2])
            if prompt % 5 < 3:
                texts = by_gpt4["final_label"], by_gpt4["gpt4_label"], by_string["strmatch_label"]
                refusals.append([not text.startswith("1_full_compliance") for text in texts])
                prompts.append(prompt)
    return np.array(refusals, dtype=np.float64).T, np.array(prompts, dtype=np.intp)


def studies(
    refusal_3N: _Floats, prompt_N: _Indices, *, num_studies: int, seed: int
) -> Iterator[tuple[_Floats, _Indices, np.random.Generator]]:
    """Yield studies: completions of resampled prompts, with numbers for the drawn prompts."""
    rows_of = [np.flatnonzero(prompt_N == prompt) for prompt in np.unique(prompt_N)]
    for study in range(num_studies):
        rng = np.random.default_rng([seed, study])
        drawn = rng.integers(0, len(rows_of), len(rows_of))
        row_N = np.concatenate([rows_of[prompt] for prompt in drawn])
        sizes = [len(rows_of[prompt]) for prompt in drawn]
        yield refusal_3N[:, row_N], np.repeat(np.arange(len(drawn)), sizes), rng


def rates_of_a_study(
    refusal_3N: _Floats, prompt_N: _Indices, rng: np.random.Generator
) -> Iterator[tuple[int, str, CorrectedRate]]:
    """Yield the rates of a study by number of labels, drawn evenly and then by `next_draw`."""
    order_N = rng.permutation(len(prompt_N))
    for num_labels in NUM_LABELS:
        label_N = np.full(len(prompt_N), np.nan)
        label_N[order_N[:num_labels]] = refusal_3N[0, order_N[:num_labels]]
        for name, judges in JUDGES.items():
            yield num_labels, name, corrected_rate(label_N, [*refusal_3N[judges]], prompt_N)
    cell_N = joint_levels([*refusal_3N[1:]])
    label_N, recorded_N = np.full((2, len(prompt_N)), np.nan)
    for num_labels, earlier in zip(NUM_LABELS, (0, *NUM_LABELS), strict=False):
        chance_N = next_probabilities(
            cell_N,
            label_N,
            refusal_3N[1:].mean(axis=0),
            np.full(len(prompt_N), True),
            num_labels - earlier,
        )
        after_N = probabilities_after(cell_N, label_N, chance_N)
        drawn_N = systematic_draw(chance_N, cell_N, rng)
        label_N[drawn_N], recorded_N[drawn_N] = refusal_3N[0, drawn_N], after_N[drawn_N]
        probability_N = label_probabilities(cell_N, ~np.isnan(label_N), recorded_N)
        rate = corrected_rate(label_N, [*refusal_3N[1:]], prompt_N, probability_N)
        yield num_labels, "both, next", rate


def estimates_of(name: str, rate: CorrectedRate) -> Iterator[tuple[str, float, float, float]]:
    """Yield the name, value and both ends of each estimate of a rate that the table shows."""
    estimates = {f"{name} alone": rate.judge} if len(JUDGES.get(name, JUDGES["both"])) == 1 else {}
    if name == "GPT-4":
        estimates["people alone"] = rate.people
    estimates[f"corrected, {name}"] = rate.corrected
    for estimate_name, estimate in estimates.items():
        value, low, high = estimate.value, estimate.low, estimate.high
        assert value is not None, "there are labels"
        assert low is not None, "there are labels of two prompts"
        assert high is not None, "there are labels of two prompts"
        yield estimate_name, value, low, high


def draw_picture(refusal_3N: _Floats, prompt_N: _Indices, path: Path) -> None:
    """Draw the intervals of one draw of 100 labels beside people's rate over all completions."""
    import matplotlib.pyplot as plt

    estimates: dict[str, tuple[float, float, float]] = {}
    for num_labels, name, rate in rates_of_a_study(refusal_3N, prompt_N, np.random.default_rng(0)):
        for estimate_name, *numbers in estimates_of(name, rate):
            if num_labels == NUM_LABELS[1]:
                estimates[estimate_name] = (numbers[0], numbers[1], numbers[2])
    figure, axes = plt.subplots(figsize=(8, 3.5))
    for height, (value, low, high) in enumerate(reversed(estimates.values())):
        axes.plot([100 * low, 100 * high], [height, height], color="C0", lw=3)
        axes.plot(100 * value, height, "o", color="C0")
    axes.set_yticks(range(len(estimates)), [*reversed(estimates)])
    axes.axvline(100 * refusal_3N[0].mean(), color="C3", label="people, all completions")
    axes.set_xlabel("refused completions, % (95 % intervals)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print coverage, mean width, and root mean square error, in points; draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    refusal_3N, prompt_N = read_completions(options.folder)
    if options.picture:
        draw_picture(refusal_3N, prompt_N, options.picture)
    truth = refusal_3N[0].mean()
    results: dict[tuple[str, int], list[tuple[bool, float, float]]] = {}
    for study in studies(refusal_3N, prompt_N, num_studies=options.studies, seed=0):
        for num_labels, name, rate in rates_of_a_study(*study):
            for estimate_name, value, low, high in estimates_of(name, rate):
                row = (low <= truth <= high, high - low, (value - truth) ** 2)
                results.setdefault((estimate_name, num_labels), []).append(row)
    print(f"people {truth:.1%}, GPT-4 {refusal_3N[1].mean():.1%}, of {len(prompt_N)} completions")
    print("estimate                  labels  covers  width  error")
    for (name, num_labels), rows in sorted(results.items()):
        covers, width, square = np.mean(rows, axis=0)
        print(
            f"{name:<25} {num_labels:>6} {covers:>7.1%} {100 * width:>6.1f}"
            f" {100 * square**0.5:>6.1f}"
        )


if __name__ == "__main__":
    main()
