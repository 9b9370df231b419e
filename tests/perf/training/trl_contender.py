"""TRL's RewardTrainer as a contender process, in whatever environment has TRL.

It imports nothing of encore. Token ids are given, so that both sides train on the same tokens, and
precision, batch size and checkpointing are given too; everything else is TRL's default.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.perf.training.rounds import Round, own_output, serve


def main() -> None:
    """Load, warm up with a few pairs, answer requests."""
    own_output()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--batch-pairs", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--grouped", action="store_true")
    options = parser.parse_args()

    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(options.model)
    dataset = _dataset(options.pairs)
    with tempfile.TemporaryDirectory() as folder:

        def train(rows: Any) -> Round:
            return _train(rows, model=model, tokenizer=tokenizer, options=options, folder=folder)

        train(dataset.select(range(options.batch_pairs)))
        serve(lambda: train(dataset))


def _dataset(path: Path) -> Any:
    import numpy as np
    from datasets import Dataset

    with np.load(path) as arrays:
        columns = {
            f"{name}_ids": [
                ids.tolist() for ids in np.split(arrays[name], arrays[f"{name}_offsets"][1:-1])
            ]
            for name in ("chosen", "rejected")
        }
    return Dataset.from_dict(columns)


def _train(rows: Any, *, model: Any, tokenizer: Any, options: Any, folder: str) -> Round:
    from transformers import TrainerCallback
    from trl import RewardConfig, RewardTrainer

    class Clock(TrainerCallback):
        started = stopped = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.stopped = time.perf_counter()

    # The pairs come in the order of `group_by_length` over all pairs, see `data`.
    order = {"train_sampling_strategy": "sequential"} if options.grouped else {}
    config = RewardConfig(
        output_dir=folder,
        per_device_train_batch_size=options.batch_pairs,
        learning_rate=options.learning_rate,
        num_train_epochs=1,
        gradient_checkpointing=options.checkpointing,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **order,
    )
    clock = Clock()
    trainer = RewardTrainer(
        model=model,
        args=config,
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[clock],
    )
    counted = _Counted(trainer.data_collator)
    trainer.data_collator = counted
    trainer.train()
    return Round(
        seconds=clock.stopped - clock.started,
        num_tokens=counted.num_tokens,
        num_computed=counted.num_computed,
        num_padding=counted.num_computed - counted.num_tokens,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


class _Counted:
    """TRL's collator, with a count of what it makes."""

    def __init__(self, collator: Any) -> None:
        self.collator = collator
        self.num_tokens = self.num_computed = 0

    def __call__(self, examples: Any) -> Any:
        batch = self.collator(examples)
        self.num_tokens += int(batch["attention_mask"].sum())
        self.num_computed += batch["attention_mask"].numel()
        return batch


if __name__ == "__main__":
    main()
