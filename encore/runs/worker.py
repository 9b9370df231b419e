"""Work through a sharded run. Rating, scoring and judging give a function from shard to table.

This module locks shards, records failures, waits for other processes, takes over from killed ones,
and reports progress. A lock only saves work: what is done is read from files
(`encore.runs.shard_files`).

    class MyManifest(RunManifest): ...  # key field, rows per pair, command

    def compute(shard: Shard, report_rows: ReportRows) -> ShardTable: ...

    job = Job(run_dir=run_dir, manifest=manifest, compute=compute, start=load_the_engine)
    report = work_through(job, reporter=reporter)  # computes every shard that is not done
    outcome = work_on(job, shard)  # computes one shard
    status = run_status(run_dir, MyManifest)  # status.is_complete, status.paths
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from encore.core.errors import (
    EnginesDiedError,
    GenerationInterruptedError,
    InputError,
    ShardClosedError,
    StudyIncompleteError,
    is_engine_dead,
    stops_the_run,
)
from encore.core.file_lock import LockState, file_lock
from encore.core.folder_watches import claim_for_work
from encore.core.leftovers import is_left_behind
from encore.core.number_text import amount
from encore.core.reporting import SILENT, Reporter
from encore.runs import shard_files as runs
from encore.runs.manifest import RunManifest, Shard, check_folder, claim_folder
from encore.runs.shard_files import ShardState, ShardTable
from encore.runs.shard_listing import ShardListing
from encore.runs.stop_rule import NEVER_STOP, EarlyStop, StopRule

logger = logging.getLogger(__name__)

_BUSY_POLL_SECONDS = 1.0
#: Deaths of an engine in a row after which a run ends, and characters of the error that are shown.
_MAX_DEATHS, _NUM_SHOWN = 3, 300

#: Receives the number of a shard's rows that are finished so far. It raises
#: `GenerationInterruptedError` when the run was cancelled.
ReportRows = Callable[[int], None]
#: Computes the rows of a shard.
Compute = Callable[[Shard, ReportRows], ShardTable]
#: Calls a function that computes and writes a shard, once or, after an error, several times. It
#: returns what the function returned last, or raises what it raised last.
RunAttempts = Callable[[Shard, Callable[[], ShardState]], ShardState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One opened run and the function that computes its shards.

    Attributes:
        run_dir: The run's folder. It is created with the first shard.
        manifest: The run's identity and plan.
        compute: Computes the rows of a shard. Several workers call it from their own threads.
        run_attempts: Makes the attempts at a shard. Default: one, in the thread of the worker.
        start: Called once before the first open shard, e.g. to start an engine. Returns the number
            of workers: with two, one shard is prepared or written while another computes.
        title: Title of the progress bar. Default: the manifest's ``DOING``.
        shard_indices: Shards to compute; None means all.
        slice: ``(i, n)`` takes every n-th of these, starting with the i-th (``--slice I/N``).
            None takes all.
        replaces_done: True computes the shards that are done again, and replaces their files.
        stop_rule: Decides how many shards of the plan are computed.
        cancelled: Set it to interrupt the shards at work.
        listing: The files of the run's shards, as this process last listed them.
    """

    run_dir: Path
    manifest: RunManifest
    compute: Compute
    run_attempts: RunAttempts = lambda _, attempt: attempt()
    start: Callable[[], int] = lambda: 1
    title: str = ""
    shard_indices: Sequence[int] | None = None
    slice: tuple[int, int] | None = None
    replaces_done: bool = False
    stop_rule: StopRule = NEVER_STOP
    cancelled: threading.Event = field(default_factory=threading.Event)
    listing: ShardListing = field(init=False)

    def __post_init__(self) -> None:
        """Begin a listing of the run's shards."""
        object.__setattr__(self, "listing", ShardListing(self.run_dir))

    def open_shards(self, shards: Iterable[Shard]) -> list[Shard]:
        """Return the given shards that the stop rule allows."""
        return [shard for shard in shards if shard.index < self.stop_rule.num_open_shards]

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Return the shards of the plan that this job is about.

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
        indices = range(len(plan)) if self.shard_indices is None else set(self.shard_indices)
        first, step = self.slice or (0, 1)
        return tuple(plan[index] for index in sorted(indices)[first::step])


