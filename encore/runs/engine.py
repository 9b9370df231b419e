"""One engine: which shard it takes next, and the sign of life that it gives meanwhile."""

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
from encore.runs.shard_runner import NEVER_STOP, Job, RunReport, Tally, begin, work_on

_POLL_SECONDS = 1.0
#: Between two signs of life.
_SIGN_SECONDS = 2.0
#: A shard that is at work elsewhere is taken over after twice the longest time that a shard took
#: here, and never sooner than this.
_LEAST_PATIENCE_SECONDS, _PATIENCE = 20.0, 2.0
#: An engine that hangs ends itself after so many limits of silence, if its parent could not end it:
#: a Prefect worker that lost its server for half a minute cancels no run until it starts again.
_SELF_END = 1.5
_STDERR = 2


def work_as_engine(
    job: Job, spec: EngineSpec, *, silence_seconds: float, reporter: Reporter = SILENT
) -> RunReport:
    """Work through a run beside other engines, until every shard is done or failed for good.

    Args:
        job: The run; its stop rule is what the parent tells.
        spec: What the parent asks; the engine's own slice follows from it.
        silence_seconds: A peer that finished no request for so long does not count as at work.
        reporter: Told about finished rows and shards.

    Raises:
        InputError: This engine's code, judge, rules or pairs are not those of the run.
        Exception: An error that every shard would meet.
    """
    job, run_dir = replace(job, stop_rule=NEVER_STOP), job.run_dir
    if not _is_run(job, spec):  # where the parent looks
        run_dir = run_dir.parent / spec.run_key
    life = EngineHeartbeat(
        engine=spec.name,
        host=socket.gethostname(),
        devices=os.environ.get("CUDA_VISIBLE_DEVICES") or "cpu",
        state="starting",
    )
    try:
        _check_spec(job, spec)
        write_heartbeat(run_dir, life)
        tally, pending, num_workers = begin(job, reporter=reporter)
        life.state = "working"
        engine = _Engine(
            job=job,
            spec=spec,
            life=life,
            tally=tally,
            own={shard.index for shard in job.shards[spec.slot :: spec.num_engines]},
            open={shard.index: shard for shard in pending},
            silence_seconds=silence_seconds,
        )
        engine.work(num_workers)
        life.state = "ended"
    except Exception as error:
        life.state = "ended"
        life.error = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise
    finally:  # an engine that a signal stops has not ended: the parent replaces it
        faulthandler.cancel_dump_traceback_later()
        life.rows_by_open_shard = {}
        write_heartbeat(run_dir, life)
    return tally.report


def _is_run(job: Job, spec: EngineSpec) -> bool:
    return spec.run_key in (job.manifest.key, "")


def _check_spec(job: Job, spec: EngineSpec) -> None:
    here = f"{spec.label} on {socket.gethostname()}"
    if code_digest() != spec.code_digest:
        raise InputError(
            f"{here}: its code of encore ({code_digest()}) is not that of the run's parent "
            f"({spec.code_digest}); bring both checkouts to one commit and start the run again"
        )
    if _is_run(job, spec):
        return
    differing = []
    with contextlib.suppress(EncoreError):
        run = read_manifest(job.run_dir.parent / spec.run_key, type(job.manifest))
        for name, ours, theirs in differences(job.manifest.identity, run.identity):
            differing.append(f"{name} is {ours} here and {theirs} in the run")
    raise InputError(
        f"{here}: it would make run {job.manifest.key} instead of {spec.run_key}: "
        f"{'; '.join(differing[:3]) or 'the run is not there'}; engines need the parent's judge, "
        "rules and pairs"
    )


