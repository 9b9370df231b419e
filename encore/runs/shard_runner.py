"""Work through a sharded run: rating, scoring and judging give a function from a slice to a table.

This module locks slices, records failures, waits for other processes, takes over from killed ones,
and reports progress. The lock only saves work: what is done is read from files (`run_files`).

    class MyManifest(RunManifest): ...                  # key field, rows per pair, command

    def compute(shard: Shard, report_rows: ReportRows) -> ShardTable: ...
    # report_rows(number of finished rows) raises to stop a cancelled run

    job = Job(run_dir=run_dir, manifest=manifest, compute=compute, start=load_the_engine)
    report = work_through(job, reporter=reporter)        # every slice that is not done
    outcome = work_on(job, shard)                        # one slice (a task of an orchestrator)
    status = run_status(run_dir, MyManifest)              # status.is_complete, status.paths
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol

from filelock import FileLock, Timeout

from encore.core.errors import (
    GenerationInterruptedError,
    InputError,
    StudyIncompleteError,
    is_worth_retrying,
    stops_the_run,
)
from encore.core.reporting import SILENT, Reporter
from encore.runs import run_files as runs
from encore.runs.run_files import RunManifest, Shard, ShardState, ShardTable

logger = logging.getLogger(__name__)

_BUSY_POLL_SECONDS = 1.0

#: Reports how many rows of a shard are finished so far; raises when the run was cancelled.
ReportRows = Callable[[int], None]
_Work = Callable[[], ShardState]


class EarlyStop(NamedTuple):
    """Why a run ends before its plan does, and whether what there is was all that was wanted."""

    reason: str
    is_success: bool


class StopRule(Protocol):
    """How far into its plan a run goes, decided while it goes."""

    @property
    def num_open_shards(self) -> int:
        """Shards that may be taken, counted from the plan's first."""

    @property
    def early_stop(self) -> EarlyStop | None:
        """Why no further shard will be open, if it is for another reason than a failure."""

    def update(self, done: Sequence[ShardState]) -> None:
        """Decide again; called when a run begins and after each shard that is finished."""


class _WholePlan:
    num_open_shards = sys.maxsize
    early_stop = None

    def update(self, done: Sequence[ShardState]) -> None:
        """Nothing to decide."""


NEVER_STOP: StopRule = _WholePlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One opened run: where it is, which it is, and how a shard becomes a table.

    Attributes:
        run_dir: The run's folder; made with the first shard.
        manifest: Which run it is.
        compute: Makes the rows of a shard; several workers call it from threads of their own.
        start: Called once before the first open shard, e.g. to start an engine. Returns the number
            of workers: with two, one shard is prepared or written while another computes.
        title: What a reporter calls it; default: the manifest's ``DOING``.
        shard_indices: Indices of the shards to look at; None: all.
        slice: ``(i, n)``: of these, every n-th from the i-th on; None: all.
        retries: Further attempts for a shard whose error may pass.
        stop_rule: How far into the plan the run goes.
        cancelled: Set it to interrupt the shards in work.
    """

    run_dir: Path
    manifest: RunManifest
    compute: Callable[[Shard, ReportRows], ShardTable]
    start: Callable[[], int] = lambda: 1
    title: str = ""
    shard_indices: Sequence[int] | None = None
    slice: tuple[int, int] | None = None
    retries: int = 0
    stop_rule: StopRule = NEVER_STOP
    cancelled: threading.Event = field(default_factory=threading.Event)

    def open_shards(self, shards: Iterable[Shard]) -> list[Shard]:
        """Those of some shards that may be taken."""
        return [shard for shard in shards if shard.index < self.stop_rule.num_open_shards]

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards to look at.

        Raises:
            InputError: ``shard_indices`` names a shard that the plan does not have.
        """
        plan = self.manifest.shards
        for index in self.shard_indices or ():
            if not 0 <= index < len(plan):
                raise InputError(
                    f"shard {index}: run {self.manifest.key} has shards 0 to {len(plan) - 1}; "
                    "`encore status` lists them"
                )
        chosen = (
            plan
            if self.shard_indices is None
            else [plan[index] for index in sorted(set(self.shard_indices))]
        )
        first, step = self.slice or (0, 1)
        return tuple(chosen[first::step])


