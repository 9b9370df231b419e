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
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from encore.core.errors import EncoreError, InputError, stops_the_run
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import code_digest
from encore.runs.engine_messages import (
    MAX_ENGINES_PER_SHARD,
    EngineHeartbeat,
    EngineSpec,
    ShardLimit,
    SilenceTimer,
    read_heartbeats,
    read_shard_limit,
    write_heartbeat,
)
from encore.runs.run_files import Shard, ShardState, differences, finished_shards, read_manifest
from encore.runs.shard_runner import NEVER_STOP, Job, RunProgress, RunReport, begin, work_on

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
    job, run_dir = replace(job, stop_rule=NEVER_STOP), job.run_dir
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
            slice_indices={shard.index for shard in job.shards[spec.slot :: spec.num_engines]},
            open_shards={shard.index: shard for shard in pending},
            silence_seconds=silence_seconds,
        )
        engine.work(num_workers)
        heartbeat.state = "ended"
    except Exception as error:
        heartbeat.state = "ended"
        heartbeat.error = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise
    finally:  # a signal leaves the state "working": the supervisor replaces the engine
        faulthandler.cancel_dump_traceback_later()
        heartbeat.rows_by_open_shard = {}
        write_heartbeat(run_dir, heartbeat)
    return progress.report


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
        slice_indices: Shards that this engine takes before all others.
        open_shards: Shards that are neither done nor failed for good, by index.
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
    slice_indices: set[int]
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
                for worker in workers:
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
                free = [s for index, s in self.open_shards.items() if index not in at_work_here]
                allowed = [shard for shard in free if shard.index < self.limit.num_open_shards]
                if not allowed and (self.limit.is_final or is_orphaned):
                    return None
                choice = self._choose(allowed, num_peers_by_shard)
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
        num_failed = Counter(i for peer in peers.values() for i in peer.error_by_failed_shard)
        for index in set(self.open_shards).difference(self.heartbeat.rows_by_open_shard):
            failed_here = index in self.heartbeat.error_by_failed_shard
            if failed_here or num_failed[index] >= MAX_ENGINES_PER_SHARD:
                del self.open_shards[index]
        return Counter(
            index
            for peer in peers.values()
            if self.silence.seconds_silent(peer) <= self.silence_seconds
            for index in peer.rows_by_open_shard
        )

    def _choose(
        self, allowed: Sequence[Shard], num_peers_by_shard: Counter[int]
    ) -> tuple[Shard, bool] | None:
        """Return the next of the allowed shards and True if it is taken over; None to wait."""
        now, slot = time.monotonic(), self.spec.slot
        late_seconds = max(_MIN_LATE_SECONDS, _LATE_FACTOR * self.longest_seconds)
        late_seconds += slot * _HEARTBEAT_SECONDS  # idle engines do not all take over at once
        late = {i for i, since in self.first_seen_at_work.items() if now - since > late_seconds}
        free = [
            shard
            for shard in allowed
            if not num_peers_by_shard[shard.index]
            and now - self.last_refused.get(shard.index, 0.0) > _POLL_SECONDS
        ]
        in_slice = [shard for shard in free if shard.index in self.slice_indices]
        if free:
            # Of other slices the last ones, and not the one that the next idle engine takes.
            shard = in_slice[0] if in_slice else free[-1 - slot % len(free)]
            return shard, shard.index in late
        for shard in allowed:
            self.first_seen_at_work.setdefault(shard.index, now)
            if shard.index in late and num_peers_by_shard[shard.index] <= 1:
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
                if stops_the_run(error):
                    raise
                if not self.progress.shard_failed(shard, error):
                    message = self.progress.failures[shard.index]
                    self.heartbeat.error_by_failed_shard[shard.index] = message
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
            self.last_refused[index] = time.monotonic()
            if outcome.action == "busy":
                self.first_seen_at_work.setdefault(index, time.monotonic())
                return
            self.open_shards.pop(index, None)
            self.progress.shard_finished(outcome)
            if outcome.action != "reused":
                self.longest_seconds = max(self.longest_seconds, seconds)
                heartbeat.counts_by_finished_shard[index] = dict(outcome.counts)
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
        shards = self.open_shards.values()
        for state in finished_shards(self.job.run_dir, self.job.manifest, shards):
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
