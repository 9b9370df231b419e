"""Measure the speed of training, packed and prefix-shared, and the cost of a resume.

On a CPU: a random Llama of 20 million weights in float32, pairs of a raw hh-rlhf file.

    python -m tests.perf.train_throughput [--pairs hh-harmless-dev.jsonl.gz]

On one GPU: Llama 3.1 8B's shape with random weights, bfloat16, full fine-tuning with full
checkpointing and the stochastically rounded optimizer in the backward pass, synthetic pairs as long
as hh-rlhf's; the peak memory stands beside the plan's.

    python -m tests.perf.train_throughput --gpu [--resume]

Both layouts train one model in this process, in alternating rounds. tokens/s counts the tokens of
the data, every response as if it stood alone; computed is a share of them. MFU counts the
operations of computed tokens, not what checkpointing computes again. Matrix products of computed
tokens bound the speed; the disk bounds a checkpoint.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from encore.data.records import RESPONSES
from encore.model.backbone_options import BackboneConfig
from encore.model.backbone_shape import find_shape
from encore.model.load_backbone import load_reward_model, load_tokenizer
from encore.model.reward_model import MultiHeadRewardModel
from encore.training.batches import Training
from encore.training.checkpoints import CheckpointManager
from encore.training.optimizers import StepOptimizer, make_optimizer
from encore.training.run_folder import StepRecord, TrainingRun
from encore.training.training_examples import TrainingExamples
from encore.training.training_loop import run_steps
from encore.training.training_options import TrainingConfig
from encore.training.training_plan import PlanTrainConfig, plan_training
from tests.perf import harness
from tests.worlds.models import llama_trunk
from tests.worlds.trainings import examples_of_tokens, training_of

SHAPE = "llama-3.1-8b"
LAYOUTS = ("packed", "prefix-shared")
EPOCH_RESPONSES = 140_000
MAX_LENGTH = 1024
#: Median and log standard deviation of token counts in anthropic/hh-rlhf with Llama 3's tokenizer.
#: A response with its prompt has 300 tokens on average, of which 219 are prompt, so that 36.5 % of
#: a pair's tokens are the second copy of the prompt.
PROMPT, RESPONSE = (170.0, 0.87), (60.0, 0.82)


def main() -> None:
    """Measure and print the tables."""
    options = _options()
    with tempfile.TemporaryDirectory() as temporary:
        model, examples = (_on_gpu if options.gpu else _on_cpu)(options, Path(temporary))
        trainings, optimizer = _trainings(model, examples, options)
        sides = {
            layout: partial(_round, training, optimizer) for layout, training in trainings.items()
        }
        records = harness.measure_in_turn(sides, rounds=options.rounds)
        rows = [_row(layout, records[layout], trainings[layout], options) for layout in LAYOUTS]
        device = torch.cuda.get_device_name() if options.gpu else "CPU"
        tokens = examples.length_P.mean() / 2
        harness.print_table(
            f"{sum(p.numel() for p in model.parameters()) / 1e6:,.1f}M weights, {device}, "
            f"torch {torch.__version__}, "
            f"{options.batch_pairs} pairs a step, {tokens:.0f} tokens a response",
            rows,
        )
        if options.resume or not options.gpu:
            _resume(trainings["packed"], optimizer, Path(temporary))


def _options() -> argparse.Namespace:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--resume", action="store_true", help="on a GPU: 45 GiB of disk")
    parser.add_argument("--pairs", type=Path, help="on a CPU: raw hh-rlhf, .jsonl.gz")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps of a round")
    parser.add_argument("--batch-pairs", type=int, default=None, help="default: 32, on a CPU 8")
    options = parser.parse_args()
    options.batch_pairs = options.batch_pairs or (32 if options.gpu else 8)
    return options


# --- models and data ------------------------------------------------------------------------------


def _on_cpu(options: argparse.Namespace, folder: Path) -> tuple[Any, TrainingExamples]:
    harness.write_llama(folder / "model")
    backbone = BackboneConfig(model=str(folder / "model"), dtype="float32", max_length=MAX_LENGTH)
    pairs = harness.sample_pairs(options.pairs, options.batch_pairs * options.steps)
    encoded = load_tokenizer(backbone).encode_pairs(pairs)
    sides = ([getattr(pair, side).token_ids for pair in encoded] for side in RESPONSES)
    model = load_reward_model(backbone, head_ids=["reward"], head_init="own")
    return model, examples_of_tokens(*sides)


def _on_gpu(options: argparse.Namespace, _folder: Path) -> tuple[Any, TrainingExamples]:
    """Make the model on the GPU, because drawing 15 GiB of weights on a CPU takes minutes."""
    from encore.model.fusing import fuse_elementwise

    shape = find_shape(SHAPE)
    torch.manual_seed(0)
    trunk = llama_trunk(shape)
    with torch.device("cuda"):
        model = MultiHeadRewardModel(trunk, head_ids=["reward"], is_causal=True)
    model.enable_gradient_checkpointing()
    fuse_elementwise(model.trunk)
    return model, _random_examples(options.batch_pairs * options.steps, shape.vocab_size)


def _random_examples(num_pairs: int, vocabulary: int) -> TrainingExamples:
    """Draw random tokens for pairs as long as hh-rlhf's; both responses share their prompt."""
    generator = np.random.default_rng(0)

    def random_texts(median: float, sigma: float) -> list[NDArray[np.int32]]:
        lengths = median * np.exp(sigma * generator.standard_normal(num_pairs))
        lengths = np.clip(lengths, 4, MAX_LENGTH // 2).astype(np.int64)
        return [generator.integers(0, vocabulary, n).astype(np.int32) for n in lengths]

    prompts = random_texts(*PROMPT)
    sides = [
        [np.concatenate(texts) for texts in zip(prompts, random_texts(*RESPONSE), strict=True)]
        for _ in range(2)
    ]
    return examples_of_tokens(*sides)


def _trainings(
    model: Any, examples: TrainingExamples, options: argparse.Namespace
) -> tuple[dict[str, Training], StepOptimizer]:
    no_interval = 10**9  # evaluation and saving would be timed as training
    trainings = {
        layout: training_of(
            model,
            examples,
            TrainingConfig(
                objective="bradley-terry",
                layout=layout,
                batch_pairs=options.batch_pairs,
                evaluate_every=no_interval,
                checkpoint_every=no_interval,
            ),
        )
        for layout in LAYOUTS
    }
    return trainings, make_optimizer(model, trainings["packed"].config)


# --- measurements ---------------------------------------------------------------------------------


def _round(
    training: Training, optimizer: StepOptimizer, *, start_step: int = 0
) -> list[StepRecord]:
    if training.model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    records: list[Any] = []
    hooks = {"on_record": records.append, "save": lambda *_: None}
    run_steps(training, optimizer, start_step=start_step, **hooks)
    return records


def _row(
    layout: str, rounds: list[list[StepRecord]], training: Training, options: argparse.Namespace
) -> dict[str, object]:
    speeds = [
        sum(step.num_tokens for step in steps) / sum(step.seconds for step in steps)
        for steps in rounds
    ]
    last = rounds[-1]
    num_tokens = sum(record.num_tokens for record in last)
    row: dict[str, object] = {
        "layout": layout,
        "tokens/s": harness.median_and_range(speeds),
        "computed": f"{sum(record.num_computed for record in last) / num_tokens:.1%}",
        "peak GiB": max(record.peak_memory_bytes for record in last) / 2**30,
    }
    if options.gpu:
        mean = training.examples.length_P.mean() / 2
        plan = PlanTrainConfig(
            backbone=SHAPE,
            pairs=EPOCH_RESPONSES // 2,
            tokens_per_response=float(mean),
            layout=layout,
            batch_pairs=options.batch_pairs,
        )
        row["plan GiB"] = plan_training(None, plan).recipes["full-stochastic"].total_gib
        row["MFU"] = f"{np.median([steps[-1].mfu for steps in rounds]):.1%}"
        row["epoch h"] = EPOCH_RESPONSES * mean / float(np.median(speeds)) / 3600
    return row


def _resume(training: Training, optimizer: StepOptimizer, folder: Path) -> None:
    """Time saving and restoring a checkpoint; print the next step's figures before and after."""
    manager = CheckpointManager(training, optimizer, TrainingRun(folder=folder, identity={}))
    last = training.num_steps - 1
    saving = harness.seconds_of(lambda: manager.save(last, evaluation=None))
    (first,) = _round(training, optimizer, start_step=last)
    restoring = harness.seconds_of(manager.restore)
    (again,) = _round(training, optimizer, start_step=last)
    print(
        f"checkpoint: saved in {saving:.1f} s, restored in {restoring:.1f} s; the next step's "
        f"losses are {first.loss!r} and {again.loss!r}, its gradients' norms {first.grad_norm!r} "
        f"and {again.grad_norm!r}"
    )


if __name__ == "__main__":
    main()
