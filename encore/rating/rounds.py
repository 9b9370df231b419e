"""How far a rating run goes: until its weights are sure enough, or until its budget is used up.

Both are a `StopRule`: a number of shards, from the plan's first on, that may be
taken. As the plan's order is that of content hashes, these are a fair sample of the pairs.

**Enough.** The plan has rounds, which depend on nothing but the plan: the first ends with the shard
that holds pair 1,000, each other one after half as many shards more as there were. After a round
the weights of its shards are compared with those that the whole plan would give
(`encore.weighting.weight_error`). The run ends when, with 95 % confidence, no weight is farther off
than the tolerance.

*Repeated looks.* A plan of 70 shards has twelve rounds, and a look after each but the last. Each
look is given an eleventh of the risk of 5 % (Bonferroni): what all looks say holds together with
95 % confidence, whichever of them ends the run, and whatever tolerance a later call asks for. Other
numbers of engines, and shards that were there before, change neither the rounds nor what a look
says.

**Budget.** Shards that are done say what they took. Of the others those are open, from the plan's
first on, that fit into the rest. What a shard will take is at most a call for each rating; of money
it is what those that are done took for each pair, and one shard is rated to learn it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from encore.core.errors import EncoreError, InputError
from encore.core.reporting import Reporter
from encore.data.rating_runs import RatingManifest, record_precision_reached
from encore.rating.rating_config import LimitsConfig, PricesConfig
from encore.runs.run_files import ShardState
from encore.runs.shard_runner import NEVER_STOP, EarlyStop, StopRule
from encore.warehouse import Ratings, read_pairs_of
from encore.weighting.weight_error import CONFIDENCE, WeightError, weight_error

_FIRST_PAIRS, _GROWTH = 1000, 1.5
_TOKENS, _SECONDS = 1_000_000, 3600


def stop_rule_of(
    config: LimitsConfig,
    run_dir: Path,
    manifest: RatingManifest,
    *,
    num_devices: int,
    reporter: Reporter,
) -> StopRule:
    """How far a run goes under some limits.

    Args:
        config: The limits.
        run_dir: The run's folder.
        manifest: The run's plan.
        num_devices: GPUs of one engine of the judge.
        reporter: Told what each look finds.
    """
    found: list[StopRule] = []
    if (tolerance := config.until_weights_within) is not None:
        rounds = Rounds(run_dir=run_dir, manifest=manifest, tolerance=tolerance, reporter=reporter)
        found.append(rounds)
    if (limit := config.budget_calls) is not None:
        most = manifest.rows_per_pair
        found.append(Budget("--budget-calls", limit, manifest, cost=num_calls, most_per_pair=most))
    if (budget := config.budget) is not None:
        cost = partial(money, prices=config, num_devices=num_devices)
        found.append(Budget("--budget", budget, manifest, cost=cost))
    return FirstStopRule(found) if found else NEVER_STOP


@dataclass(frozen=True, slots=True)
class FirstStopRule:
    """The nearest of several horizons."""

    parts: Sequence[StopRule]

    @property
    def num_open_shards(self) -> int:
        """The least."""
        return min(part.num_open_shards for part in self.parts)

    @property
    def early_stop(self) -> EarlyStop | None:
        """Of the one that is the nearest."""
        return min(self.parts, key=lambda part: part.num_open_shards).early_stop

    def update(self, done: Sequence[ShardState]) -> None:
        """Each of them."""
        for part in self.parts:
            part.update(done)


def round_ends(manifest: RatingManifest) -> tuple[int, ...]:
    """The number of shards that are done after each round of a plan."""
    num_shards = len(manifest.shards)
    ends = [min(num_shards, -(-_FIRST_PAIRS // manifest.shard_size))]
    while ends[-1] < num_shards:
        ends.append(min(num_shards, max(ends[-1] + 1, int(_GROWTH * ends[-1]))))
    return tuple(ends)


# --- enough -------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Rounds:
    """The horizon of a run that ends when every weight is sure to a tolerance."""

    run_dir: Path
    manifest: RatingManifest
    tolerance: float
    reporter: Reporter
    num_open_shards: int = 0
    early_stop: EarlyStop | None = None
    looked_at: int = -1

    def update(self, done: Sequence[ShardState]) -> None:
        """Open the next round when one is done, unless what there is is enough.

        Of several rounds that were done before, the last one is looked at.
        """
        state_of = {state.index: state for state in done}
        num_leading = next(number for number in count() if number not in state_of)
        ends = round_ends(self.manifest)
        reached = max(takewhile(lambda end: end <= num_leading, ends), default=0)
        if reached == self.looked_at:
            return
        self.looked_at = reached
        self.num_open_shards = next((end for end in ends if end > reached), reached)
        if not 0 < reached < ends[-1]:
            return
        found = self._error(state_of, reached, num_tests=len(ends) - 1)
        is_enough = found.error is not None and found.error <= self.tolerance
        told = self._told(found, self._num_pairs(range(reached)))
        if not is_enough:
            next_pairs = self._num_pairs(range(self.num_open_shards))
            self.reporter.message(f"{told}; the next round ends with {next_pairs:,} pairs")
            return
        assert found.error is not None
        self.num_open_shards = reached
        num_left = self.manifest.num_pairs - self._num_pairs(state_of)
        saved = f"{num_left * self.manifest.rows_per_pair:,} calls"
        share = num_left / self.manifest.num_pairs
        self.early_stop = EarlyStop(
            f"enough: {told}; that saves {saved}, {share:.1%} of the plan", True
        )
        record_precision_reached(self.run_dir, num_shards=reached, error=found.error)

    def _error(
        self, state_of: Mapping[int, ShardState], num_shards: int, *, num_tests: int
    ) -> WeightError:
        paths = tuple(path for i in range(num_shards) if (path := state_of[i].path) is not None)
        ratings = Ratings(
            label=str(self.run_dir), files=paths, run_dir=self.run_dir, manifest=self.manifest
        )
        return weight_error(
            read_pairs_of(ratings), num_all=self.manifest.num_pairs, num_tests=num_tests
        )

    def _told(self, found: WeightError, num_pairs: int) -> str:
        there = f"{num_pairs:,} of {self.manifest.num_pairs:,} pairs rated"
        if found.error is None:
            return f"{there}, too few to say how sure the weights are: {found.obstacle}"
        return (
            f"{there}, every weight within {found.error:.2%} of what all pairs would give "
            f"({CONFIDENCE:.0%} confidence; the least sure is that of {found.rule_id})"
        )

    def _num_pairs(self, indices: Sequence[int] | Mapping[int, ShardState]) -> int:
        shards = self.manifest.shards
        return sum(shards[index].num_pairs for index in indices)


# --- a budget -----------------------------------------------------------------------------------


def num_calls(footer: Mapping[str, Any]) -> float:
    """The calls that a shard took; where it does not say, one for each rating."""
    num_rows = int(footer.get("num_ratings", 0)) + int(footer.get("num_nulls", 0))
    return float(footer.get("num_calls", num_rows))


def money(footer: Mapping[str, Any], *, prices: PricesConfig, num_devices: int) -> float:
    """What a shard cost: its tokens, and the time that its engine's GPUs took to answer."""
    amounts = (
        (prices.price_input, int(footer.get("prompt_tokens", 0)) / _TOKENS),
        (prices.price_output, int(footer.get("output_tokens", 0)) / _TOKENS),
        (prices.price_gpu_hour, num_devices * float(footer.get("engine_seconds", 0)) / _SECONDS),
    )
    return sum((price or 0.0) * amount for price, amount in amounts)


