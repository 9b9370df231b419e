"""What a benchmark is: its data at one revision, its subsets with their counts, how they add up."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from encore.core.errors import InputError, first_problem

BENCHMARK_NAMES = ("rewardbench-safety", "rewardbench-2-safety", "generic")

#: How subsets add up to the headline: every example alike, or every subset alike.
Weighting = Literal["examples", "subsets"]

#: What a tie is worth: nothing (RewardBench, for reward models), or one half (for LLM judges).
Ties = Literal["loss", "half"]


class Subset(BaseModel):
    """A part of a benchmark with a score of its own.

    Attributes:
        name: As in the data's column ``subset``.
        num_pairs: Pairs it must have: its rows times the rejected responses of a row. None: any
            number but 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    num_pairs: int | None = Field(default=None, ge=1)


class Benchmark(BaseModel):
    """A benchmark as its TOML file defines it.

    Attributes:
        name: Short, for commands and files.
        version: Of this definition; another count or another revision is another version.
        title: For people.
        citation: Who made it and where it is described.
        dataset: Hub id; None where the data are only ever local.
        revision: The hub's commit; with ``dataset``.
        split: Of the hub's data set; with ``dataset``.
        subsets: In the order of tables. None at all: whatever the data name.
        weighting: How they add up to the headline.
        ties: What a reward model's tie is worth. With ``half``, k equal best responses of a row
            are worth 1/k (`encore.benchmarks.metrics.unit_credits`).
        headline: What the headline is called.
        licence: Of the data, as an SPDX identifier or in the words of its card.
        rejected_per_row: Rejected responses of every row; None: one or more. The pairs of one row
            are scored together (`encore.benchmarks.metrics.unit_credits`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$", max_length=48)
    version: str = Field(min_length=1)
    title: str = Field(min_length=1)
    citation: str = Field(min_length=1)
    dataset: str | None = Field(default=None, pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{7,40}$")
    split: str | None = Field(default=None, min_length=1)
    subsets: tuple[Subset, ...] = ()
    weighting: Weighting = "examples"
    ties: Ties = "loss"
    headline: str = Field(min_length=1)
    licence: str = Field(min_length=1)
    rejected_per_row: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        together = (self.dataset, self.revision, self.split)
        if any(together) and not all(together):
            raise ValueError("dataset, revision and split belong together: give all or none")
        twice = [name for name, num in Counter(one.name for one in self.subsets).items() if num > 1]
        if twice:
            raise ValueError(f"subset {twice[0]!r} is there more than once")
        return self


def load_benchmark(name: str | Path) -> Benchmark:
    """The benchmark shipped under a name, or the one that a TOML file defines.

    Raises:
        InputError: No such benchmark; or file, field and value that is wrong.
    """
    is_shipped = name in BENCHMARK_NAMES
    path = Path(__file__).parent / f"{name}.toml" if is_shipped else Path(name)
    if not path.is_file():
        known = ", ".join(BENCHMARK_NAMES)
        raise InputError(f"benchmark {str(name)!r}: expected {known} or the path of a TOML file")
    try:
        return Benchmark.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"benchmark {path}: not valid TOML: {error}") from error
    except ValidationError as error:
        problem = first_problem(error)
        raise InputError(
            f"benchmark {path}: field {problem.path or '(all)'}: {problem.message} "
            f"(got {problem.value!r:.80})"
        ) from error
