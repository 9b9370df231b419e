"""A judge in a file: `judge.toml` has the options of a judge, so that no command repeats them.

    model = "meta-llama/Meta-Llama-3-70B-Instruct"
    revision = "main"
    engine_args = {tensor_parallel_size = 4}

The names are those of `JudgeConfig` and of `ServerOptions`. Paths that begin with a dot start at
the file's folder.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from encore.core.errors import JudgeUnavailableError, did_you_mean

#: Ending of the name of a judge's file, by which it is told from a model.
ENDING = ".toml"
#: Options that may be a path.
_PATHS = ("model", "tokenizer", "chat_template", "system")


def read_judge_file(path: Path, *, names: Sequence[str]) -> dict[str, Any]:
    """Return the options of a judge's file by name.

    Args:
        path: The judge's file, which may be missing.
        names: Names that options of a judge have.

    Raises:
        JudgeUnavailableError: There is no such file, it is no TOML, it names no model, or an option
            in it is unknown.
    """
    try:
        options = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JudgeUnavailableError(
            f"judge {str(path)!r}: {error.strerror}; expected a TOML file with model = …, a folder "
            "with a model, or a hub id"
        ) from error
    except ValueError as error:
        raise JudgeUnavailableError(f"judge {str(path)!r}: {error}; correct the TOML") from error
    for name in options:
        if name not in names:
            raise JudgeUnavailableError(
                f"judge {str(path)!r}: {name!r} is no option of a judge"
                f"{did_you_mean(name, names)}; expected some of {', '.join(names)}"
            )
    if not isinstance(options.get("model"), str):
        raise JudgeUnavailableError(
            f'judge {str(path)!r}: it names no model; add model = "FOLDER_OR_ID"'
        )
    for name in _PATHS:
        if str(options.get(name, "")).startswith("."):
            options[name] = str(path.parent / options[name])
    return options
