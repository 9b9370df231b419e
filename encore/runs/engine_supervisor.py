"""The parent of some engines: starts them, replaces what is lost, and ends when all is settled."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from encore.core.errors import EncoreError, InputError
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import code_digest
from encore.runs.engine_messages import (
    MAX_ENGINES_PER_SHARD,
    EngineHeartbeat,
    EngineSpec,
    ShardLimit,
    SilenceTimer,
    heartbeat_path,
    read_heartbeats,
    write_shard_limit,
)
from encore.runs.run_files import RunManifest, Shard, ShardTable, finished_shards, read_manifest
from encore.runs.shard_runner import Job, ReportRows, RunReport, Tally, begin

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
#: A judge of 70B parameters takes minutes to load.
_START_SECONDS = 3600.0
#: When every shard is settled, engines end within seconds by themselves; others wait for a place.
_END_SECONDS = 10.0
#: Starts of one engine without a single finished request before it is given up.
_MOST_STARTS = 3


class EngineState(NamedTuple):
    """What an orchestrator knows of an engine; ``message`` says why it ended.

    ``ended``: by itself; another start would end the same way. ``lost``: killed, crashed or gone.
    """

    state: Literal["waiting", "running", "ended", "lost"]
    message: str = ""


class Launcher(Protocol):
    """Starts engines somewhere. None of its calls waits for an engine, and none raises for one."""

    def adopt(self, run_key: str) -> Sequence[EngineSpec]:
        """Engines of this run that are at work already: started here, or by an earlier parent."""

    def start(self, spec: EngineSpec) -> None:
        """Begin to start an engine."""

    def state(self, name: str) -> EngineState:
        """What is known of an engine."""

    def stop(self, name: str, *, kill: bool = False) -> None:
        """Begin to end an engine, wherever it is; one that hangs is killed."""

    def close(self) -> None:
        """Wait until the engines that were stopped have ended, as far as that can be known."""


#: A table for people: a row for each engine, values by column.
EngineRows = Sequence[Mapping[str, object]]


class ShowEngines(Protocol):
    """What shows the engines to people."""

    def __call__(self, rows: EngineRows, /, *, now: bool = False) -> None:
        """ShowEngines them ``now``, or if it is time."""


def show_no_engines(_rows: EngineRows, /, *, now: bool = False) -> None:
    """What a command does."""


@dataclass(slots=True, kw_only=True)
class _Slot:
    """One place for an engine, and the engine that has it."""

    spec: EngineSpec
    num_starts: int = 0  # since an engine of this slot last finished a request
    is_over: bool = False
    error: str = ""  # why the slot is given up


def job_of_first_engine(
    launcher: Launcher,
    kind: type[RunManifest],
    run_dirs: Callable[[], Iterable[Path]],
    *,
    num_engines: int,
) -> Job:
    """Start a first engine and wait until it has begun its run: it alone opens the model.

    Args:
        launcher: Starts engines; `supervise` adopts the first one from it.
        kind: Of the run's manifest.
        run_dirs: The folders that its run may have.
        num_engines: How many there will be.

    Raises:
        EncoreError: The engine ended before it began.
    """
    spec = _new_spec(0, of=num_engines, run_key="")
    launcher.start(spec)
    try:
        while True:
            for run_dir in run_dirs():
                if heartbeat_path(run_dir, spec.name).is_file() and (run_dir / kind.FILE).is_file():
                    manifest = read_manifest(run_dir, kind)
                    return Job(run_dir=run_dir, manifest=manifest, compute=_not_here)
            found = launcher.state(spec.name)
            if found.state in ("ended", "lost"):
                raise EncoreError(f"{spec.label} could not begin: {found.message}")
            time.sleep(_POLL_SECONDS)
    except BaseException:
        launcher.stop(spec.name)
        launcher.close()
        raise


def _counts(signs: Iterable[EngineHeartbeat]) -> dict[int, dict[str, Any]]:
    """What engines counted in the shards that they finished, by index."""
    return {index: one for sign in signs for index, one in sign.counts_by_finished_shard.items()}


def _not_here(_shard: Shard, _tell: ReportRows) -> ShardTable:
    raise NotImplementedError("engines compute")


def _new_spec(slot: int, *, of: int, run_key: str) -> EngineSpec:
    return EngineSpec(
        name=f"{slot}-{secrets.token_hex(4)}",
        slot=slot,
        num_engines=of,
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
    """Have engines do what is not done of a run; ends when every shard is done or failed for good.

    Engines take shards within the stop rule alone, and keep their model loaded while they wait
    for it to move. An engine that is killed, gone or silent for too long is replaced; one that
    cannot start is named and the others go on. All engines are stopped at the end, however it
    comes.

    Args:
        job: The run; nothing is computed in this process.
        launcher: Starts engines.
        num_engines: How many; never more than there are open shards.
        silence_seconds: The limit of an engine that finishes no request.
        reporter: Told about finished rows and shards.
        show: Given a row for each engine, now and then.

    Raises:
        InputError: The job is a part of a run already.
        EncoreError: No engine could work.
    """
    if job.slice is not None:
        raise InputError(
            "--slice divides the shards by hand, --engines among engines: give one of them"
        )
    tally, pending, _ = begin(replace(job, start=lambda: 1), reporter=reporter)
    parent = _Parent(
        job=job,
        launcher=launcher,
        tally=tally,
        open={shard.index: shard for shard in pending},
        num_engines=min(num_engines, max(1, len(pending))),
        silence_seconds=silence_seconds,
        show=show,
    )
    try:
        parent.work()
    finally:
        parent.stop_engines()
        launcher.close()
    return tally.report


@dataclass(slots=True, kw_only=True)
class _Parent:
    """Watches the engines of one run; ``signs`` are those of the last look."""

    job: Job
    launcher: Launcher
    tally: Tally
    open: dict[int, Shard]
    num_engines: int
    silence_seconds: float
    show: ShowEngines
    slots: list[_Slot] = field(default_factory=list)
    signs: dict[str, EngineHeartbeat] = field(default_factory=dict)
    watch: SilenceTimer = field(default_factory=SilenceTimer)
    began: dict[str, tuple[float, int]] = field(default_factory=dict)
    told: ShardLimit | None = None

    def work(self) -> None:
        """Until every shard within the stop rule is settled, or no engine is left."""
        self._tell_engines()
        self._fill_slots()
        while True:
            self.signs = read_heartbeats(self.job.run_dir)
            self._note_finished()
            is_over = self._is_settled() or all(slot.is_over for slot in self.slots)
            self._tell_engines(is_over=is_over)
            if is_over:
                break
            self._tell()
            for slot in self.slots:
                if not slot.is_over:
                    self._look_after(slot)
            self.show([self._row(slot) for slot in self.slots])
            time.sleep(_POLL_SECONDS)
        give_up = time.monotonic() + _END_SECONDS
        while self._engines_in("running") and time.monotonic() < give_up:
            time.sleep(_POLL_SECONDS)
        self.show([self._row(slot) for slot in self.slots], now=True)
        self._note_failures()

    def stop_engines(self) -> None:
        """Stop every engine that has not ended by itself."""
        for name in self._engines_in("waiting", "running"):
            self.launcher.stop(name)

    def _tell_engines(self, *, is_over: bool = False) -> None:
        """How far they may go; again and again while that may change."""
        num_open_shards, num_shards = (
            self.job.stop_rule.num_open_shards,
            len(self.job.manifest.shards),
        )
        is_final = is_over or num_open_shards >= num_shards
        if is_final and self.told is not None and self.told.is_final:
            return
        beat = 1 + (self.told.version if self.told else 0)
        reach = ShardLimit(
            num_open_shards=min(num_open_shards, num_shards), is_final=is_final, version=beat
        )
        if write_shard_limit(self.job.run_dir, reach):
            self.told = reach

    def _is_settled(self) -> bool:
        """Whether every shard within the stop rule is done or failed for good."""
        num_failed = Counter(
            index for sign in self.signs.values() for index in sign.error_by_failed_shard
        )
        at_work = [self._sign(slot) for slot in self.slots if not slot.is_over]
        return all(
            num_failed[shard.index] >= MAX_ENGINES_PER_SHARD
            or (at_work and all(shard.index in sign.error_by_failed_shard for sign in at_work))
            for shard in self._near()
        )

    def _near(self) -> list[Shard]:
        """The open shards within the stop rule."""
        return self.job.open_shards(self.open.values())

    def _engines_in(self, *states: str) -> list[str]:
        """Engines that have not said that they ended, in one of these states."""
        self.signs = read_heartbeats(self.job.run_dir)
        names = [slot.spec.name for slot in self.slots if not slot.is_over]
        return [
            name
            for name in names
            if not (name in self.signs and self.signs[name].state == "ended")
            and self.launcher.state(name).state in states
        ]

    def _fill_slots(self) -> None:
        """Adopt engines that are at work, and start the others."""
        key, run_dir = self.job.manifest.key, self.job.run_dir
        adopted = {spec.slot: spec for spec in self.launcher.adopt(key)}
        names = {spec.name for spec in adopted.values()}
        signs = read_heartbeats(run_dir)
        for name in signs.keys() - names:  # of an earlier parent
            heartbeat_path(run_dir, name).unlink(missing_ok=True)
        counts = _counts(signs[name] for name in signs.keys() & names)
        self.tally.outcomes = [
            replace(one, action=self.job.manifest.DONE, counts=counts[one.index])
            if one.index in counts
            else one
            for one in self.tally.outcomes
        ]
        for place in range(self.num_engines if self._near() else 0):
            spec = adopted.pop(place, None)
            slot = _Slot(spec=spec or self._new_spec(place), num_starts=1)
            self.slots.append(slot)
            if spec is None:
                self.launcher.start(slot.spec)
        self.slots += [_Slot(spec=spec, num_starts=1) for spec in adopted.values()]

    def _new_spec(self, place: int) -> EngineSpec:
        return _new_spec(place, of=self.num_engines, run_key=self.job.manifest.key)

    def _look_after(self, slot: _Slot) -> None:
        """Replace a slot's engine if it is lost or silent; close the slot if it has ended."""
        found = self.launcher.state(slot.spec.name)
        if found.state == "ended":  # it may have said so since the last look
            self.signs = read_heartbeats(self.job.run_dir)
        sign = self._sign(slot)
        if sign.num_finished_requests:
            slot.num_starts = 0
        if sign.state == "ended":
            slot.is_over, slot.error = True, sign.error
        elif found.state == "ended":
            slot.is_over, slot.error = True, found.message or "it ended without a word"
        elif found.state == "lost":
            self._replace(slot, found.message or "it was lost")
        elif found.state == "running" and (sign.state != "working" or sign.rows_by_open_shard):
            # An engine that waits for stragglers is silent for a reason.
            limit = self.silence_seconds if sign.state == "working" else _START_SECONDS
            if self.watch.seconds_silent(sign) > limit:
                self._replace(slot, f"it finished no request for {limit:g} s")
        if slot.error:
            logger.warning("%s is given up: %s", self._name(slot), slot.error)

    def _sign(self, slot: _Slot) -> EngineHeartbeat:
        name = slot.spec.name
        return self.signs.get(name) or EngineHeartbeat(engine=name)

    def _replace(self, slot: _Slot, reason: str) -> None:
        name, spec = self._name(slot), slot.spec
        self.launcher.stop(spec.name, kill=True)
        heartbeat_path(self.job.run_dir, spec.name).unlink(missing_ok=True)
        if slot.num_starts >= _MOST_STARTS:
            slot.is_over, slot.error = True, f"{reason}, {slot.num_starts} times in a row"
            return
        logger.warning("%s is replaced: %s", name, reason)
        slot.num_starts += 1
        slot.spec = self._new_spec(spec.slot)
        self.launcher.start(slot.spec)

    def _name(self, slot: _Slot) -> str:
        host = self._sign(slot).host
        return f"{slot.spec.label} on {host}" if host else slot.spec.label

    def _note_finished(self) -> None:
        counts = _counts(self.signs.values())
        for state in finished_shards(self.job.run_dir, self.job.manifest, self.open.values()):
            del self.open[state.index]
            done = self.job.manifest.DONE
            self.tally.finished(replace(state, action=done, counts=counts.get(state.index, {})))

    def _tell(self) -> None:
        for sign in self.signs.values():
            for index, num_rows in sign.rows_by_open_shard.items():
                if index in self.open:
                    self.tally.tell(self.open[index], num_rows)

    def _note_failures(self) -> None:
        """Why shards are open at the end.

        Raises:
            EncoreError: No engine could work on any of them.
        """
        errors = {self._name(slot): slot.error for slot in self.slots if slot.error}
        told = "; ".join(f"{name}: {error}" for name, error in errors.items())
        failed = {
            index: one
            for sign in self.signs.values()
            for index, one in sign.error_by_failed_shard.items()
        }
        near = self._near()
        if near and not failed and len(errors) == len(self.slots):
            raise EncoreError(f"no engine could work: {told}; put this right and run it again")
        for shard in near:
            self.tally.failures[shard.index] = (
                failed.get(shard.index) or f"no engine was left ({told})"
            )

    def _row(self, slot: _Slot) -> dict[str, object]:
        spec, now = slot.spec, time.monotonic()
        sign = self._sign(slot)
        if sign.num_finished_requests:
            self.began.setdefault(spec.name, (now, sign.num_finished_requests))
        since, first = self.began.get(spec.name, (now, sign.num_finished_requests))
        return {
            "engine": spec.label,
            "host": sign.host,
            "devices": sign.devices,
            "state": f"given up: {slot.error}" if slot.error else sign.state,
            "shards": len(sign.counts_by_finished_shard),
            "per second": round((sign.num_finished_requests - first) / (now - since), 1)
            if now > since
            else 0,
            "nulls": f"{sign.num_nulls / sign.num_finished_rows:.1%}"
            if sign.num_finished_rows
            else "–",
            "last sign of life": f"{self.watch.seconds_silent(sign):.0f} s ago",
        }
