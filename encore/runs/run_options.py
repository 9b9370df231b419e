"""Options of a call that works through a sharded run: the shards that it takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from encore.core.config import StageConfig, option


def _checked_slice(text: str) -> str:
    index, _, number = text.partition("/")
    if not (index.isdecimal() and number.isdecimal() and int(index) < int(number)):
        raise ValueError("expected I/N with I from 0 to N - 1, e.g. 0/3 for the first of three")
    return text


class RunOptions(StageConfig):
    """Work of one call on a run. It changes no result, so it is in no key."""

    slice: Annotated[str, AfterValidator(_checked_slice)] | None = option(
        None, group="Engines", metavar="I/N"
    )
    """Only the I-th of N parts of the shards, I from 0: for array jobs without an orchestrator."""
    shard: tuple[Annotated[int, Field(ge=0)], ...] = option(())
    """Only this shard; repeat for several."""

    @property
    def parsed_slice(self) -> tuple[int, int] | None:
        """Return I and N of ``--slice I/N``; None without the option."""
        if self.slice is None:
            return None
        index, _, number = self.slice.partition("/")
        return int(index), int(number)
