"""Build studies with ratings, a tiny backbone and random examples, for tests of training."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor

from encore.data.pairs import iter_pairs
from encore.data.records import RESPONSES, PreferencePair
from encore.data.study import open_study
from encore.model.backbone_options import BackboneConfig
from encore.model.layouts import TokenIds
from encore.model.reward_model import MultiHeadRewardModel
from encore.training.batches import Training
from encore.training.distributed import Ranks
from encore.training.run_folder import read_log
from encore.training.training_examples import Split, TrainingExamples
from encore.training.training_options import TrainingConfig, TrainingRunConfig
from tests.worlds.models import PAD, VOCABULARY, tiny_model
from tests.worlds.ratings import ratings_table
from tests.worlds.studies import study_of
from tests.worlds.tiny_judge import make_tiny_judge

RULES = ("be-kind", "be-honest", "be-brief")
_WORDS = ("please", "help", "never", "rating", "score", "harm", "kind", "law", "truth", "risk")

Rate = Callable[[PreferencePair, str, str], float | None]

# --- studies and ratings ------------------------------------------------------------------------


def make_study(
    folder: Path,
    *,
    num_pairs: int,
    label: str = "mine",
    pairs_per_question: int | None = None,
    is_reversed: bool = False,
) -> Path:
    """Make a study of conversations of a few words.

    Every pair has another first turn, or so many pairs share a first turn and differ later.
    """
    generator = np.random.default_rng(0)

    def text(max_words: int) -> str:
        return " ".join(generator.choice(_WORDS, int(generator.integers(1, max_words))))

    rows = []
    for index in range(num_pairs):
        prompt: Any = f"{index}: {text(6)}"
        if pairs_per_question is not None:
            turns = (f"Question {index // pairs_per_question}?", "Tell me more.", prompt)
            roles = ("user", "assistant", "user")
            prompt = [{"role": r, "content": c} for r, c in zip(roles, turns, strict=True)]
        rows.append({"prompt": prompt, "chosen": text(8), "rejected": text(8) + "."})
    return study_of(rows[::-1] if is_reversed else rows, folder, label=label)


def pairs_of(study: Path) -> list[PreferencePair]:
    return list(iter_pairs(open_study(study)))


def text_rating(pair: PreferencePair, response: str, rule_id: str) -> float:
    """Return one of eleven ratings that follow from the rule and the text of the response."""
    text = f"{rule_id}\n{pair.response_text(response)}"
    return hashlib.sha256(text.encode()).digest()[0] % 11 / 10


def write_ratings(
    pairs: Path | Sequence[PreferencePair],
    path: Path,
    *,
    rate: Rate = text_rating,
    rules: Sequence[str] = RULES,
    missing_share: float = 0.0,
) -> Path:
    """Write ratings of every response of pairs, or of a study; a share may be missing."""
    rows = []
    for pair in pairs_of(pairs) if isinstance(pairs, Path) else pairs:
        generator = np.random.default_rng(int(pair.pair_id[:8], 16))
        for response, rule_id in product(RESPONSES, rules):
            is_missing = generator.random() < missing_share
            rating = None if is_missing else rate(pair, response, rule_id)
            rows.append((pair.pair_id, pair.source, response, rule_id, rating))
    pq.write_table(ratings_table(rows), path)
    return path


# --- runs ---------------------------------------------------------------------------------------


def make_backbone(folder: Path) -> Path:
    """Write a random Llama of two layers, 32 wide, with tokenizer and chat template."""
    return make_tiny_judge(folder, hidden_size=32, max_model_len=256, answers_scores=False)


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
    write_ratings(folder / "study", folder / "ratings.parquet", missing_share=0.1)
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


def train_config(
    world: Path, *, ratings: Path | None = None, dtype: str = "auto", **settings: object
) -> TrainingRunConfig:
    """Return a training in a folder of `make_world`, with a checkpoint after every second step.

    By default it takes ten steps of eight of 88 pairs, and two evaluations.
    """
    small = {
        "batch_pairs": 8,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "checkpoint_every": 2,
        "evaluate_every": 5,
        "evaluation_share": 0.1,
        "tokens_per_microbatch": 256,
    }
    return TrainingRunConfig(
        backbone=backbone_config(world / "tiny").model_copy(update={"dtype": dtype}),
        ratings=ratings or world / "ratings.parquet",
        **{**small, **settings},
    )


# --- random examples ----------------------------------------------------------------------------


def examples_of_tokens(
    chosen: Sequence[TokenIds], rejected: Sequence[TokenIds], *, head_ids: Sequence[str] = ()
) -> TrainingExamples:
    """Return pairs of these tokens for bradley-terry, or with targets of 0 for some heads."""
    num_pairs = len(chosen)
    return TrainingExamples(
        head_ids=tuple(head_ids) or ("reward",),
        pair_id_P=np.array([f"pair-{pair}" for pair in range(num_pairs)], dtype=np.object_),
        group_P=np.arange(num_pairs),
        chosen=chosen,
        rejected=rejected,
        prompt_tokens_P=np.ones(num_pairs, dtype=np.int32),
        target_PSR=np.zeros((num_pairs, 2, len(head_ids)), dtype=np.float32),
        mean_R=np.zeros(max(1, len(head_ids))),
    )


def random_examples(
    num_pairs: int, *, head_ids: Sequence[str] = (), missing_share: float = 0.0, seed: int = 0
) -> TrainingExamples:
    """Return pairs of random tokens with a shared beginning; without heads for bradley-terry."""
    generator = np.random.default_rng(seed)

    def tokens() -> NDArray[np.int32]:
        return generator.integers(2, VOCABULARY, generator.integers(1, 12)).astype(np.int32)

    prompts = [tokens() for _ in range(num_pairs)]
    sides = ([np.concatenate([prompt, tokens()]) for prompt in prompts] for _ in RESPONSES)
    examples = examples_of_tokens(*sides, head_ids=head_ids)
    target_PSR = examples.target_PSR
    target_PSR[:] = generator.normal(size=target_PSR.shape)
    target_PSR[generator.random(target_PSR.shape) < missing_share] = np.nan
    return examples


def training_of(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    config: TrainingConfig,
    *,
    num_held_out: int = 0,
    ranks: Ranks | None = None,
) -> Training:
    """Return the training of a model on examples, of which the last ones are held out."""
    rows = np.arange(examples.num_pairs)
    num_training = len(rows) - num_held_out
    return Training(
        model=model,
        examples=examples,
        split=Split(train_rows=rows[:num_training], evaluation_rows=rows[num_training:]),
        config=config,
        pad_token_id=PAD,
        ranks=ranks or Ranks(),
    )


def model_of(
    examples: TrainingExamples, kind: str = "llama", **settings: Any
) -> MultiHeadRewardModel:
    """Return a random model with the heads of these examples."""
    return tiny_model(kind, head_ids=examples.head_ids, **settings)


class UnconnectedRanks(Ranks):
    """A rank among several processes that are not connected: a sum is the summand itself."""

    def __init__(self, rank: int, count: int = 2) -> None:
        super().__init__()
        self.rank, self.count = rank, count

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor
