"""One engine of several: it chooses the shards that it computes, and writes its heartbeat.

An engine takes its own slice of the shards first. Then it takes open shards that no engine has
begun, then shards that failed on one other engine. Last it takes over late shards: those that are
at work elsewhere for much longer than its own shards took.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from encore.core.errors import EncoreError, InputError, is_engine_dead, stops_the_run
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import code_digest
from encore.runs.engine_messages import (
    ENGINE_COST,
    MAX_ENGINES_PER_SHARD,
    EngineHeartbeat,
    EngineSpec,
    ShardLimit,
    SilenceTimer,
    read_heartbeats,
    read_shard_limit,
    write_heartbeat,
)
from encore.runs.run_files import (
    Shard,
    ShardState,
    ShardTable,
    differences,
    newly_finished_shards,
    read_manifest,
)
from encore.runs.shard_runner import (
    NEVER_STOP,
    Compute,
    Job,
    ReportRows,
    RunProgress,
    RunReport,
    begin,
    work_on,
)

_POLL_SECONDS = 1.0
_HEARTBEAT_SECONDS = 2.0
#: A shard at work elsewhere is late after twice the longest time that a shard took here, and never
#: sooner than after these seconds.
_MIN_LATE_SECONDS, _LATE_FACTOR = 20.0, 2.0
#: An engine that hangs ends itself after this many times the limit of silence. Usually the
#: supervisor is faster, but a Prefect worker that lost its server cancels no run.
_SELF_END_FACTOR = 1.5
_STDERR = 2


def work_as_engine(
    job: Job, spec: EngineSpec, *, silence_seconds: float, reporter: Reporter = SILENT
) -> RunReport:
    """Compute shards of a run beside other engines until each is done or failed for good.

    Args:
        job: The run. Its stop rule is ignored: the supervisor decides how far engines go.
        spec: This engine's part of the run.
        silence_seconds: A peer without progress for this long does not count as at work.
        reporter: Receives finished rows and shards.

    Raises:
        InputError: This engine's code, judge, rules or pairs are not those of the run.
        Exception: An error that every shard would meet.
    """
    run_dir = job.run_dir
    job = replace(job, stop_rule=NEVER_STOP, compute=_signed_by(spec.name, job.compute))
    is_same_run = spec.run_key in (job.manifest.key, "")
    if not is_same_run:  # the supervisor reads the heartbeats of its own run
        run_dir = run_dir.parent / spec.run_key
    heartbeat = EngineHeartbeat(
        engine=spec.name,
        host=socket.gethostname(),
        devices=os.environ.get("CUDA_VISIBLE_DEVICES") or "cpu",
        state="starting",
    )
    try:
        _check_spec(job, spec, is_same_run=is_same_run)
        write_heartbeat(run_dir, heartbeat)
        progress, pending, num_workers = begin(job, reporter=reporter)
        heartbeat.state = "working"
        engine = _Engine(
            job=job,
            spec=spec,
            heartbeat=heartbeat,
            progress=progress,
            slice_indices=deque(shard.index for shard in job.shards[spec.slot :: spec.num_engines]),
            open_shards={shard.index: shard for shard in pending},
            silence_seconds=silence_seconds,
        )
        engine.work(num_workers)
        heartbeat.state = "ended"
    except Exception as error:
        heartbeat.state = "lost" if is_engine_dead(error) else "ended"
        heartbeat.error = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise
    finally:  # a signal leaves the state "working": the supervisor replaces the engine
        faulthandler.cancel_dump_traceback_later()
        heartbeat.rows_by_open_shard = {}
        write_heartbeat(run_dir, heartbeat)
    return progress.report


def _signed_by(engine: str, compute: Compute) -> Compute:
    """Return the function with the engine's name in every shard's cost.

    A supervisor that adopts engines reads from it which shards these have finished.
    """

    def compute_and_sign(shard: Shard, report_rows: ReportRows) -> ShardTable:
        content = compute(shard, report_rows)
        return replace(content, cost={**content.cost, ENGINE_COST: engine})

    return compute_and_sign


def _check_spec(job: Job, spec: EngineSpec, *, is_same_run: bool) -> None:
    """Refuse a spec whose code or run is not this engine's.

    Raises:
        InputError: The engine's name, both values, the next step.
    """
    engine = f"{spec.label} on {socket.gethostname()}"
    if code_digest() != spec.code_digest:
        raise InputError(
            f"{engine}: its code of encore ({code_digest()}) is not that of the run's parent "
            f"({spec.code_digest}); bring both checkouts to one commit and start the run again"
        )
    if is_same_run:
        return
    differing = []
    with contextlib.suppress(EncoreError):
        manifest = read_manifest(job.run_dir.parent / spec.run_key, type(job.manifest))
        for name, value_here, value_there in differences(job.manifest.identity, manifest.identity):
            differing.append(f"{name} is {value_here} here and {value_there} in the run")
    raise InputError(
        f"{engine}: it would make run {job.manifest.key} instead of {spec.run_key}: "
        f"{'; '.join(differing[:3]) or 'the run is not there'}; engines need the parent's judge, "
        "rules and pairs"
    )


@dataclass(slots=True, kw_only=True)
class _Engine:
    """One engine at work. Its worker threads share the lock.

    Attributes:
        slice_indices: Shards that this engine takes before all others, in the plan's order.
        open_shards: Shards that are neither done nor failed for good, by index in ascending order.
        first_seen_at_work: Time at which a shard was first seen at work elsewhere, by index.
        last_refused: Time at which another process last held the lock of a shard, by index.
        longest_seconds: Time of the slowest shard computed here.
        guarded_progress: Finished requests and time of waits when the self-end timer was last
            restarted; None while the engine is idle.
        limit: Latest limit of the supervisor, and ``limit_seen_at`` the time it was new.
    """

    job: Job
    spec: EngineSpec
    heartbeat: EngineHeartbeat
    progress: RunProgress
    slice_indices: deque[int]
    open_shards: dict[int, Shard]
    silence_seconds: float
    lock: threading.RLock = field(default_factory=threading.RLock)
    silence: SilenceTimer = field(default_factory=SilenceTimer)
    first_seen_at_work: dict[int, float] = field(default_factory=dict)
    last_refused: dict[int, float] = field(default_factory=dict)
    longest_seconds: float = 0.0
    last_heartbeat: float = 0.0
    guarded_progress: tuple[int, float] | None = None
    limit: ShardLimit = field(
        default_factory=partial(ShardLimit, num_open_shards=0, is_final=False)
    )
    limit_seen_at: float = field(default_factory=time.monotonic)

    def work(self, num_workers: int) -> None:
        """Compute shards until this engine may take none. A single worker is this thread."""
        if num_workers == 1:
            self._work()
            return
        with ThreadPoolExecutor(num_workers, thread_name_prefix=self.job.manifest.DOING) as pool:
            workers = [pool.submit(self._work) for _ in range(num_workers)]
            try:
                for worker in as_completed(workers):
                    worker.result()
            except BaseException:
                self.job.cancelled.set()
                raise

    def _work(self) -> None:
        while (shard_and_is_late := self._next_shard()) is not None:
            self._compute(*shard_and_is_late)

    def _next_shard(self) -> tuple[Shard, bool] | None:
        """Return the next shard and True if it is taken over. Wait while one may become free."""
        while not self.job.cancelled.is_set():
            with self.lock:
                num_peers_by_shard = self._read_peers()
                limit = read_shard_limit(self.job.run_dir)
                if limit is not None and limit != self.limit:
                    self.limit, self.limit_seen_at = limit, time.monotonic()
                # A supervisor that was silent for so long does not raise the limit again.
                is_orphaned = time.monotonic() - self.limit_seen_at > self.silence_seconds
                at_work_here = self.heartbeat.rows_by_open_shard
                is_over = self.limit.is_final or is_orphaned
                if is_over and next(self._allowed(), None) is None:
                    return None
                choice = self._choose(num_peers_by_shard)
                if choice is not None:
                    at_work_here[choice[0].index] = 0
                    self._write_heartbeat()
                    return choice
                if time.monotonic() - self.last_heartbeat > _HEARTBEAT_SECONDS:
                    self._write_heartbeat()
            self.job.cancelled.wait(_POLL_SECONDS)
        return None

    def _read_peers(self) -> Counter[int]:
        """Drop settled shards; return the number of live peers at work on each shard."""
        self._drop_finished()
        peers = read_heartbeats(self.job.run_dir)
        peers.pop(self.heartbeat.engine, None)
        num_failed = Counter(i for peer in peers.values() for i in peer.failed_shards)
        failed = {i for i, number in num_failed.items() if number >= MAX_ENGINES_PER_SHARD}
        failed.update(self.heartbeat.failed_shards)
        for index in failed.difference(self.heartbeat.rows_by_open_shard):
            self.open_shards.pop(index, None)
        return Counter(
            index
            for peer in peers.values()
            if self.silence.seconds_silent(peer) <= self.silence_seconds
            for index in peer.rows_by_open_shard
        )

    def _allowed(self, *, last_first: bool = False) -> Iterator[Shard]:
        """Yield the open shards below the limit that are not at work here."""
        shards = self.open_shards.values()
        for shard in reversed(shards) if last_first else shards:
            if shard.index >= self.limit.num_open_shards:
                if last_first:
                    continue
                return
            if shard.index not in self.heartbeat.rows_by_open_shard:
                yield shard

    def _allowed_in_slice(self) -> Iterator[Shard]:
        """Yield those of this engine's slice. The first shards are forgotten when they are done."""
        while self.slice_indices and self.slice_indices[0] not in self.open_shards:
            self.slice_indices.popleft()
        for index in self.slice_indices:
            if index >= self.limit.num_open_shards:
                return
            if index in self.open_shards and index not in self.heartbeat.rows_by_open_shard:
                yield self.open_shards[index]

    def _choose(self, num_peers_by_shard: Counter[int]) -> tuple[Shard, bool] | None:
        """Return the next shard and True if it is taken over; None to wait.

        A free shard is taken without a look at all others: their number may be large.
        """
        now, slot = time.monotonic(), self.spec.slot
        late_seconds = max(_MIN_LATE_SECONDS, _LATE_FACTOR * self.longest_seconds)
        late_seconds += slot * _HEARTBEAT_SECONDS  # idle engines do not all take over at once

        def is_late(shard: Shard) -> bool:
            return now - self.first_seen_at_work.get(shard.index, now) > late_seconds

        def is_free(shard: Shard) -> bool:
            last_refused = self.last_refused.get(shard.index, 0.0)
            return not num_peers_by_shard[shard.index] and now - last_refused > _POLL_SECONDS

        for shard in filter(is_free, self._allowed_in_slice()):
            return shard, is_late(shard)
        # Of other slices the last ones, and not the one that the next idle engine takes.
        last_free = list(islice(filter(is_free, self._allowed(last_first=True)), slot + 1))
        if last_free:
            shard = last_free[slot % len(last_free)]
            return shard, is_late(shard)
        for shard in self._allowed():
            self.first_seen_at_work.setdefault(shard.index, now)
            if is_late(shard) and num_peers_by_shard[shard.index] <= 1:
                return shard, True
        return None

    def _compute(self, shard: Shard, takes_over: bool) -> None:
        """Compute a shard and record its outcome or its error."""
        began = time.monotonic()
        report_rows = partial(self._report_rows, shard)
        try:
            outcome = work_on(self.job, shard, report_rows=report_rows, takes_over=takes_over)
        except Exception as error:
            with self.lock:
                self._drop_finished()
                if shard.index not in self.open_shards:  # another engine was faster
                    return
                if is_engine_dead(error):  # another engine takes the shard, if it was the first
                    self.heartbeat.failed_shards.append(shard.index)
                    raise
                if stops_the_run(error):
                    raise
                if self.job.cancelled.is_set():  # another thread's error ends this engine
                    return
                if not self.progress.shard_failed(shard, error):
                    self.heartbeat.failed_shards.append(shard.index)
        else:
            self._record(outcome, seconds=time.monotonic() - began)
        finally:
            with self.lock:
                del self.heartbeat.rows_by_open_shard[shard.index]
                self._write_heartbeat()

    def _record(self, outcome: ShardState, *, seconds: float) -> None:
        """Record a shard that is done, or that another process works on."""
        index, heartbeat = outcome.index, self.heartbeat
        with self.lock:
            if outcome.action == "busy":
                self.last_refused[index] = time.monotonic()
                self.first_seen_at_work.setdefault(index, time.monotonic())
                return
            self.open_shards.pop(index, None)
            self.progress.shard_finished(outcome)
            if outcome.action != "reused":
                self.longest_seconds = max(self.longest_seconds, seconds)
                heartbeat.num_finished_shards += 1
                heartbeat.num_finished_rows += outcome.num_rows
                heartbeat.num_nulls += int(outcome.footer.get("num_nulls", 0))

    def _report_rows(self, shard: Shard, num_rows: int) -> None:
        """Count finished requests. Cancel the shards at work if other engines finished them."""
        self.progress.add_rows(shard, num_rows)
        with self.lock:
            rows = self.heartbeat.rows_by_open_shard
            self.heartbeat.num_finished_requests += max(0, num_rows - rows[shard.index])
            rows[shard.index] = num_rows
            if time.monotonic() - self.last_heartbeat > _HEARTBEAT_SECONDS:
                self._write_heartbeat()
                self._drop_finished()
                if not self.open_shards:
                    self.job.cancelled.set()

    def _drop_finished(self) -> None:
        """Forget the open shards that any engine has finished."""
        job = self.job
        for state in newly_finished_shards(
            job.run_dir, job.manifest, self.open_shards, job.listing
        ):
            del self.open_shards[state.index]

    def _write_heartbeat(self) -> None:
        """Write the heartbeat, and restart the timer that ends this process if it hangs.

        The timer works even if C code lets no other thread run.
        """
        self.last_heartbeat, heartbeat = time.monotonic(), self.heartbeat
        heartbeat.wait_seconds = self.job.wait_seconds()
        write_heartbeat(self.job.run_dir, heartbeat)
        is_busy = bool(heartbeat.rows_by_open_shard)
        progress = (heartbeat.num_finished_requests, heartbeat.wait_seconds) if is_busy else None
        if progress == self.guarded_progress:
            return
        self.guarded_progress = progress
        if progress is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            seconds = _SELF_END_FACTOR * self.silence_seconds + 2 * _HEARTBEAT_SECONDS
            faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
