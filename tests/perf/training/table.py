"""The one table of the comparison."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.perf.training.rounds import Round

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What turns tokens into utilisation: operations per token and of the device per second."""

    flops_per_token: float
    peak_flops: float | None

    def mfu(self, round_: Round) -> float | None:
        """Only tokens that were computed count as work, and padding never does."""
        if self.peak_flops is None:
            return None
        num_tokens = round_.num_computed - round_.num_padding
        return num_tokens / round_.seconds * self.flops_per_token / self.peak_flops


def table(
    rounds: Mapping[str, Sequence[Round]], *, arithmetic: Arithmetic, baseline: str
) -> list[str]:
    """A line per contender: the median of its rounds, with lowest and highest speed."""
    speeds = {name: [one.tokens_per_second for one in several] for name, several in rounds.items()}
    reference = statistics.median(speeds[baseline])
    width = max(map(len, rounds))
    ratio = len(baseline) + 2
    columns = f" {'MFU':>7} {'padding':>8} {'computed':>9} {'peak GiB':>9}"
    lines = [
        f"{'':{width}} {'tokens/s':>9} {'(lowest-highest)':>19} {'x ' + baseline:>{ratio}}{columns}"
    ]
    for name, several in rounds.items():
        speed = statistics.median(speeds[name])
        spread = f"({min(speeds[name]):,.0f}-{max(speeds[name]):,.0f})"
        utilisation = [arithmetic.mfu(one) for one in several]
        known = [value for value in utilisation if value is not None]
        last = several[-1]
        lines.append(
            f"{name:{width}} {speed:>9,.0f} {spread:>19} {speed / reference:>{ratio}.2f}"
            f" {_percent(statistics.median(known)) if known else '-':>7}"
            f" {_percent(last.num_padding / last.num_computed):>8}"
            f" {_percent(last.num_computed / last.num_tokens):>9}"
            f" {last.peak_memory_bytes / _GIB:>9.2f}"
        )
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
