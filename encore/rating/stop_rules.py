"""Stop rules of a rating run: its weights are precise enough, or its budget is used up.

Both limit the number of shards that may be rated, counted from the plan's first shard. The plan is
in the order of content hashes, so these shards are a fair sample of the pairs.

**Precision.** The plan has rounds, which depend on the plan alone. The first round ends with the
shard that holds pair 1,000; each later round adds half as many shards as there were. After a round
the weights of its shards are compared with those that the whole plan would give
(`encore.weighting.weight_error`). The run ends when, with 95 % confidence, no weight is farther off
than the tolerance.

*Repeated tests.* A plan of 70 shards has twelve rounds, and the stopping rule is tested after each
round but the last. Each test gets an eleventh of the risk of 5 % (Bonferroni). All tests hold
together with 95 % confidence, whichever of them ends the run, and whatever tolerance a later call
asks for. The number of engines and shards done before change neither the rounds nor the tests.

**Budget.** Finished shards record their cost. The shards that fit into the remaining budget are
open, from the plan's first on. A shard costs at most one call per rating. In money, a pair costs
what a pair of the finished shards cost; one shard is rated to learn this. Where a server is paid by
the token, the run ends between two requests instead (`encore.rating.spending`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import EncoreError, InputError
from encore.core.reporting import Reporter
from encore.data.rating_runs import RatingManifest, record_precision_reached
from encore.judges.base import Usage
from encore.rating.rating_options import PricesConfig, RatingRunOptions
from encore.rating.reply_journal import ReplyJournal
from encore.rating.spending import SpendingLimit
from encore.runs.shard_files import ShardState, journal_path
from encore.runs.stop_rule import NEVER_STOP, EarlyStop, StopRule
from encore.warehouse import Ratings, read_pairs_of
from encore.weighting.weight_error import CONFIDENCE, WeightError, weight_error

_FIRST_PAIRS, _GROWTH = 1000, 1.5
_TOKENS, _SECONDS = 1_000_000, 3600


def stop_rule_of(
    how: RatingRunOptions,
    run_dir: Path,
    manifest: RatingManifest,
    *,
    num_devices: int,
    reporter: Reporter,
    spending: SpendingLimit | None,
) -> StopRule:
    """Return the stop rule of a run under the limits of a call.

    Args:
        how: Limits and prices.
        run_dir: Folder of the run.
        manifest: Manifest of the run, which has its plan.
        num_devices: Number of GPUs of the judge.
        reporter: Receiver of a message after each test of the precision.
        spending: Limit that the run's requests keep; None if whole shards keep the budget.
    """
    stop_rules: list[StopRule] = []
    if (tolerance := how.until_weights_within) is not None:
        rounds = Rounds(
            run_dir=run_dir, manifest=manifest, tolerance=tolerance, tau=how.tau, reporter=reporter
        )
        stop_rules.append(rounds)
    if (limit := how.budget_calls) is not None:
        budget_calls = Budget(
            "--budget-calls", limit, manifest, cost=num_calls, max_per_pair=manifest.calls_per_pair
        )
        stop_rules.append(budget_calls)
    if spending is not None:
        stop_rules.append(RequestBudget(run_dir=run_dir, manifest=manifest, spending=spending))
    elif (budget := how.budget) is not None:
        cost = partial(money, prices=how, num_devices=num_devices)
        stop_rules.append(Budget("--budget", budget, manifest, cost=cost))
    return FirstStopRule(stop_rules) if stop_rules else NEVER_STOP


@dataclass(frozen=True, slots=True)
class FirstStopRule:
    """Several stop rules, of which the one with the fewest open shards counts."""

    stop_rules: Sequence[StopRule]

    @property
    def num_open_shards(self) -> int:
        """Return the smallest number of open shards."""
        return min(rule.num_open_shards for rule in self.stop_rules)

    @property
    def early_stop(self) -> EarlyStop | None:
        """Return the early stop of the rule with the fewest open shards."""
        return min(self.stop_rules, key=lambda rule: rule.num_open_shards).early_stop

    def update(self, finished_shards: Sequence[ShardState]) -> None:
        """Update every rule with the finished shards."""
        for rule in self.stop_rules:
            rule.update(finished_shards)


def round_ends(manifest: RatingManifest) -> tuple[int, ...]:
    """Return the number of shards that are done after each round of a plan."""
    num_shards = len(manifest.shards)
    ends = [min(num_shards, -(-_FIRST_PAIRS // manifest.shard_size))]
    while ends[-1] < num_shards:
        ends.append(min(num_shards, max(ends[-1] + 1, int(_GROWTH * ends[-1]))))
    return tuple(ends)


# --- precision ----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Stop rule of a run that ends when every weight is precise to a tolerance.

    Attributes:
        run_dir: Folder of the run.
        manifest: Manifest of the run, which has its plan.
        tolerance: Largest relative error of a weight, 0.02 for 2 %.
        tau: Temperature of the weights.
        reporter: Receiver of a message after each test.
        num_open_shards: Number of shards that may be rated, from the plan's first on.
        early_stop: Why the run ends before its plan does; None while it goes on.
        num_tested_shards: Number of shards in the latest test; -1 before the first.
        state_by_index: The finished shards.
        num_leading: Number of finished shards from the plan's first on.
        ends: Number of shards that are done after each round.
    """

    run_dir: Path
    manifest: RatingManifest
    tolerance: float
    tau: float
    reporter: Reporter
    num_open_shards: int = 0
    early_stop: EarlyStop | None = None
    num_tested_shards: int = -1
    state_by_index: dict[int, ShardState] = field(default_factory=dict)
    num_leading: int = 0
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Compute the rounds."""
        self.ends = round_ends(self.manifest)

    def update(self, finished_shards: Sequence[ShardState]) -> None:
        """Open the next round when one is done, unless the weights are precise enough.

        If several rounds were done before, only the last one is tested.
        """
        self.state_by_index |= {state.index: state for state in finished_shards}
        while self.num_leading in self.state_by_index:
            self.num_leading += 1
        ends = self.ends
        reached = max(takewhile(lambda end: end <= self.num_leading, ends), default=0)
        if reached == self.num_tested_shards:
            return
        self.num_tested_shards = reached
        self.num_open_shards = next((end for end in ends if end > reached), reached)
        if not 0 < reached < ends[-1]:
            return
        estimate = self._weight_error(reached, num_tests=len(ends) - 1)
        sentence = self._sentence(estimate, self._num_pairs(range(reached)))
        if estimate.error is None or estimate.error > self.tolerance:
            next_pairs = self._num_pairs(range(self.num_open_shards))
            self.reporter.message(f"{sentence}; the next round ends with {next_pairs:,} pairs")
            return
        self.num_open_shards = reached
        num_left = self.manifest.num_pairs - self._num_pairs(self.state_by_index)
        saved = f"{num_left * self.manifest.calls_per_pair:,} calls"
        share = num_left / self.manifest.num_pairs
        self.early_stop = EarlyStop(
            f"enough: {sentence}; that saves {saved}, {share:.1%} of the plan", True
        )
        record_precision_reached(
            self.run_dir, num_shards=reached, error=estimate.error, tau=self.tau
        )

    def _weight_error(self, num_shards: int, *, num_tests: int) -> WeightError:
        paths = tuple(
            path for i in range(num_shards) if (path := self.state_by_index[i].path) is not None
        )
        ratings = Ratings(
            label=str(self.run_dir), files=paths, run_dir=self.run_dir, manifest=self.manifest
        )
        return weight_error(
            read_pairs_of(ratings),
            num_all=self.manifest.num_pairs,
            num_tests=num_tests,
            tau=self.tau,
        )

    def _sentence(self, estimate: WeightError, num_pairs: int) -> str:
        progress = f"{num_pairs:,} of {self.manifest.num_pairs:,} pairs rated"
        if estimate.error is None:
            return f"{progress}, too few to say how sure the weights are: {estimate.obstacle}"
        return (
            f"{progress}, every weight at tau {self.tau:g} within {estimate.error:.2%} of what all "
            f"pairs would give ({CONFIDENCE:.0%} confidence; the least sure is that of "
            f"{estimate.rule_id})"
        )

    def _num_pairs(self, indices: Sequence[int] | Mapping[int, ShardState]) -> int:
        shards = self.manifest.shards
        return sum(shards[index].num_pairs for index in indices)


# --- a budget -----------------------------------------------------------------------------------


def num_calls(footer: Mapping[str, Any]) -> float:
    """Return the number of calls that a shard took; if it is not recorded, one per rating."""
    num_rows = int(footer.get("num_ratings", 0)) + int(footer.get("num_nulls", 0))
    return float(footer.get("num_calls", num_rows))


def money(footer: Mapping[str, Any], *, prices: PricesConfig, num_devices: int) -> float:
    """Return the cost of a shard: its tokens, and the time of its engine's GPUs."""
    amounts = (
        (prices.price_input, int(footer.get("prompt_tokens", 0)) / _TOKENS),
        (prices.price_output, int(footer.get("output_tokens", 0)) / _TOKENS),
        (prices.price_gpu_hour, num_devices * float(footer.get("engine_seconds", 0)) / _SECONDS),
    )
    return sum((price or 0.0) * amount for price, amount in amounts)