@dataclass(slots=True)
class Budget:
    """The horizon of a run that may take so much.

    Attributes:
        option: Its name on the command line.
        limit: How much: calls, or money.
        manifest: The run's plan.
        cost: What a shard took, by its footer.
        most_per_pair: The calls that a pair takes at most; of money None: as those that are done.
        spent: By all shards that are done.
    """

    option: str
    limit: float
    manifest: RatingManifest
    cost: Callable[[Mapping[str, Any]], float] = field(kw_only=True)
    most_per_pair: int | None = field(default=None, kw_only=True)
    num_open_shards: int = 0
    spent: float = 0.0

    def update(self, done: Sequence[ShardState]) -> None:
        """Open what fits into the rest of the budget.

        Raises:
            InputError: Nothing is done, and not even one shard fits.
            EncoreError: The calls that were made cost nothing.
        """
        shards, there = self.manifest.shards, {state.index for state in done}
        self.spent = sum(self.cost(state.footer) for state in done)
        per_pair = self.most_per_pair or self._cost_of_a_pair(done)
        rest = self.limit - self.spent
        self.num_open_shards = 0
        is_learning = False  # what it costs is to be learnt
        for shard in shards:
            if shard.index not in there:
                rest -= shard.num_pairs * (per_pair or 0.0)
                if rest < 0 or is_learning:
                    break
                is_learning = per_pair is None
            self.num_open_shards = shard.index + 1
        if not (there or self.num_open_shards):
            raise InputError(
                f"{self.option} {self.limit:,}: the first shard of {shards[0].num_pairs:,} pairs "
                f"takes up to {shards[0].num_pairs * (per_pair or 0):,} calls; give at least "
                "that, or smaller shards (--shard-size)"
            )

    def _cost_of_a_pair(self, done: Sequence[ShardState]) -> float | None:
        """In the shards that say what their calls took; None: there is none."""
        told = [state for state in done if state.footer.get("num_calls")]
        if told and not self.spent:
            raise EncoreError(
                f"{self.option} {self.limit:,}: the calls so far cost nothing by the tokens and "
                "seconds that were counted at these prices; use --budget-calls"
            )
        num_pairs = sum(self.manifest.shards[state.index].num_pairs for state in told)
        return self.spent / num_pairs if told else None

    @property
    def early_stop(self) -> EarlyStop | None:
        """What was spent and what is left to do."""
        num_left = len(self.manifest.shards) - self.num_open_shards
        if not num_left:
            return None
        unit = "" if self.most_per_pair is None else " calls"
        return EarlyStop(
            f"{self.option} {self.limit:,g}: {self.spent:,.10g}{unit} spent, and the next shard "
            f"would go beyond; {num_left} of {len(self.manifest.shards)} shards are left; the same "
            f"command with a larger {self.option} goes on",
            False,
        )
