"""Options of sharing a run: several engines, or one slice of the shards per call."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from encore.core.config import StageConfig, unkeyed_option

_engines = partial(unkeyed_option, group="Engines")


_shared_engines = partial(_engines, beside_recipe=True)


class EnginesConfig(StageConfig):
    """Options of several engines. Any number of them continues the same run."""

    engines: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = _shared_engines(1)
    """Number of engines that share the shards. Each is a process with its own GPUs: a local
    process, or on a Prefect server a run on the GPU pool. auto: as many as the local GPUs allow, or
    one for each online worker of the pool."""
    silence_seconds: float = _shared_engines(600, ge=1)
    """Replace an engine that finished no request for so long (seconds)."""


def _checked_slice(text: str) -> str:
    index, _, number = text.partition("/")
    if not (index.isdecimal() and number.isdecimal() and int(index) < int(number)):
        raise ValueError("expected I/N with I from 0 to N - 1, e.g. 0/3 for the first of three")
    return text


class SlicedConfig(StageConfig):
    """The option that divides a run by hand, where no engines divide it."""

    slice: Annotated[str, AfterValidator(_checked_slice)] | None = _engines(None, metavar="I/N")
    """Only the I-th of N parts of the shards, I from 0: for array jobs without an orchestrator."""

    @property
    def parsed_slice(self) -> tuple[int, int] | None:
        """Return I and N of ``--slice I/N``; None without the option."""
        if self.slice is None:
            return None
        index, _, number = self.slice.partition("/")
        return int(index), int(number)
