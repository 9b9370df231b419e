"""How fast is training? Prints one table; asserts nothing.

On a CPU, ours (packed; with prefix sharing) against TRL's RewardTrainer (as it comes; grouped by
length, as well as on the whole file): the same small Llama, the same token ids, float32, the same
pairs a step, every contender in a process of its own and the rounds alternating. TRL is installed
with pip into a temporary folder, in front of this environment's packages; --trl-python names an
interpreter that has it.

    python -m tests.perf.train_throughput --pairs hh-harmless-dev.jsonl.gz

On one GPU, ours alone: Llama 3.1 8B's shape with random weights, bfloat16 full fine-tuning, full
checkpointing, the stochastically rounded optimizer in the backward pass, tokens as many as
hh-rlhf's. Needs torch, transformers, accelerate, peft, safetensors, pyarrow and numpy alone.

    python -m tests.perf.train_throughput --gpu

tokens/s counts the tokens of the data, every response as if it stood alone. MFU counts the
operations of tokens that were computed, not padding and not what checkpointing computes again;
padding is a share of the positions computed, computed a share of the real tokens. Peak memory is
the process's (CPU) or the device's (GPU).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.perf.training.bare_pydantic import install_if_missing


def main() -> None:
    """Measure, print."""
    options = _options()
    install_if_missing()
    if options.gpu:
        from tests.perf.training.on_gpu import measure
    else:
        from tests.perf.training.on_cpu import measure, quiet

        quiet()
    print("\n".join(measure(options)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-pairs", type=int, help="default: TRL's 8; ours, 32, on a GPU")
    cpu = parser.add_argument_group("on a CPU")
    cpu.add_argument("--pairs", type=Path, help="raw hh-rlhf, .jsonl.gz")
    cpu.add_argument("--num-pairs", type=int, default=48, help="a sample of so many")
    cpu.add_argument("--hidden", type=int, default=384)
    cpu.add_argument("--layers", type=int, default=8)
    cpu.add_argument("--checkpointing", action="store_true", help="as TRL's default has it")
    cpu.add_argument("--trl-python", help="an interpreter that has TRL")
    cpu.add_argument("--without-trl", action="store_true")
    gpu = parser.add_argument_group("on a GPU")
    gpu.add_argument("--steps", type=int, default=8, help="of a round")
    gpu.add_argument(
        "--tokens-per-microbatch", type=int, default=32_768, help="a step in one backward pass"
    )
    options = parser.parse_args()
    if not options.gpu and options.pairs is None:
        parser.error("--pairs FILE is needed on a CPU (or --gpu)")
    options.batch_pairs = options.batch_pairs or (32 if options.gpu else 8)
    return options


if __name__ == "__main__":
    main()
