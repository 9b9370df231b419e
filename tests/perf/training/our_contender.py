"""Our loop as a contender process: `python -m tests.perf.training.our_contender --help`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.perf.training.rounds import Round, own_output, serve


def main() -> None:
    """Load, warm up with one step, answer requests."""
    own_output()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--layout", required=True)
    parser.add_argument("--batch-pairs", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--checkpointing", action="store_true")
    options = parser.parse_args()

    from encore.model.config import BackboneConfig
    from encore.model.loading import load_reward_model, load_tokenizer
    from encore.training.config import TrainingConfig
    from encore.training.optimizers import make_optimizer
    from tests.perf.training.data import Pairs
    from tests.perf.training.ours import NEVER, train_round

    backbone = BackboneConfig(model=str(options.model), dtype="float32")
    config = TrainingConfig(
        objective="bradley-terry",
        layout=options.layout,
        batch_pairs=options.batch_pairs,
        learning_rate=options.learning_rate,
        evaluate_every=NEVER,
        checkpoint_every=NEVER,
        head_init="own",
    )
    pairs = Pairs.load(options.pairs)
    pad_token_id = load_tokenizer(backbone).pad_token_id
    model = load_reward_model(backbone, head_ids=["reward"], head_init="own")
    if options.checkpointing:
        model.enable_gradient_checkpointing()
    optimizer = make_optimizer(model, config)
    num_steps = -(-len(pairs.chosen) // options.batch_pairs)

    def steps(count: int) -> Round:
        return train_round(
            model,
            pairs,
            config,
            optimizer=optimizer,
            pad_token_id=pad_token_id,
            num_steps=count,
        )

    steps(1)
    serve(lambda: steps(num_steps))


if __name__ == "__main__":
    main()
