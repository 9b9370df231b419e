"""Load models of transformers quietly, and give one-line errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encore.core.errors import EncoreError


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence progress bars and warnings of transformers inside the block."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    had_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bar:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def loading_errors(problem: str, kind: type[EncoreError] = EncoreError) -> Iterator[None]:
    """Turn any error of a loader into an error of one line that begins with the problem.

    Loaders of transformers are silenced inside the block.

    Args:
        problem: What does not load, and what was expected.
        kind: Class of the error.
    """
    try:
        with quiet_transformers():
            yield
    except ImportError as error:  # of a package beside it: the files may be in order
        cause: BaseException = error
        while (inner := cause.__cause__ or cause.__context__) is not None:
            cause = inner
        reason = " ".join(str(cause).split())[:300]
        raise kind(
            f"{problem.partition(';')[0]}: transformers cannot import a package that it needs "
            f"({type(cause).__name__}: {reason}); `encore doctor` checks the packages"
        ) from error
    except Exception as error:  # damaged files can raise anything
        reason = " ".join(str(error).split())[:300]
        raise kind(f"{problem} ({type(error).__name__}: {reason})") from error


def load_weights(
    auto_class: Any,
    location: str | Path,
    *,
    name: str,
    error: type[EncoreError] = EncoreError,
    **options: Any,
) -> tuple[Any, set[str]]:
    """Load a complete transformers model; return it and the names of stored weights it ignores.

    No code of the model is run.

    Args:
        auto_class: Class of transformers, e.g. ``AutoModel``.
        location: Folder or hub id.
        name: Name of the model, for messages.
        error: Class of the error.
        options: Arguments of the class's ``from_pretrained``.

    Raises:
        EncoreError: Weights do not load or some are missing.
    """
    with loading_errors(
        f"{name}: its weights do not load; expected complete *.safetensors of the architecture in "
        "config.json",
        error,
    ):
        model, report = auto_class.from_pretrained(
            location,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **options,
        )
    absent = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if absent:
        raise error(
            f"{name}: {len(absent)} weights missing or of another shape, first "
            f"{', '.join(absent[:3])}; they would be random: give a complete model"
        )
    return model, set(map(str, report["unexpected_keys"]))
