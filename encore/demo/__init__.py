"""The demo's files: synthetic preference pairs, a synthetic benchmark, and a tiny judge.

The pairs were composed by a program from hand-written sentences, and the judge was trained on a
separate part of the same small world (`examples/demo_judge`). Nobody said them and no person
labelled them: figures computed from them say nothing about any real model, data set or rule.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
#: What the demo calls its judge, whose folder is named "judge".
JUDGE_NAME = "the demo's judge"


def judge_path() -> Path:
    """The folder of the demonstration judge, for `transformers` or vLLM."""
    return _FOLDER / "judge"


def data_paths() -> dict[str, Path]:
    """The synthetic pairs by label: raw hh-rlhf format and raw PKU-SafeRLHF format."""
    return {
        "synthetic-hh": _FOLDER / "data" / "hh-like.jsonl.gz",
        "synthetic-pku": _FOLDER / "data" / "pku-like.jsonl.gz",
    }


def initial_pairs_path() -> Path:
    """The pairs that the demo's initial reward model learns from, in raw hh-rlhf format."""
    return _FOLDER / "data" / "synthetic-initial.jsonl.gz"


def benchmark_path() -> Path:
    """The definition of the synthetic benchmark, for `encore benchmark --benchmark`."""
    return _FOLDER / "data" / "synthetic-safety.toml"


def benchmark_data_path() -> Path:
    """The rows of the synthetic benchmark, in RewardBench's columns."""
    return _FOLDER / "data" / "synthetic-safety.jsonl.gz"
