"""Options of the commands of `encore rules`."""

from __future__ import annotations

from pathlib import Path

from encore.config import StageConfig, option


class OutputConfig(StageConfig):
    """Where a step puts its rules."""

    output: Path = option(
        metavar="FILE",
        help="Where the rules go: .toml (a rule set once every rule has its texts), .csv or "
        ".jsonl. Replaced if it is there.",
    )


class MergeConfig(OutputConfig):
    """`encore rules merge`: which pools become one."""

    pools: tuple[str, ...] = option(
        positional=True,
        metavar="POOL...",
        min_length=1,
        help="Pools as [NAME=]FILE: .toml, .csv with a header or .jsonl, or encore-10 or "
        "encore-20. NAME is the source of its rules. Default: the file's `name`, or its own name "
        "without the suffix.",
    )
    licence: tuple[str, ...] = option(
        (),
        alias="license",
        metavar="NAME=TEXT",
        help="Licence of the pool NAME, for rules whose file does not name one; repeatable.",
    )
