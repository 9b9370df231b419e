"""What a machine or a pilot changes of a recipe: places, the engine, how many pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from encore.config import EngineValue
from encore.errors import InputError
from encore.recipes.recipe import Recipe

_Positive = Annotated[int, Field(ge=1)]


class JudgeChanges(BaseModel):
    """None leaves what the recipe says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = Field(
        default=None, min_length=1, description="Another judge, or the same at another place."
    )
    backend: Literal["vllm", "transformers"] | None = Field(default=None, description="The engine.")
    revision: str | None = Field(default=None, description="Of a hub id.")
    engine_args: dict[str, EngineValue] = Field(
        default_factory=dict,
        description="Added to the recipe's, e.g. tensor_parallel_size: the GPUs of the judge.",
    )
    shard_size: _Positive | None = Field(default=None, description="Pairs in a shard.")
    limit: _Positive | None = Field(
        default=None,
        description="Pilot: rate, learn from and score only so many pairs, by content hash. It "
        "has records, a table and an export of its own.",
    )


def changed(recipe: Recipe, changes: JudgeChanges, *, benchmark_data: Path | None = None) -> Recipe:
    """The recipe with these changes; rules, training and rows stay what they are.

    A pilot has a name of its own, after the number of its pairs.

    Args:
        recipe: As shipped, or one's own.
        changes: Of its rating stage.
        benchmark_data: The benchmark's rows as local files.

    Raises:
        InputError: No such file or folder.
    """
    rating = recipe.rating
    judge = {
        **dict(rating.judge),
        **_given(model=changes.model, backend=changes.backend, revision=changes.revision),
        "engine_args": {**rating.judge.engine_args, **changes.engine_args},
    }
    changed_rating = {
        **dict(rating),
        **_given(shard_size=changes.shard_size, limit=changes.limit),
        "judge": judge,
    }
    if benchmark_data is not None and not benchmark_data.exists():
        raise InputError(
            f"--benchmark-data {benchmark_data}: no such file or folder; expected the benchmark's "
            "rows as JSON or Parquet"
        )
    table = {**dict(recipe.table), **_given(data=benchmark_data)}
    # A pilot's table and export must not be taken for the whole run's, nor take their place.
    name = recipe.name if changes.limit is None else f"{recipe.name}_pilot_{changes.limit}"
    return Recipe.model_validate(
        {**dict(recipe), "name": name, "rating": changed_rating, "table": table}
    )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
