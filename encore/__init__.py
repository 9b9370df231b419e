"""ENCORE: audit safety rules and compose multi-head reward models.

The functions below are what the command line does, for Python: paths in (for `analyze` and
`weights` also pyarrow Tables and pandas DataFrames), records out. They are loaded when first used.

    import encore

    encore.ingest(["mine=pairs.jsonl.gz"], out=Path("study"))
    encore.rate(Path("study"), encore.RatingConfig(judge=encore.JudgeConfig(model="./judge")))
    analysis = encore.analyze(Path("study"), by_source=True)
    vector = encore.weights(Path("study"), scheme="encore", tau=2.0)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encore.analysis import analyze
    from encore.config import JudgeConfig, RatingConfig
    from encore.errors import EncoreError
    from encore.ingestion import ingest
    from encore.rating_driver import rate
    from encore.rules import load_rule_set
    from encore.shards import status
    from encore.weighting.weigh import weights

__version__ = "0.1.0"

_WHERE = {
    "EncoreError": "encore.errors",
    "JudgeConfig": "encore.config",
    "RatingConfig": "encore.config",
    "analyze": "encore.analysis",
    "ingest": "encore.ingestion",
    "load_rule_set": "encore.rules",
    "rate": "encore.rating_driver",
    "status": "encore.shards",
    "weights": "encore.weighting.weigh",
}

__all__ = [
    "EncoreError",
    "JudgeConfig",
    "RatingConfig",
    "analyze",
    "ingest",
    "load_rule_set",
    "rate",
    "status",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'encore' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
