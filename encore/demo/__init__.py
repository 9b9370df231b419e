"""The embedded default: synthetic preference pairs and a tiny judge that can rate them.

Everything here is synthetic. The pairs were composed by a program from hand-written sentences
(`encore.demo.world`); nobody said them and no person labelled them. The judge was trained on a
separate part of the same small world (`encore.demo.train`). They let the whole product run offline
in minutes. Figures computed from them say nothing about any real model, data set or rule.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def judge_path() -> Path:
    """The folder of the demonstration judge, for `transformers` or vLLM."""
    return _FOLDER / "judge"


def data_paths() -> dict[str, Path]:
    """The synthetic pairs by label: raw hh-rlhf format and raw PKU-SafeRLHF format."""
    return {
        "synthetic-hh": _FOLDER / "data" / "hh-like.jsonl.gz",
        "synthetic-pku": _FOLDER / "data" / "pku-like.jsonl.gz",
    }
