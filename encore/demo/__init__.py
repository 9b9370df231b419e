"""The embedded default: synthetic preference pairs and a tiny judge that can rate them.

Everything here is synthetic. The pairs were composed by a program from hand-written sentences
(`encore.demo.world`); nobody said them and no person labelled them. The judge was trained on a
separate part of the same small world (`encore.demo.train`). They let the whole product run offline
in minutes. Figures computed from them say nothing about any real model, data set or rule.
"""

from __future__ import annotations

from pathlib import Path

from encore.model.config import BackboneConfig
from encore.training.config import TrainingConfig

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


def backbone_config(model: Path | None = None) -> BackboneConfig:
    """How the demo reads a model: by default the judge itself, whose weights are at hand."""
    return BackboneConfig(model=str(model or judge_path()), max_length=512)


def training_config() -> TrainingConfig:
    """How the demo trains: the paper's way, at a learning rate for a model this small.

    The paper's 2e-5 is for 8 billion weights; in these few steps it would leave the heads near
    zero.
    """
    return TrainingConfig(
        epochs=2,
        batch_pairs=16,
        learning_rate=5e-4,
        evaluation_share=0.2,
        evaluate_every=9,
    )


def preference_config() -> TrainingConfig:
    """How the demo trains its Bradley–Terry models: the same way, in half the time.

    They are there for comparison. One pass over the pairs, as in the paper, with fewer evaluations.
    """
    return training_config().model_copy(
        update={"objective": "bradley-terry", "epochs": 1, "evaluate_every": 14}
    )