@dataclass(frozen=True, slots=True)
class RunReport:
    """Result of one call that worked on a run.

    Attributes:
        kind: Class of the run's manifest.
        outcomes: The shards that are done, computed now or earlier.
        failures: The error of each failed shard, by index.
        seconds: Duration of the call, from the end of `Job.start`.
        early_stop: Why further shards were not taken; None if nothing stopped the run early.
    """

    kind: type[RunManifest]
    outcomes: Sequence[ShardState]
    failures: Mapping[int, str]
    seconds: float = 0.0
    early_stop: EarlyStop | None = None

    @property
    def _computed(self) -> Iterator[ShardState]:
        return (outcome for outcome in self.outcomes if outcome.action == self.kind.DONE)

    def count(self, action: str) -> int:
        """Return the number of shards that were, for example, ``rated`` or ``reused``."""
        return sum(outcome.action == action for outcome in self.outcomes)

    def total(self, name: str) -> int:
        """Return the sum of a number in the footers of all shards that are done."""
        return sum(int(outcome.footer.get(name, 0)) for outcome in self.outcomes)

    def computed(self, name: str) -> int:
        """Return the sum of a count over the shards computed in this call."""
        return sum(int(outcome.counts.get(name, 0)) for outcome in self._computed)

    def counts_by(self, name: str) -> dict[str, int]:
        """Return sums of counts by kind over the shards computed in this call, sorted by kind.

        For example, ``counts_by("null_reasons")`` is ``{"no_number": 3, "prompt_too_long": 1}``.
        """
        sums: Counter[str] = Counter()
        for outcome in self._computed:
            sums.update(outcome.counts.get(name, {}))
        return dict(sorted(sums.items()))

    @property
    def summary(self) -> str:
        """Return one line, e.g. ``43 rated, 0 reused, 7 failed``."""
        verb = self.kind.DONE
        return (
            f"{self.count(verb)} {verb}, {self.count('reused')} reused, {len(self.failures)} failed"
        )

    @property
    def message(self) -> str:
        """Return the summary, and the reason if the run stopped early."""
        return f"{self.summary}; {self.early_stop.reason}" if self.early_stop else self.summary


def raise_for_failed_shards(run_dir: Path, failures: Mapping[int, str], *, num_shards: int) -> None:
    """Raise an error if shards of a run failed.

    Raises:
        StudyIncompleteError: The number of failed shards and the error of the first one.
    """
    if failures:
        index, error = min(failures.items())
        raise StudyIncompleteError(
            f"{run_dir}: {len(failures)} of {num_shards} shards failed (shard {index}: {error}); "
            "run the same command again for only these"
        )


def work_on(job: Job, shard: Shard, *, report_rows: ReportRows | None = None) -> ShardState:
    """Compute one shard unless it is done or another process works on it.

    Args:
        job: The run and the function that computes its shards.
        shard: The shard of the run's plan to compute.
        report_rows: Receives the number of the shard's rows that are finished.

    Raises:
        GenerationInterruptedError: The run was cancelled.
        Exception: What `Job.compute` or the disk raised. It is recorded for `run_status`.
    """
    if (reused := _reused(job, shard)) is not None:  # without a lock: the disk may be read-only
        return reused
    if not job.open_shards([shard]):  # a shard that finished meanwhile lowered the limit
        return ShardState(index=shard.index, state="missing", action="closed")

    def report_unless_cancelled(num_rows: int) -> None:
        if job.cancelled.is_set():
            raise GenerationInterruptedError(f"shard {shard.index}: the run was cancelled")
        if report_rows is not None:
            report_rows(num_rows)

    claim_folder(job.run_dir, job.manifest)
    with shard_lock(job.run_dir, shard.index) as lock:
        if lock == "busy":
            return ShardState(index=shard.index, state="missing", action="busy")
        if (reused := _finished_elsewhere(job, shard)) is not None:  # since the first look
            return reused
        for path in job.listing.temporary_files(shard.index):
            if lock == "held" or is_left_behind(path):
                path.unlink(missing_ok=True)  # left by a killed process
        return job.run_attempts(
            shard, partial(_compute_and_write, job, shard, report_unless_cancelled)
        )


def _compute_and_write(job: Job, shard: Shard, report_rows: ReportRows) -> ShardState:
    """Compute a shard and write it. An error is recorded in the run's folder."""
    try:
        content = job.compute(shard, report_rows)
        state = runs.write_shard(
            job.run_dir,
            job.manifest,
            shard,
            content,
            listing=job.listing,
            replaces_done=job.replaces_done,
        )
    except ShardClosedError:
        return ShardState(index=shard.index, state="missing", action="closed")
    except Exception as error:
        if not (job.cancelled.is_set() or is_engine_dead(error)):
            runs.record_failure(job.run_dir, shard, error)
        raise
    return replace(state, action=job.manifest.DONE, counts=content.counts)


