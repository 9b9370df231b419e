"""The supervisor of several engines: starts them, replaces lost ones, stops them at the end."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple, Protocol

from encore.core.errors import EncoreError, InputError
from encore.core.number_text import NONE, amount
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import code_digest
from encore.runs.engine_messages import (
    ENGINE_COST,
    MAX_ENGINES_PER_SHARD,
    EngineHeartbeat,
    EngineSpec,
    ShardLimit,
    SilenceTimer,
    heartbeat_path,
    read_heartbeats,
    write_shard_limit,
)
from encore.runs.run_files import (
    RunManifest,
    Shard,
    ShardTable,
    newly_finished_shards,
    read_manifest,
    record_checked_shards,
    recorded_failure,
)
from encore.runs.shard_runner import Job, ReportRows, RunProgress, RunReport, begin

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
#: A judge of 70B parameters takes minutes to load.
_START_SECONDS = 3600.0
#: Time for engines to end by themselves when every shard is settled.
_END_SECONDS = 10.0
#: Starts of one engine without a single finished request before it is given up.
_MAX_STARTS = 3


class EngineState(NamedTuple):
    """The state of an engine's process or flow run; ``message`` says why it ended.

    ``ended``: by itself; another start would end the same way. ``lost``: killed, crashed or gone.
    """

    state: Literal["waiting", "running", "ended", "lost"]
    message: str = ""


class Launcher(Protocol):
    """Starts engines somewhere. No call waits for an engine or raises because of one."""

    def adopt(self, run_key: str) -> Sequence[EngineSpec]:
        """Return the engines of this run that are at work, of an earlier supervisor too."""

    def start(self, spec: EngineSpec) -> None:
        """Begin to start an engine."""

    def state(self, name: str) -> EngineState:
        """Return the current state of an engine."""

    def stop(self, name: str, *, kill: bool = False) -> None:
        """Begin to end an engine, wherever it is. ``kill`` ends one that hangs."""

    def close(self) -> None:
        """Wait until the stopped engines have ended, as far as that can be known."""


#: A table for people: one row per engine, values by column.
EngineRows = Sequence[Mapping[str, object]]


class ShowEngines(Protocol):
    """Shows the engines of a run to people."""

    def __call__(self, rows: EngineRows, /, *, now: bool = False) -> None:
        """Show the rows if it is time, or ``now``."""


def show_no_engines(_rows: EngineRows, /, *, now: bool = False) -> None:
    """Show nothing, as a command does."""


@dataclass(slots=True, kw_only=True)
class _Slot:
    """One of the run's engine positions, and the engine that holds it.

    Attributes:
        spec: Spec of the current engine.
        num_starts: Starts since an engine of this slot last finished a request.
        is_over: True if no engine works in this slot any more.
        error: Why the slot was given up; empty if it was not.
    """

    spec: EngineSpec
    num_starts: int = 1
    is_over: bool = False
    error: str = ""


def job_of_first_engine(
    launcher: Launcher,
    kind: type[RunManifest],
    run_dirs: Callable[[], Iterable[Path]],
    *,
    num_engines: int,
) -> Job:
    """Start a first engine, wait until it has created its run, and return the run's job.

    The engine alone opens the model that the run's key depends on.

    Args:
        launcher: Starts engines. `supervise` later adopts the first one from it.
        kind: Class of the run's manifest.
        run_dirs: Returns the folders that the run may have.
        num_engines: Number of engines that the run will have.

    Raises:
        EncoreError: The engine ended before it created its run.
    """

    def compute(_shard: Shard, _report_rows: ReportRows) -> ShardTable:
        raise NotImplementedError("engines compute")

    spec = _new_spec(0, num_engines=num_engines, run_key="")
    launcher.start(spec)
    try:
        while True:
            for run_dir in run_dirs():
                has_run = heartbeat_path(run_dir, spec.name).is_file()
                if has_run and (run_dir / kind.FILE).is_file():
                    manifest = read_manifest(run_dir, kind)
                    return Job(run_dir=run_dir, manifest=manifest, compute=compute)
            process = launcher.state(spec.name)
            if process.state in ("ended", "lost"):
                raise EncoreError(f"{spec.label} could not begin: {process.message}")
            time.sleep(_POLL_SECONDS)
    except BaseException:
        launcher.stop(spec.name)
        launcher.close()
        raise


def _new_spec(slot: int, *, num_engines: int, run_key: str) -> EngineSpec:
    return EngineSpec(
        name=f"{slot}-{secrets.token_hex(4)}",
        slot=slot,
        num_engines=num_engines,
        run_key=run_key,
        code_digest=code_digest(),
    )


def supervise(
    job: Job,
    launcher: Launcher,
    *,
    num_engines: int,
    silence_seconds: float,
    reporter: Reporter = SILENT,
    show: ShowEngines = show_no_engines,
) -> RunReport:
    """Have engines compute the open shards of a run until each is done or failed for good.

    Engines take only the shards that the run's stop rule allows, and keep their model loaded while
    they wait for more. An engine that is killed, gone or silent for too long is replaced. One that
    cannot start is named, and the others go on. All engines are stopped at the end, also after an
    error.

    Args:
        job: The run. This process computes nothing.
        launcher: Starts, watches and stops the engines.
        num_engines: Number of engines; never more than there are open shards.
        silence_seconds: An engine that finishes no request for this long is replaced.
        reporter: Receives finished rows and shards.
        show: Receives one row per engine now and then.

    Raises:
        InputError: The job is one slice of a run (``--slice``).
        EncoreError: No engine could work.
    """
    if job.slice is not None:
        raise InputError(
            "--slice divides the shards by hand, --engines among engines: give one of them"
        )
    job = replace(job, start=lambda: 1)
    progress, pending, _ = begin(job, reporter=reporter)
    supervisor = _Supervisor(
        job=job,
        launcher=launcher,
        progress=progress,
        open_shards={shard.index: shard for shard in pending},
        num_engines=min(num_engines, max(1, len(pending))),
        silence_seconds=silence_seconds,
        show=show,
    )
    try:
        supervisor.work()
    finally:
        supervisor.stop_engines()
        launcher.close()
    record_checked_shards(job.run_dir, job.manifest, progress.outcomes)
    return progress.report


@dataclass(slots=True, kw_only=True)
class _Supervisor:
    """Watches the engines of one run.

    Attributes:
        open_shards: Shards that are not done, by index.
        heartbeats: Heartbeats as last read, by engine name.
        first_requests: Time and number of requests when an engine first had finished any, by name.
        shard_seconds: Duration of each shard that was finished meanwhile, by engine name.
        limit: The limit that engines were last given.
    """

    job: Job
    launcher: Launcher
    progress: RunProgress
    open_shards: dict[int, Shard]
    num_engines: int
    silence_seconds: float
    show: ShowEngines
    slots: list[_Slot] = field(default_factory=list)
    heartbeats: dict[str, EngineHeartbeat] = field(default_factory=dict)
    silence: SilenceTimer = field(default_factory=SilenceTimer)
    first_requests: dict[str, tuple[float, int]] = field(default_factory=dict)
    shard_seconds: dict[str, list[float]] = field(default_factory=dict)
    limit: ShardLimit | None = None

    def work(self) -> None:
        """Watch until every shard that the stop rule allows is settled, or no engine is left."""
        self._write_limit()
        self._fill_slots()
        while True:
            self.heartbeats = read_heartbeats(self.job.run_dir)
            self._take_finished()
            is_over = self._is_settled() or all(slot.is_over for slot in self.slots)
            self._write_limit(is_over=is_over)
            if is_over:
                break
            for heartbeat in self.heartbeats.values():
                for index, num_rows in heartbeat.rows_by_open_shard.items():
                    if index in self.open_shards:
                        self.progress.add_rows(self.open_shards[index], num_rows)
            for slot in self.slots:
                if not slot.is_over:
                    self._check_engine(slot)
            self.show(self._table())
            time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + _END_SECONDS
        while self._engines_in("running") and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.show(self._table(), now=True)
        self._report_failures()

    def _take_finished(self) -> None:
        """Report the shards that engines have finished since the last call."""
        job = self.job
        if not any(beat.rows_by_open_shard for beat in self.heartbeats.values()):
            job.listing.renew(now=True)  # nobody is at work: this may be the end
        for state in newly_finished_shards(
            job.run_dir, job.manifest, self.open_shards, job.listing
        ):
            del self.open_shards[state.index]
            self.progress.shard_finished(replace(state, action=job.manifest.DONE))
            if (seconds := state.footer.get("engine_seconds")) is not None:
                engine = state.footer.get(ENGINE_COST, "")
                self.shard_seconds.setdefault(engine, []).append(seconds)

    def stop_engines(self) -> None:
        """Stop every engine that has not ended by itself."""
        for name in self._engines_in("waiting", "running"):
            self.launcher.stop(name)

    def _write_limit(self, *, is_over: bool = False) -> None:
        """Write how far engines may go, again and again while that may change."""
        num_shards = len(self.job.manifest.shards)
        num_open_shards = min(self.job.stop_rule.num_open_shards, num_shards)
        is_final = is_over or num_open_shards >= num_shards
        if is_final and self.limit is not None and self.limit.is_final:
            return
        version = 1 + (self.limit.version if self.limit else 0)
        limit = ShardLimit(num_open_shards=num_open_shards, is_final=is_final, version=version)
        if write_shard_limit(self.job.run_dir, limit):
            self.limit = limit

    def _is_settled(self) -> bool:
        """Return True if every shard that the stop rule allows is done or failed for good."""
        beats = self.heartbeats.values()
        num_failed = Counter(index for beat in beats for index in beat.failed_shards)
        live = [self._heartbeat(slot) for slot in self.slots if not slot.is_over]
        failed_by_live = [frozenset(beat.failed_shards) for beat in live]
        return all(
            num_failed[shard.index] >= MAX_ENGINES_PER_SHARD
            or (live and all(shard.index in failed for failed in failed_by_live))
            for shard in self._allowed_shards()
        )

    def _allowed_shards(self) -> list[Shard]:
        """Return the open shards that the stop rule allows."""
        return self.job.open_shards(self.open_shards.values())

    def _engines_in(self, *states: str) -> list[str]:
        """Return the engines in one of these states whose heartbeat is not ``ended``."""
        self.heartbeats = read_heartbeats(self.job.run_dir)
        return [
            slot.spec.name
            for slot in self.slots
            if not slot.is_over
            and self._heartbeat(slot).state != "ended"
            and self.launcher.state(slot.spec.name).state in states
        ]

    def _fill_slots(self) -> None:
        """Adopt the engines at work, and start one in each free slot."""
        key, run_dir = self.job.manifest.key, self.job.run_dir
        adopted = {spec.slot: spec for spec in self.launcher.adopt(key)}
        names = {spec.name for spec in adopted.values()}
        heartbeats = read_heartbeats(run_dir)
        for name in heartbeats.keys() - names:  # of engines that ended under another supervisor
            heartbeat_path(run_dir, name).unlink(missing_ok=True)
        self.progress.outcomes = [
            replace(outcome, action=self.job.manifest.DONE)
            if outcome.footer.get(ENGINE_COST) in names
            else outcome
            for outcome in self.progress.outcomes
        ]
        for position in range(self.num_engines if self._allowed_shards() else 0):
            spec = adopted.pop(position, None)
            slot = _Slot(spec=spec or self._new_spec(position))
            self.slots.append(slot)
            if spec is None:
                self.launcher.start(slot.spec)
        self.slots += [_Slot(spec=spec) for spec in adopted.values()]

    def _new_spec(self, slot: int) -> EngineSpec:
        return _new_spec(slot, num_engines=self.num_engines, run_key=self.job.manifest.key)

    def _check_engine(self, slot: _Slot) -> None:
        """Replace a slot's engine if it is lost or silent; close the slot if it has ended."""
        process = self.launcher.state(slot.spec.name)
        if process.state in (
            "ended",
            "lost",
        ):  # its last heartbeat may be newer than those read before
            self.heartbeats = read_heartbeats(self.job.run_dir)
        heartbeat = self._heartbeat(slot)
        if heartbeat.num_finished_requests:
            slot.num_starts = 0
        if heartbeat.state == "ended":
            slot.is_over, slot.error = True, heartbeat.error
        elif heartbeat.state == "lost":
            self._replace(slot, heartbeat.error)
        elif process.state == "ended":
            slot.is_over, slot.error = True, process.message or "it ended without a message"
        elif process.state == "lost":
            self._replace(slot, process.message or "it was lost")
        elif process.state == "running":
            is_working = heartbeat.state == "working"
            is_idle = is_working and not heartbeat.rows_by_open_shard  # waits for late shards
            limit = self.silence_seconds if is_working else _START_SECONDS
            if not is_idle and self.silence.seconds_silent(heartbeat) > limit:
                self._replace(slot, f"it finished no request for {limit:g} s")
        if slot.error:
            logger.warning("%s is given up: %s", self._label(slot), slot.error)

    def _heartbeat(self, slot: _Slot) -> EngineHeartbeat:
        """Return the last heartbeat of a slot's engine, or an empty one before its first."""
        name = slot.spec.name
        return self.heartbeats.get(name) or EngineHeartbeat(engine=name)

    def _replace(self, slot: _Slot, reason: str) -> None:
        """Stop a slot's engine and start another, or close the slot after too many starts."""
        label, spec = self._label(slot), slot.spec
        self.launcher.stop(spec.name, kill=True)
        if self._heartbeat(slot).state != "lost":  # it says at which shards it was lost
            heartbeat_path(self.job.run_dir, spec.name).unlink(missing_ok=True)
        if slot.num_starts >= _MAX_STARTS:
            slot.is_over, slot.error = True, f"{reason}, {slot.num_starts} times in a row"
            return
        logger.warning("%s is replaced: %s", label, reason)
        slot.num_starts += 1
        slot.spec = self._new_spec(spec.slot)
        self.launcher.start(slot.spec)

    def _median_seconds(self, slot: _Slot) -> float | None:
        """Return the median duration of a slot's shards; None without any."""
        seconds = self.shard_seconds.get(slot.spec.name)
        return median(seconds) if seconds else None

    def _time_left(self) -> str:
        """Return the time in which the engines at work finish the run, by their shards so far."""
        medians = [self._median_seconds(slot) for slot in self.slots if not slot.is_over]
        shards_per_second = sum(1 / seconds for seconds in medians if seconds)
        if not shards_per_second or self._is_settled():
            return NONE
        seconds = len(self._allowed_shards()) / shards_per_second
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"

    def _label(self, slot: _Slot) -> str:
        host = self._heartbeat(slot).host
        return f"{slot.spec.label} on {host}" if host else slot.spec.label

    def _report_failures(self) -> None:
        """Record why shards are open at the end.

        Raises:
            EncoreError: No engine could work on any of them.
        """
        error_by_engine = {self._label(slot): slot.error for slot in self.slots if slot.error}
        engine_errors = "; ".join(f"{name}: {error}" for name, error in error_by_engine.items())
        failures = {index for beat in self.heartbeats.values() for index in beat.failed_shards}
        allowed = self._allowed_shards()
        if allowed and not failures and len(error_by_engine) == len(self.slots):
            raise EncoreError(
                f"no engine could work: {engine_errors}; put this right and run it again"
            )
        for shard in allowed:
            self.progress.failures[shard.index] = (
                recorded_failure(self.job.run_dir, shard) or self._error_of_lost_engines(shard)
                if shard.index in failures
                else f"no engine was left ({engine_errors})"
            )

    def _error_of_lost_engines(self, shard: Shard) -> str:
        """Return the error with which engines were lost at a shard."""
        beats = [beat for beat in self.heartbeats.values() if shard.index in beat.failed_shards]
        errors = {beat.error for beat in beats if beat.state == "lost"}
        return "; ".join(sorted(errors)) or "its error could not be recorded"

    def _table(self) -> list[dict[str, object]]:
        """Return the table that people see: a row for each slot."""
        time_left = self._time_left()
        return [self._row(slot, time_left=time_left) for slot in self.slots]

    def _row(self, slot: _Slot, *, time_left: str) -> dict[str, object]:
        """Return a slot's row. A narrow page cuts off the last columns."""
        name, now = slot.spec.name, time.monotonic()
        heartbeat = self._heartbeat(slot)
        num_requests, num_rows = heartbeat.num_finished_requests, heartbeat.num_finished_rows
        if num_requests:  # the speed leaves out the start of the model
            self.first_requests.setdefault(name, (now, num_requests))
        since, first = self.first_requests.get(name, (now, num_requests))
        return {
            "engine": slot.spec.label,
            "state": f"given up: {slot.error}" if slot.error else heartbeat.state,
            "shards": heartbeat.num_finished_shards,
            "failed": len(heartbeat.failed_shards),
            "seconds a shard": amount(self._median_seconds(slot)),
            "time left": time_left,
            "per second": amount((num_requests - first) / (now - since)) if now > since else 0,
            "nulls": f"{heartbeat.num_nulls / num_rows:.1%}" if num_rows else "–",
            "last progress": f"{self.silence.seconds_silent(heartbeat):.0f} s ago",
            "host": heartbeat.host,
            "devices": heartbeat.devices,
        }
