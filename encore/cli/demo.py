"""`encore demo`: the whole path on shipped synthetic pairs and a shipped small judge."""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Annotated, Literal

import typer
from rich.text import Text

from encore.cli.output import out, say, warn

#: Small enough that killing the demo costs seconds, large enough for the engine.
_PAIRS_PER_SHARD = 60


def demo(
    study: Annotated[
        Path, typer.Option("--out", help="Where the study goes; an existing demo is continued.")
    ] = Path("demo-study"),
    backend: Annotated[
        Literal["vllm", "transformers"] | None,
        typer.Option(help="The judge's engine; default: vLLM, transformers where it is missing."),
    ] = None,
) -> None:
    """From preference pairs to ENCORE weights on shipped synthetic data, in minutes, offline.

    Ingests the synthetic pairs, has the small shipped judge rate every response under the paper's
    ten rules on a real vLLM engine, measures the rules and prints their table with the weights.
    Pairs, judge and therefore every figure are synthetic: they show how the tool works and say
    nothing about the paper's claim.
    """
    from encore.cli.ingest import ingest
    from encore.cli.rate import rate_and_report
    from encore.cli.weights import weights_table
    from encore.config import JudgeConfig, RatingConfig
    from encore.demo import data_paths, judge_path
    from encore.weighting.scheme import SchemeOptions
    from encore.weighting.weigh import weigh_rules

    started = time.monotonic()
    chosen = backend or _available_backend()
    say("ENCORE demo: everything in it is synthetic, made for this demo by a seeded script")
    ingest([f"{label}={path}" for label, path in data_paths().items()], study=study)
    config = RatingConfig(
        judge=JudgeConfig(model=str(judge_path()), backend=chosen), shard_size=_PAIRS_PER_SHARD
    )
    rate_and_report(study, config)
    out.print(weights_table(weigh_rules(study, scheme="encore", options=SchemeOptions())))
    out.print(Text("synthetic data: read these figures as an example, not as evidence", "bold"))
    say(f"done in {time.monotonic() - started:.0f} s; next:")
    for command, purpose in _next_steps(study):
        out.print(
            Text.assemble(f"  {_program()} {command}  ", (f"# {purpose}", "dim")), soft_wrap=True
        )


def _available_backend() -> Literal["vllm", "transformers"]:
    if find_spec("vllm") is not None:
        return "vllm"
    warn(
        "vLLM is not installed on this machine (it needs Linux); the demo uses the transformers "
        "backend instead: the same replies, several times slower"
    )
    return "transformers"


def _program() -> str:
    """How this very command can be called again: by name where the shell finds it, else by path."""
    if found := which("encore"):
        return Path(found).name
    program = Path(sys.argv[0])
    return os.path.relpath(program) if program.name == "encore" else "encore"


def _next_steps(study: Path) -> tuple[tuple[str, str], ...]:
    return (
        (f"analyze {study} --by-source", "entropy, four accuracies, their correlation"),
        (f"weights {study} --tau 0.5", "a sharper preference for low-entropy rules"),
        (f"status {study}", "every rating shard, its digest checked"),
        (f"show PAIR --study {study}", "text, prompts, replies and ratings of one pair"),
        ("ingest --help", "your own preference pairs"),
    )
