"""Which benchmark: the options that commands on its pairs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PANEL = "Benchmark"
DEFAULT_BENCHMARK = "rewardbench-safety"

BenchmarkName = Annotated[
    str,
    typer.Option(
        "--benchmark",
        metavar="NAME_OR_TOML",
        help="rewardbench-safety, rewardbench-2-safety, generic, or your own definition.",
        rich_help_panel=PANEL,
    ),
]
BenchmarkData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Its rows as local JSON lines, JSON or Parquet in RewardBench's columns (a file "
        "or a folder). Default: the hub, at the definition's revision.",
        rich_help_panel=PANEL,
    ),
]
AllowPartial = Annotated[
    bool,
    typer.Option(
        "--allow-partial",
        help="Accept subsets that are missing or have another count: every figure then says "
        "partial.",
        rich_help_panel=PANEL,
    ),
]