def _reused(job: Job, shard: Shard) -> ShardState | None:
    """Return the state of a shard that is done already; None if it is not done."""
    if job.replaces_done:
        return None
    state = runs.state_of_shard(job.run_dir, job.manifest, shard, job.listing)
    return replace(state, action="reused") if state.state == "done" else None


def _finished_elsewhere(job: Job, shard: Shard) -> ShardState | None:
    """Return the state of a shard that a process finished since the listing; None if none did."""
    if not runs.has_cost(job.run_dir, shard):
        return None
    job.listing.renew(now=True)
    return _reused(job, shard)


def shard_lock(run_dir: Path, index: int) -> AbstractContextManager[LockState]:
    """Return the lock of a shard, which is ``busy`` while another process holds it."""
    locks = run_dir / "locks"
    locks.mkdir(exist_ok=True)
    return file_lock(locks / f"shard-{index:05d}.lock", timeout_seconds=0)


def work_through(job: Job, *, reporter: Reporter = SILENT) -> RunReport:
    """Compute every shard of a job that is not done.

    A shard that fails is recorded, after as many attempts as `Job.run_attempts` makes. The others
    go on, unless every shard would meet the same error. A shard that another process works on is
    waited for, and computed here if that process dies.

    Args:
        job: The run and the function that computes its shards.
        reporter: Receives finished rows and shards; with several workers from their threads.

    Raises:
        InputError: The job names a shard that the plan does not have.
        Exception: An error that every shard would meet.
        KeyboardInterrupt: After the shards at work were interrupted. Its note says what is kept.
    """
    try:
        progress, pending, num_workers = begin(job, reporter=reporter)
        announced: list[Shard] = []
        while open_shards := job.open_shards(pending):
            open_indices = {shard.index for shard in open_shards}
            closed = [shard for shard in pending if shard.index not in open_indices]
            unfinished = _try_once(progress, open_shards, num_workers=num_workers)
            pending = sorted([*unfinished, *closed], key=attrgetter("index"))
            retried = job.open_shards(unfinished)
            busy = [shard for shard in retried if shard.index not in progress.put_back]
            if busy and busy != announced:
                indices = ", ".join(str(shard.index) for shard in busy)
                logger.warning("waiting for another process that works on shards %s", indices)
                announced = busy
            if retried:
                time.sleep(_BUSY_POLL_SECONDS)
    except KeyboardInterrupt as error:
        error.add_note(runs.kept_work(job.run_dir, job.manifest))
        raise
    runs.record_checked_shards(job.run_dir, job.manifest, progress.outcomes)
    return progress.report