@dataclass(slots=True)
class Budget:
    """Stop rule of a run that may cost only so much.

    Attributes:
        option: Name of the limit's option on the command line.
        limit: Largest cost, in calls or in money.
        manifest: Manifest of the run, which has its plan.
        cost: Function that returns the cost of a shard, given its footer.
        max_per_pair: Largest cost of a pair in calls. None for money: a pair costs what a pair of
            the finished shards cost.
        num_open_shards: Number of shards that may be rated, from the plan's first on.
        spent: Cost of all finished shards.
        num_priced_pairs: Number of pairs in the finished shards that record their calls.
        num_pairs_S: Number of pairs of each shard of the plan, shape [S].
        is_done_S: True for each finished shard, shape [S].
    """

    option: str
    limit: float
    manifest: RatingManifest
    cost: Callable[[Mapping[str, Any]], float] = field(kw_only=True)
    max_per_pair: int | None = field(default=None, kw_only=True)
    num_open_shards: int = 0
    spent: float = 0.0
    num_priced_pairs: int = 0
    num_pairs_S: NDArray[np.int64] = field(init=False)
    is_done_S: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        """Read the sizes of the shards. None is done yet."""
        self.num_pairs_S = np.array([shard.num_pairs for shard in self.manifest.shards])
        self.is_done_S = np.zeros(len(self.num_pairs_S), dtype=bool)

    def update(self, finished_shards: Sequence[ShardState]) -> None:
        """Open the shards that fit into the remaining budget.

        Raises:
            InputError: No shard is done, and not even one fits.
            EncoreError: The finished calls cost nothing at these prices.
        """
        for state in finished_shards:
            if not self.is_done_S[state.index]:
                self.is_done_S[state.index] = True
                self.spent += self.cost(state.footer)
                if state.footer.get("num_calls"):
                    self.num_priced_pairs += int(self.num_pairs_S[state.index])
        per_pair = self.max_per_pair or self._cost_of_a_pair()
        is_open_S = ~self.is_done_S
        reserved_S = np.cumsum(self.num_pairs_S * is_open_S) * (per_pair or 0.0)
        is_beyond_S = self.limit - self.spent - reserved_S < 0
        if per_pair is None:  # one shard is rated to learn the cost of a pair
            is_beyond_S |= np.cumsum(is_open_S) > 1
        is_closed_S = is_open_S & is_beyond_S
        self.num_open_shards = int(is_closed_S.argmax()) if is_closed_S.any() else len(is_closed_S)
        if not (self.num_open_shards or self.is_done_S.any()):
            num_pairs = int(self.num_pairs_S[0])
            raise InputError(
                f"{self.option} {self.limit:,}: the first shard of {num_pairs:,} pairs "
                f"takes up to {num_pairs * (per_pair or 0):,} calls; give at least "
                "that, or smaller shards (--shard-size)"
            )

    def _cost_of_a_pair(self) -> float | None:
        """Return the mean cost of a pair in shards that record their calls; None without any."""
        if self.num_priced_pairs and not self.spent:
            raise EncoreError(
                f"{self.option} {self.limit:,}: the calls so far cost nothing by the tokens and "
                "seconds that were counted at these prices; use --budget-calls"
            )
        return self.spent / self.num_priced_pairs if self.num_priced_pairs else None

    @property
    def early_stop(self) -> EarlyStop | None:
        """Return what was spent and how many shards are not rated; None if all shards are open."""
        num_left = len(self.manifest.shards) - self.num_open_shards
        if not num_left:
            return None
        unit = "" if self.max_per_pair is None else " calls"
        return EarlyStop(
            f"{self.option} {self.limit:,g}: {self.spent:,.10g}{unit} spent, and the next shard "
            f"would go beyond; {num_left} of {len(self.manifest.shards)} shards are left; the same "
            f"command with a larger {self.option} goes on",
            False,
        )


