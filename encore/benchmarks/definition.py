"""Definition of a benchmark: its data at one revision, its subsets, counts and headline."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from encore.core.errors import InputError, first_problem

BENCHMARK_NAMES = (
    "rewardbench-safety",
    "rewardbench",
    "rewardbench-2",
    "rewardbench-2-safety",
    "rm-bench",
    "generic",
)

#: Weighting of the headline: every example weighs the same, or every subset does.
Weighting = Literal["examples", "subsets"]

#: Score of a row with several pairs: one choice among its responses, the mean of its pairs, or
#: RewardBench 2's score of prompts with several right answers (`encore.benchmarks.ties_score`).
Scoring = Literal["choice", "mean", "ties"]

#: Credit of a tie: none (RewardBench, for reward models), or one half (for LLM judges).
Ties = Literal["loss", "half"]


class Subset(BaseModel):
    """A part of a benchmark that has its own score.

    Attributes:
        name: Value of the column ``subset`` in the data.
        num_pairs: Pairs that the subset must have: rows times rejected responses per row. None
            accepts any number above 0.
        num_rows: Rows that the subset must have, where rows differ in their number of responses.
        scoring: Score of a row with several pairs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    num_pairs: int | None = Field(default=None, ge=1)
    num_rows: int | None = Field(default=None, ge=1)
    scoring: Scoring = "choice"


class Benchmark(BaseModel):
    """A benchmark as its TOML file defines it.

    Attributes:
        name: Short name for commands and files.
        version: Version of this definition. A changed count or revision needs a new version.
        title: Name shown to people.
        citation: Authors, and where the benchmark is described.
        dataset: Hub id of the data. None if the data are always local.
        revision: Commit of the data on the hub. Set if ``dataset`` is.
        split: Split of the data set on the hub. Set if ``dataset`` is.
        subsets: Subsets in the order of tables. Empty: all subsets that the data name.
        weighting: Weighting of the headline.
        ties: Credit of a reward model's tie. With ``half``, k equal best responses of a row
            get 1/k (`encore.benchmarks.metrics.unit_credits`).
        headline: Name of the headline score, e.g. ``Safety``.
        licence: Licence of the data: an SPDX identifier, or the text of the data card.
        rejected_per_row: Rejected responses in every row. None: one or more. The pairs of one row
            are scored together (`encore.benchmarks.metrics.unit_credits`). Not for subsets of
            another scoring than ``choice``.
        columns: Columns of the data. ``rm-bench``: ``domain`` instead of ``subset``; three chosen
            and three rejected responses, each in three styles from plain to elaborate.
        source_name: Name of the source of published results (`encore.benchmarks.published_rows`).
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
    columns: Literal["rewardbench", "rm-bench"] = "rewardbench"
    source_name: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        source = (self.dataset, self.revision, self.split)
        if any(source) and not all(source):
            raise ValueError("dataset, revision and split belong together: give all or none")
        counts = Counter(subset.name for subset in self.subsets)
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise ValueError(f"subset {repeated[0]!r} is defined more than once")
        return self

    @property
    def scoring(self) -> dict[str, Scoring]:
        """Return the scoring of each subset whose rows are not choices."""
        return {part.name: part.scoring for part in self.subsets if part.scoring != "choice"}


def load_benchmark(name: str | Path) -> Benchmark:
    """Return the benchmark that is shipped under a name, or that a TOML file defines.

    Raises:
        InputError: No such benchmark, or a wrong field; the message has file, field and value.
    """
    is_shipped = name in BENCHMARK_NAMES
    path = Path(__file__).parent / f"{name}.toml" if is_shipped else Path(name)
    if not path.is_file():
        names = ", ".join(BENCHMARK_NAMES)
        raise InputError(f"benchmark {str(name)!r}: expected {names} or the path of a TOML file")
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
