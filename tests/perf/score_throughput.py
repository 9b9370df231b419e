"""What does scoring cost? Prints one table; asserts nothing.

One random Llama and the same pairs for all, on a CPU in float32, rounds alternating: ours, packed
and with a pair's common prompt computed once; the forward pass of training over the same tokens;
the `rewardbench` command from PyPI, in an environment of its own, on an export of the model.

    python -m tests.perf.score_throughput --pairs hh-harmless-dev.jsonl.gz

Ours is timed from texts to scores, tokenising included, as is rewardbench (its loop alone, without
loading and writing); training's forward pass begins at tokens. tokens/s counts the tokens of the
data, every response as if it stood alone; padding is a share of the positions computed, computed a
share of the real tokens. --rewardbench-python names an interpreter that has rewardbench;
OMP_NUM_THREADS limits the cores of all.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from encore.data.records import PreferencePair
from encore.demo import data_paths
from encore.model.layouts import LayoutName
from encore.model.opening import OpenedModel, open_reward_model
from encore.model.scoring import TOKENS_PER_MICROBATCH
from encore.scoring.scoring_run import HowToCompute, Work, score_encoded
from encore.training.batches import plan_rows, score_microbatch
from encore.training.config import TrainingConfig
from encore.training.examples import TokenTable
from encore.training.ranks import Ranks
from tests.export.readers.conversations import alternating, read_hh
from tests.perf.readers_rewardbench import export_for_readers, run_rewardbench
from tests.perf.training.data import Pairs
from tests.perf.training.model_folder import write_model

REWARDBENCH = "rewardbench"
_MAX_LENGTH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass over the pairs; ``work`` is None where nobody counted."""

    seconds: float
    work: Work | None