@dataclass(frozen=True, slots=True)
class RunReport:
    """What one call did.

    Attributes:
        kind: Of the run's manifest.
        outcomes: The shards that are done.
        failures: The error of each shard that failed, by index.
        seconds: From `Job.start` on.
        early_stop: Why other shards were not taken.
    """

    kind: type[RunManifest]
    outcomes: Sequence[ShardState]
    failures: Mapping[int, str]
    seconds: float = 0.0
    early_stop: EarlyStop | None = None

    def count(self, action: str) -> int:
        """How many shards were, for example, ``rated`` or ``reused``."""
        return sum(outcome.action == action for outcome in self.outcomes)

    def total(self, name: str) -> int:
        """The sum of a number in the footers, over all shards that are done."""
        return sum(int(outcome.footer.get(name, 0)) for outcome in self.outcomes)

    def computed(self, name: str) -> int:
        """The sum of a count over the shards computed now."""
        return sum(int(outcome.counts.get(name, 0)) for outcome in self.outcomes)

    def tally(self, name: str) -> dict[str, int]:
        """The sums of counts by name, over the shards computed now, sorted."""
        sums: Counter[str] = Counter()
        for outcome in self.outcomes:
            sums.update(outcome.counts.get(name, {}))
        return dict(sorted(sums.items()))

    def total_now(self, name: str) -> int:
        """The sum of a number in the footers, over the shards computed now."""
        now = [outcome for outcome in self.outcomes if outcome.action == self.kind.DONE]
        return sum(int(outcome.footer.get(name, 0)) for outcome in now)

    @property
    def summary(self) -> str:
        """One line: ``43 rated, 0 reused, 7 failed``."""
        word = self.kind.DONE
        done, reused = self.count(word), self.count("reused")
        return f"{done} {word}, {reused} reused, {len(self.failures)} failed"

    @property
    def message(self) -> str:
        """The same, and why the run ended early."""
        return f"{self.summary}; {self.early_stop.reason}" if self.early_stop else self.summary


def raise_for_failed_shards(run_dir: Path, failures: Mapping[int, str], *, num_shards: int) -> None:
    """Stop where shards of a run failed.

    Raises:
        StudyIncompleteError: How many, and why the first of them.
    """
    if failures:
        index, error = min(failures.items())
        raise StudyIncompleteError(
            f"{run_dir}: {len(failures)} of {num_shards} shards failed (shard {index}: {error}); "
            "run the same command again for only these"
        )


def work_on(
    job: Job, shard: Shard, *, report_rows: ReportRows | None = None, takes_over: bool = False
) -> ShardState:
    """Compute one shard unless it is done or another process works on it.

    Args:
        job: The run.
        shard: One shard of its plan.
        report_rows: Called with the number of its rows that are finished.
        takes_over: Compute it even if another process works on it: the first whole file counts.

    Raises:
        GenerationInterruptedError: The run was cancelled.
        Exception: What `Job.compute` or the disk raised; it is recorded for `run_status`.
    """
    if (reused := _reused(job, shard)) is not None:  # no lock, so it works on a read-only disk
        return reused
    if not job.open_shards([shard]):  # no longer: others were finished since it was chosen
        return ShardState(index=shard.index, state="missing", action="beyond")

    def told(num_rows: int) -> None:
        if job.cancelled.is_set():
            raise GenerationInterruptedError(f"shard {shard.index}: the run was cancelled")
        if report_rows is not None:
            report_rows(num_rows)

    runs.claim_folder(job.run_dir, job.manifest)
    with shard_lock(job.run_dir, shard.index) as is_mine:
        if not (is_mine or takes_over):
            return ShardState(index=shard.index, state="missing", action="busy")
        if (reused := _reused(job, shard)) is not None:  # finished elsewhere since the first look
            return reused
        if is_mine:
            for path in job.run_dir.glob(f".*-{shard.index:05d}.*"):
                path.unlink(missing_ok=True)  # left by a killed process
        return _computed(job, shard, told)


