"""The demo's files: synthetic preference pairs, rules, a synthetic benchmark and a tiny judge.

The pairs were composed by a program from hand-written sentences, and the judge was trained on a
separate part of the same small world (`examples/demo_judge`). Nobody said them and no person
labelled them: figures computed from them say nothing about any real model, data set or rule.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
#: Name of the demo's judge for people; its folder is named "judge".
JUDGE_NAME = "the demo's judge"
#: The folder of the judge, for `transformers` or vLLM.
JUDGE_PATH = _FOLDER / "judge"
#: The synthetic pairs by label: raw hh-rlhf format and raw PKU-SafeRLHF format.
DATA_PATHS = {
    "synthetic-hh": _FOLDER / "data" / "hh-like.jsonl.gz",
    "synthetic-pku": _FOLDER / "data" / "pku-like.jsonl.gz",
}
#: The demo's rules, one for each verdict.
RULES_PATH = _FOLDER / "rules.toml"
#: The finished run of the judge over these pairs, in a folder with its key
#: (`examples/demo_judge/rate_pairs.py`).
RATINGS_PATH = _FOLDER / "ratings"
#: The pairs that the demo's initial reward model learns from, in raw hh-rlhf format.
INITIAL_PAIRS_PATH = _FOLDER / "data" / "synthetic-initial.jsonl.gz"
#: The synthetic benchmark: its definition, and its rows in RewardBench's columns.
BENCHMARK_PATH = _FOLDER / "data" / "synthetic-safety.toml"
BENCHMARK_DATA_PATH = _FOLDER / "data" / "synthetic-safety.jsonl.gz"


def judge_title(name: str, *, is_synthetic: bool) -> str:
    """Return a judge for people: ``judge`` and its name, or the name of the demo's judge."""
    if is_synthetic:
        return JUDGE_NAME
    return name if name == "judge" else f"judge {name}"