def begin(job: Job, *, reporter: Reporter) -> tuple[RunProgress, list[Shard], int]:
    """Read the state of a job's shards and call `Job.start` if any is open.

    Returns:
        The progress with the shards that are done, the shards that are not, the number of workers.

    Raises:
        InputError: The job names a shard that the plan does not have, or the folder holds
            something else.
        Exception: The engine did not start: any error of `Job.start`.
    """
    job.cancelled.clear()
    manifest, shards = job.manifest, job.shards
    check_folder(job.run_dir, manifest)
    job.listing.renew(now=True)
    states = runs.inspect_shards(job.run_dir, manifest, shards, listing=job.listing)
    finished = [state for state in states if state.state == "done" and not job.replaces_done]
    finished_indices = {state.index for state in finished}
    pending = [shard for shard in shards if shard.index not in finished_indices]
    job.stop_rule.update(finished)
    if pending:
        claim_for_work(job.run_dir, part="-".join(map(str, job.slice or ())))
    num_workers = job.start() if job.open_shards(pending) else 1
    if pending or not (job.run_dir / manifest.FILE).is_file():
        claim_folder(job.run_dir, manifest)
    done_before = f" ({len(finished)} of {len(shards)} shards were done before)" if finished else ""
    reporter.started(
        f"{job.title or manifest.DOING}{done_before}",
        total=sum(shard.num_pairs for shard in shards) * manifest.rows_per_pair,
        done=sum(state.num_rows for state in finished),
    )
    outcomes = [replace(state, action="reused") for state in finished]
    progress = RunProgress(job=job, reporter=reporter, num_shards=len(shards), outcomes=outcomes)
    return progress, pending, num_workers


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """Progress of one call that works on a job. It is passed on to the reporter.

    Attributes:
        job: The run that the call works on.
        reporter: Receives finished rows and shards.
        num_shards: Number of shards that the job is about.
        outcomes: The shards that are done.
        failures: The error of each shard that is given up, by index.
        put_back: Shards whose engine died, by index.
        num_deaths: Deaths of the engine since a shard was last finished.
    """

    job: Job
    reporter: Reporter
    num_shards: int
    outcomes: list[ShardState]
    failures: dict[int, str] = field(default_factory=dict)
    put_back: set[int] = field(default_factory=set)
    num_deaths: int = 0
    _num_reported: Counter[int] = field(default_factory=Counter)
    _num_rows: int = 0
    _first_rows_at: float | None = None
    _started_at: float = field(default_factory=time.monotonic)

    def add_rows(self, shard: Shard, num_rows: int) -> None:
        """Report the finished rows of a shard at work. Each shard has one worker thread."""
        if (num_new := num_rows - self._num_reported[shard.index]) > 0:
            self._num_reported[shard.index] = num_rows
            # The speed leaves out the start of the engine, and rows that an earlier call had.
            if self._first_rows_at is None:
                self._first_rows_at = time.monotonic()
            else:
                self._num_rows += num_new
            seconds = time.monotonic() - self._first_rows_at
            unit = self.job.manifest.UNIT
            speed = f"{amount(self._num_rows / seconds)} {unit}/s" if seconds > 1 else ""
            self.reporter.advanced(num_new, note=speed)

    def shard_finished(self, outcome: ShardState) -> None:
        """Report a shard that is done, and update the stop rule."""
        self.reporter.advanced(outcome.num_rows - self._num_reported[outcome.index])
        self.outcomes.append(outcome)
        self.num_deaths = 0
        assert outcome.path is not None
        position = f"{len(self.outcomes)} of {self.num_shards}"
        kind = f"shard {outcome.index} {outcome.action} ({position})"
        self.reporter.saved(outcome.path, kind=kind)
        self.job.stop_rule.update([outcome])

    def engine_died(self, shard: Shard, error: Exception) -> None:
        """Count a death of the engine, which the next shard starts again; put the shard back.

        Raises:
            EnginesDiedError: It died too often without a finished shard between.
        """
        self.put_back.add(shard.index)
        self.num_deaths += 1
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:_NUM_SHOWN]}"
        if self.num_deaths >= _MAX_DEATHS:
            raise EnginesDiedError(
                f"the engine died {self.num_deaths} times in a row, last at shard {shard.index} "
                f"({reason}); finished shards are kept; see its log and `encore doctor`, then run "
                "the same command again; with --engines 2 a process whose GPU is lost is replaced"
            ) from error
        logger.warning("shard %d is put back, its engine died: %s", shard.index, reason)

    def shard_failed(self, shard: Shard, error: Exception) -> None:
        """Record a shard that is given up."""
        logger.warning("shard %d failed: %s", shard.index, error)
        self.failures[shard.index] = f"{type(error).__name__}: {error}"

    @property
    def report(self) -> RunReport:
        """Return the result so far."""
        return RunReport(
            kind=type(self.job.manifest),
            outcomes=self.outcomes,
            failures=dict(sorted(self.failures.items())),
            seconds=time.monotonic() - self._started_at,
            early_stop=self.job.stop_rule.early_stop,
        )


def _try_once(progress: RunProgress, shards: Sequence[Shard], *, num_workers: int) -> list[Shard]:
    """Try each shard once; return those that are put back, or that another process works on.

    A single worker is this thread: libgomp keeps a team of threads for each thread that computes,
    and with more of them than cores they sleep between operations (measured: a fifth slower). No
    thread is left running after an error or an interrupt.
    """
    job, unfinished = progress.job, []
    calls: dict[Shard, Callable[[], ShardState]] = {
        shard: partial(work_on, job, shard, report_rows=partial(progress.add_rows, shard))
        for shard in shards
    }
    with ThreadPoolExecutor(num_workers, thread_name_prefix=job.manifest.DOING) as pool:
        try:
            for shard, call in calls.items() if num_workers == 1 else _in_threads(pool, calls):
                try:
                    outcome = call()
                except Exception as error:
                    traceback.clear_frames(error.__traceback__)  # they hold the shard's rows
                    if is_engine_dead(error):
                        progress.engine_died(shard, error)
                        unfinished.append(shard)
                        continue
                    if stops_the_run(error):
                        raise
                    progress.shard_failed(shard, error)
                    continue
                if outcome.action in ("busy", "closed"):
                    unfinished.append(shard)
                else:
                    progress.shard_finished(outcome)
        except BaseException:
            job.cancelled.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return unfinished


def _in_threads(
    pool: ThreadPoolExecutor, calls: Mapping[Shard, Callable[[], ShardState]]
) -> Iterator[tuple[Shard, Callable[[], ShardState]]]:
    """Yield each shard as its call ends in the pool, with a function that returns its result."""
    futures = {pool.submit(call): shard for shard, call in calls.items()}
    for future in as_completed(futures):
        yield futures[future], future.result