def _computed(job: Job, shard: Shard, report_rows: ReportRows) -> ShardState:
    try:
        content = job.compute(shard, report_rows)
        state = runs.write_shard(job.run_dir, job.manifest, shard, content)
    except Exception as error:
        if not job.cancelled.is_set():
            runs.record_failure(job.run_dir, shard, error)
        raise
    return replace(state, action=job.manifest.DONE, counts=content.counts)


@contextlib.contextmanager
def shard_lock(run_dir: Path, index: int) -> Iterator[bool]:
    """Whether this process may work on a shard; False when another one works on it.

    The operating system releases the lock even when its holder is killed.
    """
    locks = run_dir / "locks"
    locks.mkdir(exist_ok=True)
    lock = FileLock(locks / f"shard-{index:05d}.lock", blocking=False)
    with contextlib.suppress(Timeout):
        lock.acquire()
    try:
        yield lock.is_locked
    finally:
        lock.release()


def work_through(job: Job, *, reporter: Reporter = SILENT) -> RunReport:
    """Compute every shard of a job that is not done.

    A shard that fails is tried again as often as the job says, then recorded, and does not stop the
    others; an error that every shard would meet does. A shard that another process works on is
    waited for, and computed here if that process dies.

    Args:
        job: The run.
        reporter: Told about finished rows (with several workers: from their threads) and shards.

    Raises:
        InputError: The job names a shard that the plan does not have.
        Exception: An error that every shard would meet.
        KeyboardInterrupt: After the shards in work were interrupted; finished shards are kept.
    """
    tally, pending, num_workers = begin(job, reporter=reporter)
    waited_for: list[Shard] = []
    while taken := job.open_shards(pending):
        beyond = [shard for shard in pending if shard not in taken]
        still_open = _open_after_pass(tally, taken, num_workers=num_workers)
        pending = sorted([*still_open, *beyond], key=attrgetter("index"))
        again = job.open_shards(still_open)
        busy = [shard for shard in again if not tally.num_failures[shard.index]]
        if busy and busy != waited_for:
            names = ", ".join(str(shard.index) for shard in busy)
            logger.warning("waiting for another process that works on shards %s", names)
            waited_for = busy
        if again:
            time.sleep(_BUSY_POLL_SECONDS)
    return tally.report


def begin(job: Job, *, reporter: Reporter) -> tuple[Tally, list[Shard], int]:
    """Look at a job's shards and start what computes them, if any is open.

    Returns:
        A tally that has the shards that are done, the shards that are not, the number of workers.

    Raises:
        InputError: The job names a shard that the plan does not have; the folder holds something
            else.
        Exception: What `Job.start` raised.
    """
    job.cancelled.clear()
    manifest, chosen = job.manifest, job.shards
    runs.check_folder(job.run_dir, manifest)
    states = runs.inspect_shards(job.run_dir, manifest, chosen)
    pending = [shard for shard, state in zip(chosen, states, strict=True) if state.state != "done"]
    job.stop_rule.update([state for state in states if state.state == "done"])
    num_workers = job.start() if job.open_shards(pending) else 1
    if pending or not (job.run_dir / manifest.FILE).is_file():
        runs.claim_folder(job.run_dir, manifest)
    outcomes = [replace(state, action="reused") for state in states if state.state == "done"]
    before = f" ({len(outcomes)} of {len(chosen)} shards were done before)" if outcomes else ""
    reporter.started(
        f"{job.title or manifest.DOING}{before}",
        total=sum(shard.num_pairs for shard in chosen) * manifest.rows_per_pair,
        done=sum(outcome.num_rows for outcome in outcomes),
    )
    tally = Tally(job=job, reporter=reporter, num_shards=len(chosen), outcomes=outcomes)
    return tally, pending, num_workers