@dataclass(slots=True, kw_only=True)
class _Engine:
    """One engine at work. Its worker threads share the lock."""

    job: Job
    spec: EngineSpec
    life: EngineHeartbeat
    tally: Tally
    own: set[int]
    open: dict[int, Shard]
    silence_seconds: float
    lock: threading.RLock = field(default_factory=threading.RLock)
    watch: SilenceTimer = field(default_factory=SilenceTimer)
    #: When a shard was first seen at work elsewhere; when its lock was last tried in vain.
    seen_at_work: dict[int, float] = field(default_factory=dict)
    tried: dict[int, float] = field(default_factory=dict)
    longest_seconds: float = 0.0
    last_sign: float = 0.0
    guarded_beat: int | None = None
    #: What the parent told last of the run's stop rule, and when that was new.
    reach: ShardLimit = field(
        default_factory=partial(ShardLimit, num_open_shards=0, is_final=False)
    )
    heard: float = field(default_factory=time.monotonic)

    def work(self, num_workers: int) -> None:
        """Until nothing is left that this engine may take; a single worker is this thread."""
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
        while (taken := self._take()) is not None:
            self._compute(*taken)

    def _take(self) -> tuple[Shard, bool] | None:
        """The next shard, and whether it is taken over; waits while there may be one."""
        while not self.job.cancelled.is_set():
            with self.lock:
                at_work = self._look()
                self._hear_parent()
                free = [s for i, s in self.open.items() if i not in self.life.rows_by_open_shard]
                mine = [shard for shard in free if shard.index < self.reach.num_open_shards]
                if not mine and (self.reach.is_final or self._is_orphaned()):
                    return None
                taken = self._choose(mine, at_work)
                if taken is not None:
                    self.life.rows_by_open_shard[taken[0].index] = 0
                    self._sign()
                    return taken
                if time.monotonic() - self.last_sign > _SIGN_SECONDS:
                    self._sign()
            self.job.cancelled.wait(_POLL_SECONDS)
        return None

    def _look(self) -> Counter[int]:
        """Forget shards that are settled; how many live peers work on each of the others."""
        self._forget_finished()
        signs = read_heartbeats(self.job.run_dir)
        signs.pop(self.life.engine, None)
        num_failed = Counter(
            index for life in signs.values() for index in life.error_by_failed_shard
        )
        for index in set(self.open).difference(self.life.rows_by_open_shard):
            if (
                index in self.life.error_by_failed_shard
                or num_failed[index] >= MAX_ENGINES_PER_SHARD
            ):
                del self.open[index]
        return Counter(
            index
            for life in signs.values()
            if self.watch.seconds_silent(life) <= self.silence_seconds
            for index in life.rows_by_open_shard
        )

    def _hear_parent(self) -> None:
        reach = read_shard_limit(self.job.run_dir)
        if reach is not None and reach != self.reach:
            self.reach, self.heard = reach, time.monotonic()

    def _is_orphaned(self) -> bool:
        """Whether the parent has been silent for too long: nobody would open another shard."""
        return time.monotonic() - self.heard > self.silence_seconds

    def _choose(self, mine: Sequence[Shard], at_work: Counter[int]) -> tuple[Shard, bool] | None:
        now, slot = time.monotonic(), self.spec.slot
        patience = max(_LEAST_PATIENCE_SECONDS, _PATIENCE * self.longest_seconds)
        patience += slot * _SIGN_SECONDS  # idle engines do not all take over at once
        late = {i for i, since in self.seen_at_work.items() if now - since > patience}
        free = [
            shard
            for shard in mine
            if not at_work[shard.index] and now - self.tried.get(shard.index, 0.0) > _POLL_SECONDS
        ]
        own = [shard for shard in free if shard.index in self.own]
        if free:  # of the others' from the end, and not the one that the next idle engine takes
            shard = own[0] if own else free[-1 - slot % len(free)]
            return shard, shard.index in late
        for shard in mine:
            self.seen_at_work.setdefault(shard.index, now)
            if shard.index in late and at_work[shard.index] <= 1:
                return shard, True
        return None

    def _compute(self, shard: Shard, takes_over: bool) -> None:
        began = time.monotonic()
        tell = partial(self._tell, shard)
        try:
            outcome = work_on(self.job, shard, report_rows=tell, takes_over=takes_over)
        except Exception as error:
            with self.lock:
                self._forget_finished()
                if shard.index not in self.open:  # another engine was faster
                    return
                if stops_the_run(error):
                    raise
                if not self.tally.failed(shard, error):
                    self.life.error_by_failed_shard[shard.index] = self.tally.failures[shard.index]
        else:
            self._note(outcome, seconds=time.monotonic() - began)
        finally:
            with self.lock:
                del self.life.rows_by_open_shard[shard.index]
                self._sign()

    def _note(self, outcome: ShardState, *, seconds: float) -> None:
        with self.lock:
            self.tried[outcome.index] = time.monotonic()
            if outcome.action == "busy":
                self.seen_at_work.setdefault(outcome.index, time.monotonic())
                return
            self.open.pop(outcome.index, None)
            self.tally.finished(outcome)
            if outcome.action != "reused":
                self.longest_seconds = max(self.longest_seconds, seconds)
                self.life.counts_by_finished_shard[outcome.index] = dict(outcome.counts)
                self.life.num_finished_rows += outcome.num_rows
                self.life.num_nulls += int(outcome.footer.get("num_nulls", 0))

    def _tell(self, shard: Shard, num_rows: int) -> None:
        """Count finished requests; now and then say so, and look whether others were faster."""
        self.tally.tell(shard, num_rows)
        with self.lock:
            self.life.num_finished_requests += max(
                0, num_rows - self.life.rows_by_open_shard[shard.index]
            )
            self.life.rows_by_open_shard[shard.index] = num_rows
            if time.monotonic() - self.last_sign > _SIGN_SECONDS:
                self._sign()
                self._forget_finished()
                if not self.open:
                    self.job.cancelled.set()

    def _forget_finished(self) -> None:
        for state in finished_shards(self.job.run_dir, self.job.manifest, self.open.values()):
            del self.open[state.index]

    def _sign(self) -> None:
        self.last_sign = time.monotonic()
        write_heartbeat(self.job.run_dir, self.life)
        self._guard()

    def _guard(self) -> None:
        """End this process if it hangs in a shard, even in C code that lets no other thread run."""
        beat = self.life.num_finished_requests if self.life.rows_by_open_shard else None
        if beat == self.guarded_beat:
            return
        self.guarded_beat = beat
        if beat is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            seconds = _SELF_END * self.silence_seconds + 2 * _SIGN_SECONDS
            faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
