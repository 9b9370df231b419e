"""Rate every shard of a run in one process: what is not done, each shard on its own fate."""

from __future__ import annotations

import errno
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from encore.config import RatingConfig
from encore.data.study import open_study
from encore.errors import InputError, JudgeUnavailableError
from encore.rating import RatingProgress, RatingRun, ShardOutcome, open_run, rate_shard
from encore.shards import Shard, inspect_shard

logger = logging.getLogger(__name__)

#: While one shard generates on a GPU, another is rendered and tokenised, or parsed and written. An
#: engine on the CPU takes all cores itself and waits for its slowest one, so there it is one shard
#: at a time: two were a tenth slower on 2 cores.
NUM_WORKERS = 2
_BUSY_POLL_SECONDS = 1.0
_NO_ROOM_OR_PERMISSION = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES})

OutcomeHook = Callable[[ShardOutcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingReport:
    """What a call of `rate_run` did. ``failures`` maps shard index to its error."""

    outcomes: tuple[ShardOutcome, ...]
    failures: Mapping[int, str] = field(default_factory=dict)

    def count(self, action: str) -> int:
        """How many shards were ``rated`` or ``reused``."""
        return sum(outcome.action == action for outcome in self.outcomes)

    @property
    def summary(self) -> str:
        """One line: ``43 rated, 0 reused, 7 failed``."""
        return (
            f"{self.count('rated')} rated, {self.count('reused')} reused, "
            f"{len(self.failures)} failed"
        )

    @property
    def null_reasons(self) -> Mapping[str, int]:
        """Nulls by reason over the shards rated now."""
        total: Counter[str] = Counter()
        for outcome in self.outcomes:
            total.update(outcome.null_reasons)
        return dict(sorted(total.items()))


def rate(
    study: Path, config: RatingConfig, *, shard_timeout_seconds: float | None = None
) -> RatingReport:
    """Open the run of a study and a config, rate what is not done, release the judge.

    Raises:
        EncoreError: As `encore.rating.open_run` and `rate_run`.
    """
    run = open_run(open_study(study), config)
    try:
        return rate_run(run, shard_timeout_seconds=shard_timeout_seconds)
    finally:
        run.judge.close()


def rate_run(
    run: RatingRun,
    *,
    only: Sequence[int] | None = None,
    shard_timeout_seconds: float | None = None,
    on_progress: RatingProgress | None = None,
    on_outcome: OutcomeHook | None = None,
) -> RatingReport:
    """Rate the shards of a run that are not done.

    A shard that fails is recorded and the others go on; an error that every shard would meet (no
    engine, no space, no permission) stops the run. A shard another process is rating is waited
    for.

    Args:
        run: The opened run.
        only: Indices of the shards to look at; default all.
        shard_timeout_seconds: Limit of one shard's generation.
        on_progress: Told about finished replies, from the worker threads.
        on_outcome: Told about each finished shard, from the calling thread.

    Raises:
        InputError: ``only`` names a shard the plan does not have.
        JudgeUnavailableError: The judge's engine does not start.
        KeyboardInterrupt: After the shards at work were interrupted; written ones are kept.
    """
    run.cancelled.clear()
    pending = choose_shards(run, only)
    if any(not _is_done(run, shard) for shard in pending):
        run.judge.start()

    def work(shard: Shard) -> ShardOutcome:
        return rate_shard(
            run, shard, timeout_seconds=shard_timeout_seconds, on_progress=on_progress
        )

    outcomes: list[ShardOutcome] = []
    failures: dict[int, str] = {}
    waited_for: tuple[Shard, ...] = ()
    while pending:
        passed = _pass_over(run, pending, work, on_outcome or _ignore)
        outcomes += passed.outcomes
        failures |= passed.failures
        pending = tuple(passed.busy)
        if pending and pending != waited_for:
            names = ", ".join(str(shard.index) for shard in pending)
            logger.warning("waiting for another process that rates shards %s", names)
            waited_for = pending
        if pending:
            time.sleep(_BUSY_POLL_SECONDS)
    outcomes.sort(key=lambda outcome: outcome.index)
    return RatingReport(outcomes=tuple(outcomes), failures=dict(sorted(failures.items())))


@dataclass(slots=True)
class _Pass:
    """What came of trying each of some shards once."""

    outcomes: list[ShardOutcome] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    busy: list[Shard] = field(default_factory=list)


def _pass_over(
    run: RatingRun,
    pending: Sequence[Shard],
    work: Callable[[Shard], ShardOutcome],
    on_outcome: OutcomeHook,
) -> _Pass:
    passed = _Pass()
    with closing(_as_finished(run, pending, work)) as finished:
        for shard, future in finished:
            error = future.exception()
            if error is not None:
                traceback.clear_frames(error.__traceback__)  # they hold the shard's prompts
                if meets_every_shard(error):
                    raise error
                passed.failures[shard.index] = f"{type(error).__name__}: {error}"
                logger.warning("shard %d failed: %s", shard.index, error)
            elif (outcome := future.result()).action == "busy":
                passed.busy.append(shard)
            else:
                passed.outcomes.append(outcome)
                on_outcome(outcome)
    return passed


def _ignore(_outcome: ShardOutcome) -> None:
    """Nobody wants to know."""


def choose_shards(run: RatingRun, only: Sequence[int] | None) -> tuple[Shard, ...]:
    """The plan's shards, or those of the given indices."""
    plan = run.manifest.shards
    if only is None:
        return plan
    wrong = [index for index in only if not 0 <= index < len(plan)]
    if wrong:
        raise InputError(
            f"shard {wrong[0]}: run {run.manifest.run_key} has shards 0 to {len(plan) - 1}; "
            "`encore status` lists them"
        )
    return tuple(plan[index] for index in sorted(set(only)))


def _is_done(run: RatingRun, shard: Shard) -> bool:
    return inspect_shard(run.run_dir, run.manifest, shard).state == "done"


def _as_finished(
    run: RatingRun, todo: Sequence[Shard], work: Callable[[Shard], ShardOutcome]
) -> Generator[tuple[Shard, Future[ShardOutcome]], None, None]:
    """Run the shards on the workers; on any way out, none is left running."""
    num_workers = 1 if run.judge.is_on_cpu else NUM_WORKERS
    pool = ThreadPoolExecutor(num_workers, thread_name_prefix="rate")
    try:
        futures = {pool.submit(work, shard): shard for shard in todo}
        for future in as_completed(futures):
            yield futures[future], future
    except BaseException:
        run.cancelled.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def meets_every_shard(error: object) -> bool:
    """Whether the next shard would fail the same way: no engine, no space, no permission."""
    if isinstance(error, JudgeUnavailableError):
        return True
    return isinstance(error, OSError) and error.errno in _NO_ROOM_OR_PERMISSION