@dataclass(slots=True, kw_only=True)
class Tally:
    """What one call has done so far of a job.

    ``num_failures`` counts the attempts at a shard that failed; ``failures`` has the errors of the
    shards that are given up.
    """

    job: Job
    reporter: Reporter
    num_shards: int
    outcomes: list[ShardState]
    failures: dict[int, str] = field(default_factory=dict)
    num_failures: Counter[int] = field(default_factory=Counter)
    _told: Counter[int] = field(default_factory=Counter)
    _num_rows: int = 0
    _began: float | None = None
    _started: float = field(default_factory=time.monotonic)

    def tell(self, shard: Shard, num_rows: int) -> None:
        """Report finished rows of a shard in work. Each shard has one worker thread."""
        if (more := num_rows - self._told[shard.index]) > 0:
            self._told[shard.index] = num_rows
            self._num_rows += more
            self._began = self._began or time.monotonic()  # with the first rows: not a start
            seconds = time.monotonic() - self._began
            speed = f"{self._num_rows / seconds:,.0f} {self.job.manifest.UNIT}/s"
            self.reporter.advanced(more, note=speed if seconds > 1 else "")

    def finished(self, outcome: ShardState) -> None:
        """Report a shard that is done."""
        self.reporter.advanced(outcome.num_rows - self._told[outcome.index])
        self.outcomes.append(outcome)
        assert outcome.path is not None
        place = f"{len(self.outcomes)} of {self.num_shards}"
        self.reporter.saved(outcome.path, kind=f"shard {outcome.index} {outcome.action} ({place})")
        self.job.stop_rule.update(self.outcomes)

    def failed(self, shard: Shard, error: Exception) -> bool:
        """Note a failed attempt; whether another one is due."""
        self.num_failures[shard.index] += 1
        number, most = self.num_failures[shard.index], 1 + self.job.retries
        again = number < most and is_worth_retrying(error)
        attempt = f" (attempt {number} of {most})" if again else ""
        logger.warning("shard %d failed%s: %s", shard.index, attempt, error)
        if not again:
            self.failures[shard.index] = f"{type(error).__name__}: {error}"
        return again

    @property
    def report(self) -> RunReport:
        """What this call did."""
        failures, seconds = dict(sorted(self.failures.items())), time.monotonic() - self._started
        kind, early_stop = type(self.job.manifest), self.job.stop_rule.early_stop
        return RunReport(kind, self.outcomes, failures, seconds, early_stop)


def _open_after_pass(tally: Tally, pending: Sequence[Shard], *, num_workers: int) -> list[Shard]:
    """Try each shard once; returns those to try again, or that another process works on.

    A single worker is this thread: libgomp keeps a team of threads for each thread that computes,
    and with more of them than cores they sleep between operations (measured: a fifth slower). On
    any way out no thread is left running.
    """
    job, still_open = tally.job, []
    works = {
        shard: partial(work_on, job, shard, report_rows=partial(tally.tell, shard))
        for shard in pending
    }
    with ThreadPoolExecutor(num_workers, thread_name_prefix=job.manifest.DOING) as pool:
        try:
            for shard, result in works.items() if num_workers == 1 else _in_threads(pool, works):
                try:
                    outcome = result()
                except Exception as error:
                    traceback.clear_frames(error.__traceback__)  # they hold the shard's rows
                    if stops_the_run(error):
                        raise
                    if tally.failed(shard, error):
                        still_open.append(shard)
                    continue
                if outcome.action in ("busy", "beyond"):
                    still_open.append(shard)
                else:
                    tally.finished(outcome)
        except BaseException:
            job.cancelled.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return still_open


def _in_threads(
    pool: ThreadPoolExecutor, works: Mapping[Shard, _Work]
) -> Iterator[tuple[Shard, _Work]]:
    futures = {pool.submit(work): shard for shard, work in works.items()}
    for future in as_completed(futures):
        yield futures[future], future.result


def _reused(job: Job, shard: Shard) -> ShardState | None:
    state = runs.inspect_shard(job.run_dir, job.manifest, shard)
    return replace(state, action="reused") if state.state == "done" else None
