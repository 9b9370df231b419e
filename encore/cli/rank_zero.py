"""Of several processes that a launcher started for one command, only rank 0 prints."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from encore.errors import EncoreError
from encore.terminal import console, out

#: The same error ends rank 0 too, and its launcher then ends this process.
_PATIENCE_SECONDS = 5.0


def is_rank_zero() -> bool:
    """Whether this process may print: no launcher, or the first of those it started."""
    return int(os.environ.get("WORLD_SIZE", "1")) <= 1 or os.environ.get("RANK", "0") == "0"


@contextmanager
def rank_zero_only() -> Iterator[None]:
    """Silence all ranks but rank 0 for the length of the block.

    An error that this process alone has is printed after all: rank 0 does not have it, so nobody
    ends this process for it.
    """
    if is_rank_zero():
        yield
        return
    _be_quiet(is_quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (EncoreError, OSError) as error:
            time.sleep(_PATIENCE_SECONDS)
            _be_quiet(is_quiet=False)
            raise EncoreError(f"process {os.environ['RANK']}: {error}") from error


def _be_quiet(*, is_quiet: bool) -> None:
    console.quiet = out.quiet = is_quiet
    logging.disable(logging.CRITICAL if is_quiet else logging.NOTSET)
