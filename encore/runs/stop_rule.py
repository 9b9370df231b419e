"""What decides how many shards of a run are computed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from encore.runs.shard_files import ShardState


class EarlyStop(NamedTuple):
    """Why a run stops before its last shard.

    Attributes:
        reason: A sentence for people.
        is_success: True if the goal was reached (precise weights), False for a limit (budget).
    """

    reason: str
    is_success: bool


class StopRule(Protocol):
    """Decides, while a run proceeds, how many of its shards are computed."""

    @property
    def num_open_shards(self) -> int:
        """Return n: shards 0 to n - 1 of the plan may be taken."""

    @property
    def early_stop(self) -> EarlyStop | None:
        """Return why no further shard will be opened; None while one may, or all are open."""

    def update(self, finished_shards: Sequence[ShardState]) -> None:
        """Recompute the limit: when a run begins with all finished shards, then with each new one.

        A shard may be given again; it counts once.
        """


class _NeverStop:
    num_open_shards = sys.maxsize
    early_stop = None

    def update(self, finished_shards: Sequence[ShardState]) -> None:
        """Leave every shard open."""


NEVER_STOP: StopRule = _NeverStop()
