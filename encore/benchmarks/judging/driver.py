"""Every shard of a judging in one process, each on its own fate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from encore.benchmarks.judging.asking import JudgingRun
from encore.benchmarks.judging.folder import Verdicts, claim_folder, read_verdicts
from encore.benchmarks.judging.run import is_done, judge_shard
from encore.benchmarks.old_shards import Shard
from encore.errors import EncoreError, JudgeUnavailableError, StudyIncompleteError

logger = logging.getLogger(__name__)

_BUSY_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingProgress:
    """How far a judging is: replies that are there, of shards finished before too."""

    num_done: int
    num_replies: int


OnProgress = Callable[[JudgingProgress], None]


def judge_run(run: JudgingRun, *, on_progress: OnProgress | None = None) -> Verdicts:
    """Judge the shards that are not done, then read all verdicts back.

    A shard that fails is recorded and the others go on; one that another process is judging is
    waited for. No engine is started where everything is done.

    Raises:
        StudyIncompleteError: Shards failed.
        JudgeUnavailableError: The judge's engine does not start.
        KeyboardInterrupt: Finished shards are kept.
    """
    claim_folder(run.folder, run.manifest)
    tally = _Tally(run=run, on_progress=on_progress)
    pending = run.manifest.shards
    if any(not is_done(run, shard) for shard in pending):
        run.judge.start()
    waited_for: tuple[Shard, ...] = ()
    while pending:
        pending = tuple(shard for shard in pending if not _is_through(shard, tally))
        if pending and pending != waited_for:
            names = ", ".join(str(shard.index) for shard in pending)
            logger.warning("waiting for another process that judges shards %s", names)
            waited_for = pending
        if pending:
            time.sleep(_BUSY_POLL_SECONDS)
    if tally.failures:
        index, error = min(tally.failures.items())
        raise StudyIncompleteError(
            f"{run.folder}: {len(tally.failures)} of {len(run.manifest.shards)} shards failed "
            f"(shard {index}: {error}); run the same command again to judge only these"
        )
    return read_verdicts(run.folder, run.manifest)


@dataclass(slots=True)
class _Tally:
    """What this call has done so far."""

    run: JudgingRun
    on_progress: OnProgress | None
    num_done: int = 0
    failures: dict[int, str] = field(default_factory=dict)

    def at_work(self, num_more: int) -> None:
        """Some replies of a shard that is not finished."""
        if self.on_progress is not None:
            self.on_progress(
                JudgingProgress(
                    num_done=self.num_done + num_more, num_replies=self.run.manifest.num_replies
                )
            )

    def finished(self, shard: Shard) -> None:
        """A shard that is done."""
        self.num_done += self.run.manifest.num_replies_of(shard.num_pairs)
        self.at_work(0)


def _is_through(shard: Shard, tally: _Tally) -> bool:
    """Whether this shard is done or has failed; False while another process is at it."""
    try:
        action = judge_shard(tally.run, shard, on_replies=tally.at_work)
    except JudgeUnavailableError:
        raise
    except EncoreError as error:
        tally.failures[shard.index] = str(error)
        logger.warning("shard %d failed: %s", shard.index, error)
        return True
    if action != "busy":
        tally.finished(shard)
    return action != "busy"