def usages_of(run_dir: Path, manifest: RatingManifest, done: Sequence[ShardState]) -> list[Usage]:
    """Return the tokens of a run's calls: of each finished shard, and of each reply that is kept.

    Args:
        run_dir: Folder of the run.
        manifest: Manifest of the run, which has its plan.
        done: Finished shards.
    """
    usages = [
        Usage(
            prompt_tokens=int(state.footer.get("prompt_tokens", 0)),
            output_tokens=int(state.footer.get("output_tokens", 0)),
        )
        for state in done
    ]
    finished = {state.index for state in done}
    for shard in manifest.shards:
        path = journal_path(run_dir, shard.index)
        if shard.index not in finished and path.exists():
            journal = ReplyJournal.read(path, run_key=manifest.run_key)
            usages += [reply.usage for reply in journal.paid_replies]
    return usages


@dataclass(slots=True, kw_only=True)
class RequestBudget:
    """Stop rule of a run whose requests keep to a budget: it closes all shards at its end.

    Attributes:
        run_dir: Folder of the run.
        manifest: Manifest of the run, which has its plan.
        spending: Limit that the requests keep.
        done_indices: The finished shards; None before the first update.
    """

    run_dir: Path
    manifest: RatingManifest
    spending: SpendingLimit
    done_indices: set[int] | None = None

    @property
    def num_open_shards(self) -> int:
        """Return the number of shards in the plan, or 0 if the budget is used up."""
        return 0 if self.spending.is_used_up else len(self.manifest.shards)

    def update(self, finished_shards: Sequence[ShardState]) -> None:
        """Count the finished shards; at the first call also what earlier calls cost."""
        if self.done_indices is None:
            self.done_indices = set()
            usages = usages_of(self.run_dir, self.manifest, finished_shards)
            self.spending.spent = sum(map(self.spending.cost, usages))
            self.spending.is_used_up = self.spending.spent >= self.spending.limit
        self.done_indices.update(state.index for state in finished_shards)

    @property
    def early_stop(self) -> EarlyStop | None:
        """Return what was spent and how many shards are not finished; None while it goes on."""
        num_shards, num_done = len(self.manifest.shards), len(self.done_indices or ())
        if not self.spending.is_used_up or num_done == num_shards:
            return None
        return EarlyStop(
            f"--budget {self.spending.limit:,g}: {self.spending.spent:,.6g} spent, and the next "
            f"request would go beyond; {num_shards - num_done} of {num_shards} shards "
            "are not finished; the same command with a larger --budget goes on",
            False,
        )