def main() -> None:
    """Measure, print."""
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_parameters = write_model(folder / "model", hidden=options.hidden, layers=options.layers)
        opened = open_reward_model(folder / "model", device="cpu", max_length=_MAX_LENGTH)
        pairs = _pairs(opened, options)
        contenders = _contenders(opened, pairs, tokens_per_microbatch=options.tokens)
        if not options.without_rewardbench:
            export = export_for_readers(folder / "model", folder / "export")
            contenders[REWARDBENCH] = _rewardbench(opened, export, pairs, options)
        rounds: dict[str, list[Round]] = {contender: [] for contender in contenders}
        for number in range(options.rounds + 1):
            for contender in list(contenders)[:: 1 if number % 2 else -1]:
                if number:
                    rounds[contender].append(contenders[contender]())
                elif contender != REWARDBENCH:  # a process of its own each time
                    contenders[contender]()
    num_tokens = _num_tokens(opened, pairs)
    print(
        f"{num_parameters / 1e6:.1f}M parameters, float32, {len(pairs)} pairs of "
        f"{num_tokens / len(pairs) / 2:.0f} tokens a response, {torch.get_num_threads()} threads, "
        f"median of {options.rounds} alternating rounds, {options.tokens} tokens a pass\n"
    )
    print("\n".join(_table(rounds, num_pairs=len(pairs), num_tokens=num_tokens)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=Path, help="raw hh-rlhf, .jsonl.gz; default: synthetic")
    parser.add_argument("--num-pairs", type=int, default=96, help="evenly from the whole file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=TOKENS_PER_MICROBATCH["cpu"])
    parser.add_argument("--batch-size", type=int, default=8, help="of rewardbench, its default")
    parser.add_argument("--rewardbench-python", type=Path)
    parser.add_argument("--without-rewardbench", action="store_true")
    return parser.parse_args()


def _pairs(opened: OpenedModel, options: argparse.Namespace) -> list[PreferencePair]:
    """Pairs that rewardbench can name the roles of and that nobody has to cut."""
    path = options.pairs or data_paths()["synthetic-hh"]
    found = alternating(read_hh(path), count=10**9)
    encoded = opened.tokenizer.encode_pairs(found)
    whole = [
        pair
        for pair, both in zip(found, encoded, strict=True)
        if both.chosen.num_cut == both.rejected.num_cut == 0
    ]
    return whole[:: max(1, len(whole) // options.num_pairs)][: options.num_pairs]


def _contenders(
    opened: OpenedModel, pairs: Sequence[PreferencePair], *, tokens_per_microbatch: int
) -> dict[str, Callable[[], Round]]:
    layouts: tuple[LayoutName, ...] = ("packed", "prefix-shared")
    ours = {
        f"ours, {layout}": _ours(opened, pairs, layout, tokens_per_microbatch) for layout in layouts
    }
    training = {
        f"training's forward, {layout}": _training(opened, pairs, layout, tokens_per_microbatch)
        for layout in layouts
    }
    return {**ours, **training}


def _ours(
    opened: OpenedModel,
    pairs: Sequence[PreferencePair],
    layout: LayoutName,
    tokens_per_microbatch: int,
) -> Callable[[], Round]:
    how = HowToCompute(layout=layout, tokens_per_microbatch=tokens_per_microbatch)

    def score() -> Round:
        began = time.perf_counter()
        _, work = score_encoded(opened, opened.tokenizer.encode_pairs(pairs), how=how)
        return Round(seconds=time.perf_counter() - began, work=work)

    return score


def _training(
    opened: OpenedModel,
    pairs: Sequence[PreferencePair],
    layout: LayoutName,
    tokens_per_microbatch: int,
) -> Callable[[], Round]:
    """As the loop computes scores: in training mode, with what the backward pass will need."""
    encoded = opened.tokenizer.encode_pairs(pairs)
    examples = Pairs(
        chosen=TokenTable.of(pair.chosen.token_ids for pair in encoded),
        rejected=TokenTable.of(pair.rejected.token_ids for pair in encoded),
    )
    config = TrainingConfig(
        objective="bradley-terry", layout=layout, tokens_per_microbatch=tokens_per_microbatch
    )

    def score() -> Round:
        opened.model.train()
        began = time.perf_counter()
        rows = plan_rows(
            examples, np.arange(len(pairs)), config=config, device="cpu", ranks=Ranks()
        )
        num_computed = 0
        for plan in rows.plans:
            num_computed += score_microbatch(
                opened.model,
                rows,
                plan,
                config=config,
                pad_token_id=opened.tokenizer.pad_token_id,
            )[2]
        seconds = time.perf_counter() - began
        opened.model.eval()
        num_tokens = int(examples.length_N.sum())
        return Round(seconds=seconds, work=Work(num_tokens=num_tokens, num_computed=num_computed))

    return score


def _rewardbench(
    opened: OpenedModel,
    export: Path,
    pairs: Sequence[PreferencePair],
    options: argparse.Namespace,
) -> Callable[[], Round]:
    ours_NR, _ = score_encoded(opened, opened.tokenizer.encode_pairs(pairs), how=HowToCompute())

    def score() -> Round:
        run = run_rewardbench(
            export,
            pairs,
            max_length=_MAX_LENGTH,
            batch_size=options.batch_size,
            python=options.rewardbench_python,
        )
        difference = np.abs(run.score_P2 - ours_NR.reshape(len(pairs), 2)).max()
        if difference > 1e-4:
            raise SystemExit(f"rewardbench scores otherwise, by up to {difference:.2g}")
        return Round(seconds=run.seconds, work=None)

    return score


def _num_tokens(opened: OpenedModel, pairs: Sequence[PreferencePair]) -> int:
    return sum(
        len(one.token_ids)
        for pair in opened.tokenizer.encode_pairs(pairs)
        for one in (pair.chosen, pair.rejected)
    )


def _table(rounds: dict[str, list[Round]], *, num_pairs: int, num_tokens: int) -> list[str]:
    """A line per contender: the median of its rounds, with lowest and highest speed."""
    width = max(map(len, rounds))
    lines = [
        f"{'':{width}} {'tokens/s':>9} {'(lowest-highest)':>17} {'pairs/s':>8} padding computed"
    ]
    for name, several in rounds.items():
        speeds = sorted(num_tokens / one.seconds for one in several)
        speed = statistics.median(speeds)
        spread = f"({speeds[0]:,.0f}-{speeds[-1]:,.0f})"
        work = several[-1].work
        shares = "       -        -"
        if work is not None:
            padding, computed = work.num_padding, work.num_computed
            shares = f"{padding / computed:>7.1%} {computed / work.num_tokens:>8.1%}"
        pairs_speed = speed / num_tokens * num_pairs
        lines.append(f"{name:{width}} {speed:>9,.0f} {spread:>17} {pairs_speed:>8.2f} {shares}")
    return lines


if __name__ == "__main__":
    main()
