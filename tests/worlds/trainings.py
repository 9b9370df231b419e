"""A small study with ratings and a tiny backbone, for tests of training and its commands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from encore.data.pairs import read_pairs
from encore.data.study import open_study
from encore.model.backbone_config import BackboneConfig
from encore.training.run_folder import read_log
from encore.training.training_config import TrainingConfig
from tests.worlds.ratings import ratings_table
from tests.worlds.studies import study_of
from tests.worlds.tiny_judge import make_tiny_judge

RULES = ("be-kind", "be-honest", "be-brief")
_WORDS = ("please", "help", "never", "rating", "score", "harm", "kind", "law", "truth", "risk")


def make_study(folder: Path, *, num_pairs: int, seed: int = 0) -> Path:
    """Make a study of conversations of a few words, in which every pair has another prompt."""
    generator = np.random.default_rng(seed)

    def text(num_words: int) -> str:
        return " ".join(generator.choice(_WORDS, num_words))

    records = [
        {
            "prompt": f"{index}: {text(int(generator.integers(1, 6)))}",
            "chosen": text(int(generator.integers(1, 8))),
            "rejected": text(int(generator.integers(1, 8))) + ".",
        }
        for index in range(num_pairs)
    ]
    return study_of(records, folder)


def write_ratings(
    study: Path, path: Path, *, rules: Sequence[str] = RULES, missing_share: float = 0.1
) -> Path:
    """Write ratings of every response, which follow from its pair id; some are missing."""
    rows = []
    for pair in read_pairs(open_study(study)).select(["pair_id", "source"]).to_pylist():
        generator = np.random.default_rng(int(pair["pair_id"][:8], 16))
        for response, rule_id in product(("chosen", "rejected"), rules):
            rating: float | None = round(float(generator.random()), 1)
            if generator.random() < missing_share:
                rating = None
            rows.append((pair["pair_id"], pair["source"], response, rule_id, rating))
    pq.write_table(ratings_table(rows), path)
    return path


def make_backbone(folder: Path, *, seed: int = 0) -> Path:
    """Write a random Llama of two layers, 32 wide, with tokenizer and chat template."""
    return make_tiny_judge(
        folder, hidden_size=32, vocab_size=512, max_model_len=256, answers_scores=False, seed=seed
    )


def backbone_config(folder: Path) -> BackboneConfig:
    return BackboneConfig(model=str(folder), max_length=64)


def train_command(folder: Path, *, out: Path, **further_options: object) -> list[str]:
    """Return the arguments of `encore train` for a folder of `make_world`.

    An option whose value is None is a flag.
    """
    options = {
        "backbone": folder / "tiny",
        "ratings": folder / "ratings.parquet",
        "out": out,
        "max-length": 64,
        "epochs": 100,
        "learning-rate": 1e-3,
        **{name.replace("_", "-"): value for name, value in further_options.items()},
    }
    pairs = [(f"--{name}", value) for name, value in options.items()]
    texts = [str(text) for pair in pairs for text in pair if text is not None]
    return ["-m", "encore.cli", "train", str(folder / "study"), *texts]


def one_thread() -> dict[str, str]:
    """Return an environment in which sums have a fixed order, and so fixed last bits."""
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def make_world(folder: Path, *, num_pairs: int) -> Path:
    """Write ``study``, ``ratings.parquet`` and the backbone ``tiny`` into a folder."""
    make_backbone(folder / "tiny")
    make_study(folder / "study", num_pairs=num_pairs)
    write_ratings(folder / "study", folder / "ratings.parquet")
    return folder


#: Fields of logs that measure the machine; all other fields of two equal runs are equal.
UNREPEATABLE = frozenset({"seconds", "tokens_per_second", "mfu", "peak_memory_bytes"})


def repeatable(path: Path) -> list[dict[str, object]]:
    """Return the fields of a log that two equal runs have in common, to the last bit."""
    records = [
        {name: value for name, value in record.items() if name not in UNREPEATABLE}
        for record in read_log(path)
    ]
    assert records
    return records


def training_config(**settings: object) -> TrainingConfig:
    """Return settings of ten steps of eight pairs, with a checkpoint after every second step."""
    small = {
        "batch_pairs": 8,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "checkpoint_every": 2,
        "evaluate_every": 5,
        "evaluation_share": 0.1,
        "tokens_per_microbatch": 256,
    }
    return TrainingConfig(**{**small, **settings})
